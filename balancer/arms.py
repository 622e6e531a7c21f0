"""Which policy decides for which request: one for all, or a second one for a share of them.

Knows policies by the names that metrics and decisions tell them apart by. Never chooses a replica. A request falls to the same
arm every time it is asked about: a conversation as a whole, and else a request with all its attempts.
"""

from typing import Any, Final

import msgspec
import xxhash

from balancer.core import DEFAULT_FEED, Feed, RouteRequest
from balancer.errors import ConfigError
from balancer.policies.base import Policy, Rank, in_turn, make, rank_of
from balancer.settings import PolicySettings

_LOTS: Final = 2**64


class Arm(msgspec.Struct, frozen=True):
    """A policy, what it is called, and the share of requests that are its own, 0 to 1.

    ``reads_prompt``, ``counts_expected``, ``rank``, ``feed`` and ``trial_after`` are what the policy says of itself
    (``docs/policies.md``).
    """

    name: str
    policy: Policy
    share: float = 1.0
    reads_prompt: bool = False
    counts_expected: bool = True
    rank: Rank = in_turn
    feed: Feed = DEFAULT_FEED
    trial_after: int | None = None

    @property
    def orders(self) -> bool:
        """Whether its requests may be held, to go in the order that it says."""
        return self.rank(0.0, 0.0) is not None


def arm(name: str, policy: Policy, share: float = 1.0) -> Arm:
    """The policy with what it says of itself."""
    return Arm(
        name,
        policy,
        share,
        getattr(policy, "reads_prompt", False),
        getattr(policy, "counts_expected", True),
        rank_of(policy),
        getattr(policy, "feed", DEFAULT_FEED),
        getattr(policy, "trial_after", None),
    )


class Arms:
    """All policies that may decide. Changes with nothing."""

    def __init__(self, first: Arm, second: Arm | None = None) -> None:
        """``second`` has its share of requests, ``first`` all the others.

        Ranks of two orders cannot be compared, so all that are held go in one: that of the first one that has any.
        """
        if second is not None and first.orders and second.orders:
            second = msgspec.structs.replace(second, rank=first.rank)
        self.first = first
        self.second = second

    def __repr__(self) -> str:
        return f"<Arms {self.first.name}{f', {self.second.name} for {self.second.share:g}' if self.second else ''}>"

    @property
    def orders(self) -> bool:
        """Whether requests may be held."""
        return self.first.orders or (self.second is not None and self.second.orders)

    @property
    def feed(self) -> Feed:
        """What keeps a replica busy: by the first one that has an order."""
        return self.second.feed if self.second is not None and not self.first.orders else self.first.feed

    def of(self, request: RouteRequest, draw: float) -> Arm:
        """Who decides for this request; ``draw`` is for those that have no id and no conversation."""
        second = self.second
        return self.first if second is None or lot(request, draw, "arms") >= second.share else second

    def named(self, name: str) -> Policy:
        """The policy that a decision names; the first one for a name that is none of these."""
        return self.second.policy if self.second is not None and self.second.name == name else self.first.policy


def lot(request: RouteRequest, draw: float, purpose: str, *, by_session: bool = True) -> float:
    """A number from 0 to 1 (excluded), the same for all requests of a conversation, and for all attempts of a request.

    Lots for two purposes have nothing to do with each other, nor with ``draw``, from which one is made where there is neither.
    """
    if by_session and request.session:
        name = b"s%d" % request.session
    elif request.request_id:
        name = b"r%b" % request.request_id.encode(errors="surrogatepass")
    else:
        name = b"d%b" % draw.hex().encode()
    return (xxhash.xxh3_64_intdigest(purpose.encode() + name) >> 11) / (_LOTS >> 11)


class Chosen(msgspec.Struct, frozen=True):
    """What the settings say of policies, made."""

    first: Arm
    second: Arm | None
    shadow: Arm | None


def chosen(settings: PolicySettings) -> Chosen:
    """The policies of these settings.

    Raises:
        ConfigError: there is no such policy, a setting is none of its own, or the two of an A/B test are the same.
    """
    first = arm(settings.name, make(settings.name, settings.settings))
    second = shadow = None
    ab, paper = settings.ab, settings.shadow
    if ab.name is not None:
        made = make(ab.name, ab.settings, at="policy.ab")
        if type(made) is type(first.policy) and made == first.policy:
            raise ConfigError(
                f"policy.ab: {ab.name} with these settings is what [policy] says; name another, or set what differs"
            )
        second = arm(_told_apart(ab.name, ab.settings, {first.name}), made, ab.share)
    if paper.name is not None:
        names = {first.name, second.name} if second else {first.name}
        made = make(paper.name, paper.settings, at="policy.shadow")
        shadow = arm(_told_apart(paper.name, paper.settings, names), made, paper.share)
    return Chosen(first, second, shadow)


def in_words(settings: PolicySettings) -> str:
    """Who decides for what, with all that is set of each, for people."""
    ab, paper = settings.ab, settings.shadow
    told = [_written(settings.name, settings.settings)]
    if ab.name is not None:
        told.append(f"{_written(ab.name, ab.settings)} for {100 * ab.share:.4g} % of requests")
    if paper.name is not None:
        told.append(f"{_written(paper.name, paper.settings)} on paper for {100 * paper.share:.4g} %")
    return ", ".join(told)


def _told_apart(name: str, settings: dict[str, Any], others: set[str]) -> str:
    """The name, with its settings where the name alone is taken."""
    return name if name not in others else _with(name, settings)


def _written(name: str, settings: dict[str, Any]) -> str:
    return _with(name, settings) if settings else name


def _with(name: str, settings: dict[str, Any]) -> str:
    """The name with its settings, as ``kvlb simulate`` writes them."""
    written = ", ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in settings.items())
    return f"{name}({written})"
