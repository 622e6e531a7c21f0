"""Payloads: byte for byte vLLM's own where those are recorded, and readable as the same events in every release's form."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from indexer.events import NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.wire import decode
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest
from simulations.fake.encoding import EventEncoder
from simulations.fake.releases import Release
from simulations.sequences import TokenPrompt

GOLDEN = Path(__file__).parents[2] / "golden" / "events_vllm_0.32.0.json"
RECIPE = Recipe(block_size=4)
RELEASES = ["0.11.0", "0.14.0", "0.18.0", "0.22.0", "0.24.0", "0.32.0"]


def golden() -> list[dict[str, Any]]:
    # Hashes as bytes are made from tokens, and those cases' are not.
    cases: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]
    return [case for case in cases if case["rank"] == 0 and '"hex"' not in json.dumps(case["events"])]


def event(fields: dict[str, Any]) -> KVEvent:
    kinds: dict[str, type[BlockStored | BlockRemoved | AllBlocksCleared]] = {
        "BlockStored": BlockStored,
        "BlockRemoved": BlockRemoved,
        "AllBlocksCleared": AllBlocksCleared,
    }
    values = {name: value for name, value in fields.items() if name != "type"}
    for name in ("token_ids", "extra_keys"):
        if name in values:
            values[name] = msgspec.Raw(msgspec.msgpack.encode(values[name]))
    return kinds[fields["type"]](**values)


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["name"])
def test_the_newest_form_is_vllms_byte_for_byte(case: dict[str, Any]) -> None:
    events = [event(fields) for fields in case["events"]]
    assert EventEncoder(Release(), RECIPE).encode(case["timestamp"], events, 0).hex() == case["payload"]


def life(lora: Lora | None = None) -> list[list[KVEvent]]:
    """Batches of an engine that stores, evicts, stores again and is cleared."""
    engine = Engine(EngineConfig(recipe=RECIPE, num_gpu_blocks=9, max_model_len=32))
    batches = []
    for number, tokens in enumerate([range(20), range(50, 70), range(20), range(9)]):
        extras = Extras(lora=lora, salt="s" if number == 1 else None)
        engine.add(EngineRequest(id=str(number), prompt=TokenPrompt(list(tokens), extras), max_tokens=9))
        while engine.has_work:
            batches.append(engine.complete(engine.schedule(), lambda _: 7).events)
        if number == 2:
            engine.reset_prefix_cache()
    return [batch for batch in batches if batch]


def without(event: KVEvent, release: Release) -> KVEvent:
    """What is left of an event in the arrays of an older release."""
    if release.num_stored_fields >= 11 or isinstance(event, AllBlocksCleared):
        return event
    event = msgspec.structs.replace(event, group_idx=None)
    if isinstance(event, BlockStored):
        event = msgspec.structs.replace(event, kv_cache_spec_kind=None)
        if release.num_stored_fields < 8:
            event = msgspec.structs.replace(event, extra_keys=NIL)
        if release.num_stored_fields < 7:
            event = msgspec.structs.replace(event, lora_name=None)
    return event


@pytest.mark.parametrize("has_int_hashes", [True, False], ids=["ints", "bytes"])
@pytest.mark.parametrize("version", RELEASES)
def test_every_release_is_read_as_the_same_events(version: str, has_int_hashes: bool) -> None:
    release = Release(version)
    encoder = EventEncoder(release, RECIPE, has_int_hashes=has_int_hashes)
    for batch in life():
        read = decode(encoder.encode(1.5, batch, 3))
        assert (read.timestamp, read.rank, read.skipped) == (1.5, 3, ())
        assert read.events == [without(event, release) for event in batch]


@pytest.mark.parametrize("lora", [None, Lora("adapter", "/adapters/one", 1)], ids=["base", "lora"])
def test_hashes_as_bytes_are_the_whole_digests(lora: Lora | None) -> None:
    encoder = EventEncoder(Release(), RECIPE, has_int_hashes=False, lora_paths={"adapter": "/adapters/one"})
    payloads = [msgspec.msgpack.decode(encoder.encode(0, batch, 0)) for batch in life(lora)]
    first = payloads[0][1][0]
    chain = Chain(RECIPE, list(range(20)), Extras(lora=lora))
    assert first["block_hashes"] == [chain.digest(index) for index in range(5)]
    removed = [event["block_hashes"][0] for _, events, _ in payloads for event in events if "Removed" in event["type"]]
    assert removed
    assert all(len(digest) == 32 for digest in removed)
    assert set(removed) & set(first["block_hashes"])


def test_digests_of_evicted_blocks_are_forgotten_in_time() -> None:
    recipe = Recipe(block_size=1)
    encoder = EventEncoder(Release(), recipe, has_int_hashes=False)
    engine = Engine(EngineConfig(recipe=recipe, num_gpu_blocks=65, max_model_len=64))
    for number in range(200):
        tokens = [number * 100 + index for index in range(60)]
        engine.add(EngineRequest(id=str(number), prompt=TokenPrompt(tokens), max_tokens=1))
        while engine.has_work:
            encoder.encode(0, engine.complete(engine.schedule(), lambda _: 1).events, 0)
    digests = encoder._digests
    assert digests is not None
    assert len(digests._known) < 5000
    assert engine.cached().keys() <= digests._known.keys()
