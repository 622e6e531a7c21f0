"""How much each key and each tenant may ask for: requests and tokens a minute, and requests at a time.

Knows names, counts and moved time (seconds, any monotonic clock). Never knows keys themselves, bodies or replicas. A minute's
limit is a token bucket: it holds a minute's worth and is refilled evenly, so that who was quiet may send a minute's worth at
once. Between calls: what has been entered and not left is what counts as being at work; a request that was refused has used up
nothing but, where its tokens were too many, one request.
"""

import math
from typing import Final

import msgspec

from balancer.errors import ConfigError, PromptTooLong, RateLimited

_SPARE: Final = 256
"""Accounts that are remembered without need, before they are looked through."""

_SOON: Final = 1
"""Seconds after which to try again, where it depends on when others end."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of one key or tenant; None is no limit. ``tokens_per_minute`` counts those of prompts and of answers."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrent_requests: int | None = None

    def over(self, others: "Rates") -> "Rates":
        """These limits, and the others where there is none here."""
        if others == NO_RATES:
            return self
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(others, **given)

    def share(self, parts: int) -> "Rates":
        """An equal part of these limits; nobody has less than one request at a time."""
        if self == NO_RATES or parts == 1:
            return self
        at_a_time = self.concurrent_requests
        return Rates(
            requests_per_minute=None if self.requests_per_minute is None else self.requests_per_minute / parts,
            tokens_per_minute=None if self.tokens_per_minute is None else self.tokens_per_minute / parts,
            concurrent_requests=None if at_a_time is None else max(1, at_a_time // parts),
        )


NO_RATES: Final = Rates()


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one request may be, and how many there may be."""

    max_prompt_tokens: int | None = None
    """Tokens of all prompts of a request together, where they are known."""
    max_nesting: int = 128
    """Lists and objects within each other in a JSON body; tools' schemas have some twenty."""
    key: Rates = NO_RATES
    """Of each key that has none of its own; of all requests together where no keys are asked for."""
    tenant: Rates = NO_RATES
    """Of each tenant, over all its keys."""
    tenants: dict[str, Rates] = {}
    """Of single tenants: what stands here goes before ``tenant``."""

    def limits(self, own: Rates) -> bool:
        """Whether there is any limit for a key that has these of its own."""
        return own != NO_RATES or bool(self.tenants) or self.key != NO_RATES or self.tenant != NO_RATES

    def share(self, parts: int) -> "LimitSettings":
        """The same, with an equal part of what holds for several requests together."""
        tenants = {name: rates.share(parts) for name, rates in self.tenants.items()}
        return msgspec.structs.replace(
            self, key=self.key.share(parts), tenant=self.tenant.share(parts), tenants=tenants
        )


def check(settings: LimitSettings) -> None:
    """Raise ``ConfigError`` for what cannot be used."""
    values: dict[str, float | None] = {
        "max_prompt_tokens": settings.max_prompt_tokens,
        "max_nesting": settings.max_nesting,
    }
    tables = {"key": settings.key, "tenant": settings.tenant}
    tables |= {f"tenants.{name}": rates for name, rates in settings.tenants.items()}
    for path, rates in tables.items():
        values |= {f"{path}.{name}": value for name, value in msgspec.structs.asdict(rates).items()}
    for path, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"limits.{path}: {value} cannot be used; give a number above 0")


def check_prompt(tokens: int, settings: LimitSettings) -> None:
    """Raise ``PromptTooLong`` for a request whose prompts have so many tokens, if these are too many."""
    if settings.max_prompt_tokens is not None and tokens > settings.max_prompt_tokens:
        raise PromptTooLong(
            f"the prompt has {tokens:,} tokens, and the limit here is {settings.max_prompt_tokens:,} "
            "(limits.max_prompt_tokens); send a shorter one"
        )


class Limiter:
    """All accounts. Changes with every call."""

    def __init__(self, settings: LimitSettings, where: str = "") -> None:
        """``where`` says what these limits hold for, behind their numbers, if that is not all that kvlb serves."""
        self._settings = settings
        self._where = where
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._remembered = _SPARE

    def __repr__(self) -> str:
        return f"<Limiter {len(self._accounts)} accounts, {self.at_work} at work>"

    @property
    def at_work(self) -> int:
        """How many requests have entered and not left, counted at each limit that holds for them."""
        return sum(account.at_work for account in self._accounts.values())

    def enter(self, key: str, tenant: str, own: Rates, now: float) -> "Permit":
        """A request of this key (its name) and tenant begins; ``own`` are the key's own limits. It must leave once.

        Raises:
            RateLimited: there are too many; it has not entered.
        """
        accounts = self._accounts_of(key, tenant, own, now)
        for account in accounts:
            account.check_request(now)
        for account in accounts:
            account.enter()
        return Permit(accounts) if accounts else NO_PERMIT

    def hold(self, key: str, tenant: str, own: Rates, now: float) -> "Permit":
        """A request that somebody else has let in is at work: it counts, whatever the limits say, and overdraws nothing."""
        accounts = self._accounts_of(key, tenant, own, now)
        for account in accounts:
            account.hold(now)
        return Permit(accounts) if accounts else NO_PERMIT

    def _accounts_of(self, key: str, tenant: str, own: Rates, now: float) -> "list[_Account]":
        settings = self._settings
        if not settings.limits(own):
            return []
        wanted = (
            ("key", key, own.over(settings.key)),
            ("tenant", tenant, settings.tenants.get(tenant, NO_RATES).over(settings.tenant)),
        )
        return [self._account(scope, name, rates, now) for scope, name, rates in wanted if rates != NO_RATES]

    def _account(self, scope: str, name: str, rates: Rates, now: float) -> "_Account":
        account = self._accounts.get((scope, name))
        if account is None:
            self._forget(now)
            account = self._accounts[scope, name] = _Account(scope, name, self._where)
        if account.rates != rates:
            account.change(rates, now)
        return account

    def _forget(self, now: float) -> None:
        """Let go of accounts that are as new ones are."""
        if len(self._accounts) > self._remembered:
            self._accounts = {name: each for name, each in self._accounts.items() if not each.is_as_new(now)}
            self._remembered = 2 * len(self._accounts) + _SPARE


