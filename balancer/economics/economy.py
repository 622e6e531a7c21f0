"""What it costs this fleet to move a cache: which link leads from where to which replica, and what a model's prompts weigh.

Knows settings and shapes of models. Never knows requests or load. Of what nobody has said, nothing is known: then there is no
plan, and the engine does what it does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import msgspec

from balancer.addresses import place
from balancer.economics.hints import CPU, Tier, guarded, hint
from balancer.economics.links import LINKS, Link
from balancer.economics.mix import Control, Mix, Source, cheapest, load_weight
from balancer.economics.prefill import Prefill
from balancer.economics.settings import LinkSettings, ModelSettings, is_url
from balancer.economics.shape import CacheShape

STORE: Final = "store:"
"""Before the name of a shared store, among the places to load from."""

PREFILL: Final = "prefill"
"""All prefill replicas, among the places that prompts come from; one of them is its URL."""

OWN: Final = {CPU: LINKS["ram-pcie4"], "STORAGE/LOCAL": LINKS["nvme-pcie4"]}
"""Links to tiers of replicas' own machines, where nobody says which; the slower of those that are common."""


NO_WAITS: Final[Mapping[str, float]] = {}


class Place(NamedTuple):
    """Where so many further leading tokens of a prompt lie, that are loaded in multiples of ``chunk`` tokens of the prompt."""

    name: str
    tokens: int
    chunk: int = 1


class Economy:
    """Links and weights of one fleet. Changes nothing."""

    def __init__(
        self,
        links: Sequence[LinkSettings] = (),
        models: Sequence[ModelSettings] = (),
        shapes: Mapping[str, CacheShape] | None = None,
        stores: Mapping[str, Link] | None = None,
        transfer: Link | None = None,
    ) -> None:
        """``shapes`` are those of models that have a ``config``, ``stores`` links to stores as their own settings have them.

        ``transfer`` is the link from prefill replicas to decode replicas of which ``links`` say nothing.
        """
        self._links: dict[tuple[str, tuple[str, int] | None], Link] = {}
        for name, link in {**OWN, **{STORE + name: link for name, link in (stores or {}).items()}}.items():
            self._links[name, None] = link
        if transfer is not None:
            self._links[PREFILL, None] = transfer
        for at, each in enumerate(links):
            made, source = each.made(f"links[{at}]"), _origin(each.source) if is_url(each.source) else each.source
            if not each.replicas:
                self._links[source, None] = made
            for url in each.replicas:
                self._links[source, place(url)] = made
        self.has_transfers = any(source == PREFILL or is_url(source) for source, _ in self._links)
        """Whether any link leads from one replica to another."""
        self._shapes = dict(shapes or {})
        for model in models:
            if model.bytes_per_token is not None:
                self._shapes[model.name] = CacheShape.uniform(model.bytes_per_token, "as given")

    def __repr__(self) -> str:
        return f"<Economy {len(self._links)} links, {len(self._shapes)} models>"

    def link(self, endpoint: str, source: str) -> Link | None:
        """The way from there to this endpoint's replicas."""
        return self._links.get((source, place(endpoint))) or self._links.get((source, None))

    def transfer(self, prefill: str, decode: str) -> Link | None:
        """The way from one endpoint's replicas to another one's; what names the first goes before what does not."""
        return self.link(decode, _origin(prefill)) or self.link(decode, PREFILL)

    def shape(self, models: Iterable[str]) -> CacheShape | None:
        """What prompts of a model weigh that goes by these names."""
        return next((self._shapes[name] for name in models if name in self._shapes), None)

    def plan(
        self,
        endpoint: str,
        models: Iterable[str],
        prompt_tokens: int,
        cached_tokens: int,
        loadable: Sequence[Place],
        prefill: Prefill,
        control: Control,
        *,
        waits: Mapping[str, float] = NO_WAITS,
        price: float = 1.0,
    ) -> Mix | None:
        """The cheapest mix that a replica can be made to do; None where a link or a weight is not known.

        ``loadable`` stand in the engine's order; ``waits`` is how many seconds loads from there have to wait for others, and
        ``price`` what a second of the replica costs all who wait for it.
        """
        shape = self.shape(models)
        if shape is None:
            return None
        sources = []
        for source in self._sources(endpoint, cached_tokens, loadable):
            if source is None:
                return None
            link = source.link
            weight = load_weight(price, link, shape, prefill, source.reach - source.start, source.start)
            if wait := waits.get(source.name):
                link = msgspec.structs.replace(link, setup=link.setup + wait)
            sources.append(msgspec.structs.replace(source, link=link, weight=weight))
        return cheapest(prompt_tokens, cached_tokens, sources, prefill, shape, control)

    def hint(
        self, endpoint: str, cached_tokens: int, loadable: Sequence[Place], mix: Mix, control: Control
    ) -> dict[str, Any]:
        """What a replica must be told so that it does what was planned by ``plan``, with the same arguments as there."""
        sources = [source for source in self._sources(endpoint, cached_tokens, loadable) if source is not None]
        return hint(mix, sources, {source.name: tier_of(source.name) for source in sources}, control)

    def guarded(
        self, fields: dict[str, Any], mix: Mix | None, places: Iterable[str], poor: AbstractSet[str], control: Control
    ) -> dict[str, Any]:
        """These fields, and what keeps an engine from loading more than that from ``poor`` ones among these places."""
        return guarded(fields, mix, {name: tier_of(name) for name in places}, poor, control)

    def _sources(self, endpoint: str, cached_tokens: int, loadable: Sequence[Place]) -> Iterator[Source | None]:
        """The places as sources, None for one that no link leads from; those that no filter tells apart are always read."""
        at, tiers = cached_tokens, [tier_of(each.name) for each in loadable]
        for number, (name, tokens, chunk) in enumerate(loadable):
            tier, link = tiers[number], self.link(endpoint, name)
            others = tiers[:number] + tiers[number + 1 :]
            optional = tier.is_optional and not any(other.matches(tier) for other in others)
            yield None if link is None else Source(name, link, at + tokens, chunk, optional, at)
            at += tokens


def _origin(url: str) -> str:
    """One spelling of an endpoint as a place to load from."""
    return "http://{}:{}".format(*place(url))


def tier_of(source: str) -> Tier:
    """How a filter of the engine names a place; a shared store is storage somewhere else."""
    if source.startswith(STORE):
        return Tier("STORAGE", "REMOTE")
    medium, _, locality = source.partition("/")
    return Tier(medium, locality or None)
