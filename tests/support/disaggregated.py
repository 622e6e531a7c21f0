"""A prefill and a decode engine, fake ones, with a gateway before them, and one engine that does all by itself to compare with.

Knows what each connector needs in the settings.
"""

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from simulations.fake.transfers import ConnectorName
from simulations.fake_engine import FakeConfig, FakeEngine
from tests.support.engines import Fleet, config, fleet

CONNECTORS: tuple[ConnectorName, ...] = ("nixl", "nixl_push", "mooncake", "shared", "p2p_nccl")


class Pair:
    """The fleet, and who is who in it."""

    def __init__(self, made: Fleet, prefills: int) -> None:
        self.fleet = made
        self.front = made.front
        self.prefills: list[FakeEngine] = list(made.engines[:prefills])
        self.decodes: list[FakeEngine] = list(made.engines[prefills:])

    @property
    def prefill(self) -> FakeEngine:
        return self.prefills[0]

    @property
    def decode(self) -> FakeEngine:
        return self.decodes[0]

    async def counted(self, name: str) -> dict[str, int]:
        """A metric of split requests by its labels, joined, without those that are 0."""
        found: Counter[str] = Counter()
        for labels, value in await self.front.samples(f"kvlb_disaggregation_{name}_total"):
            found[" ".join(labels[each] for each in sorted(labels))] += int(value)
        return {labels: count for labels, count in found.items() if count}

    def is_at_rest(self) -> bool:
        """Whether no lease is open, and no engine holds anything for anybody."""
        engines = [each for each in self.fleet.engines if each.is_running]
        for each in engines:
            each.process.figures()  # where what is overdue is given up
        return self.front.is_idle() and all(
            not (each.process.transfers.kept or each.process.transfers.places)
            and all(rank.engine.is_idle and not rank.engine.kv_cache_usage for rank in each.process.ranks)
            for each in engines
        )


@contextlib.asynccontextmanager
async def pair(
    connector: ConnectorName,
    *,
    prefills: int = 1,
    decodes: int = 1,
    engine: FakeConfig | None = None,
    decode_engine: FakeConfig | None = None,
    **settings: Any,
) -> AsyncIterator[Pair]:
    """Engines of both roles; ``settings`` are those of ``[disaggregation]``, and sections besides."""
    store = uuid.uuid4().hex
    first = msgspec.structs.replace(engine or config(), connector=connector, store=store)
    second = msgspec.structs.replace(decode_engine or first, connector=connector, store=store)
    sections = {name: settings.pop(name) for name in list(settings) if isinstance(settings[name], dict)}
    replicas: list[dict[str, Any]] = [{"role": "prefill", "transfer": _bootstrap} for _ in range(prefills)]
    replicas += [{"role": "decode", "transfer": _address} for _ in range(decodes)]
    if connector == "p2p_nccl":
        replicas = [{**each, "transfer": _address} for each in replicas]
    disaggregation = {"name": connector, "threshold_tokens": 0, **settings}
    configs = [first] * prefills + [second] * decodes
    async with fleet(*configs, replicas=replicas, disaggregation=disaggregation, **sections) as made:
        yield Pair(made, prefills)


def text(body: bytes) -> str:
    """What an answer of any path says, whole or streamed."""
    if not body.startswith(b"{"):
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
        return "".join(_said(json.loads(event)) for event in events)
    return _said(json.loads(body))


def _said(told: dict[str, Any]) -> str:
    choices = told.get("choices") or []
    if choices:
        first = choices[0]
        said = first.get("text") or (first.get("message") or first.get("delta") or {}).get("content") or ""
        return f"{said}{first.get('token_ids') or ''}"
    if isinstance(told.get("delta"), str):
        return str(told["delta"])
    if isinstance(told.get("delta"), dict):
        return str(told["delta"].get("text", ""))
    content = told.get("content") or [part for item in told.get("output") or [] for part in item.get("content", [])]
    return "".join(part.get("text", "") for part in content)


def _bootstrap(engine: FakeEngine) -> dict[str, Any]:
    return {"bootstrap": engine.url}


def _address(engine: FakeEngine) -> dict[str, Any]:
    return {"address": engine.url.removeprefix("http://")}