class Permit:
    """One request's part in the limits of its key and tenant, from its beginning to its end."""

    __slots__ = ("_accounts",)

    def __init__(self, accounts: "list[_Account]") -> None:
        self._accounts = accounts

    def spend(self, tokens: int, now: float) -> None:
        """The request's prompts have so many tokens, as far as they are known.

        Raises:
            RateLimited: that is more than may be spent now; none of them counts.
        """
        for account in self._accounts:
            account.check_tokens(tokens, now)
        self.charge(tokens)

    def note(self, tokens: int, now: float) -> None:
        """Somebody else has let them be spent: they count as far as there are any, and nothing is overdrawn."""
        for account in self._accounts:
            account.note(tokens, now)

    def charge(self, tokens: int) -> None:
        """So many tokens turned out to be needed, too. They may be more than there were: then the next ones wait."""
        for account in self._accounts:
            account.spend(tokens)

    def leave(self) -> None:
        """The request has ended."""
        accounts, self._accounts = self._accounts, []
        for account in accounts:
            account.at_work -= 1


NO_PERMIT: Final = Permit([])


class _Account:
    """What one key or tenant has used."""

    def __init__(self, scope: str, name: str, where: str) -> None:
        self._scope = scope
        self._where = where
        self._who = f"{scope} '{name}'" if name else "clients without a key"
        self.rates = NO_RATES
        self._requests: _Bucket | None = None
        self._tokens: _Bucket | None = None
        self.at_work = 0

    def change(self, rates: Rates, now: float) -> None:
        self.rates = rates
        self._requests = _bucket(self._requests, rates.requests_per_minute, now)
        self._tokens = _bucket(self._tokens, rates.tokens_per_minute, now)

    def check_request(self, now: float) -> None:
        most = self.rates.concurrent_requests
        if most is not None and self.at_work >= most:
            raise self._refused("concurrent_requests", f"{most:,} requests at a time", _SOON)
        if self._requests is not None and (wait := self._requests.seconds_until(1, now)) > 0:
            raise self._refused("requests_per_minute", f"{self.rates.requests_per_minute:,g} requests a minute", wait)

    def enter(self) -> None:
        self.at_work += 1
        if self._requests is not None:
            self._requests.take(1)

    def hold(self, now: float) -> None:
        self.at_work += 1
        if self._requests is not None:
            self._requests.take_what_is_there(1, now)

    def note(self, tokens: int, now: float) -> None:
        if self._tokens is not None:
            self._tokens.take_what_is_there(tokens, now)

    def check_tokens(self, tokens: int, now: float) -> None:
        if self._tokens is not None and (wait := self._tokens.seconds_until(tokens, now)) > 0:
            raise self._refused("tokens_per_minute", f"{self.rates.tokens_per_minute:,g} tokens a minute", wait)

    def spend(self, tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens)

    def is_as_new(self, now: float) -> bool:
        return not self.at_work and all(each is None or each.is_full(now) for each in (self._requests, self._tokens))

    def _refused(self, limit: str, allowed: str, wait: float) -> RateLimited:
        seconds = max(1, math.ceil(wait))
        return RateLimited(
            f"{self._who} may have {allowed}{self._where} (limits.{self._scope}.{limit}); try again in {seconds} s",
            limit=f"{self._scope}.{limit}",
            retry_after=seconds,
        )


class _Bucket:
    """A minute's worth at most, refilled evenly. May be taken below zero; then it takes longer to fill."""

    __slots__ = ("_at", "_level", "_most", "_per_second")

    def __init__(self, per_minute: float, now: float) -> None:
        self._most = self._level = max(1.0, per_minute)
        self._per_second = per_minute / 60
        self._at = now

    def changed(self, per_minute: float, now: float) -> "_Bucket":
        """Another minute's worth, of which no more is there than there was."""
        bucket = _Bucket(per_minute, now)
        self._refill(now)
        bucket._level = min(bucket._most, self._level)
        return bucket

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self._level == self._most

    def seconds_until(self, amount: float, now: float) -> float:
        """How long until so much is there, or all that it holds."""
        self._refill(now)
        return max(0.0, (min(amount, self._most) - self._level) / self._per_second)

    def take(self, amount: float) -> None:
        self._level -= amount

    def take_what_is_there(self, amount: float, now: float) -> None:
        self._refill(now)
        self._level = min(self._level, max(0.0, self._level - amount))

    def _refill(self, now: float) -> None:
        self._level = min(self._most, self._level + (now - self._at) * self._per_second)
        self._at = now


def _bucket(known: _Bucket | None, per_minute: float | None, now: float) -> _Bucket | None:
    if per_minute is None:
        return None
    return _Bucket(per_minute, now) if known is None else known.changed(per_minute, now)
