"""Real vLLM 0.32.0 engines that share a store: what kvlb says can be loaded is what they load.

Run by ``scripts/test-real tests/real/test_stores_real.py``; each test starts two engines, about two minutes on two cores. Same
tokens from a cache that was loaded as from one that was computed: the weights are random, and outputs depend on the cache.
"""

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.real.engines import BLOCK_SIZE
from tests.real.environment import store_packages
from tests.real.lmcache import CHUNK, lmcache_server
from tests.real.pairs import fetched
from tests.real.stores import eventually, fleet, free_port, prompt, server

pytestmark = pytest.mark.real

SHIM = {"PYTHONPATH": str(Path(__file__).parent)}


def transfer(connector: str, role: str = "kv_both", **extra: Any) -> list[str]:
    config = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(config)]


def offloading(root: Path, chunk: int = 1, *, is_described: bool = True) -> list[str]:
    """Tiers: 2 MiB of CPU memory, then files."""
    tier = {"type": "fs", "root_dir": str(root), "n_read_threads": 2, "n_write_threads": 2, "enable_kv_events": True}
    return transfer(
        "OffloadingConnector",
        cpu_bytes_to_use=2 << 20,
        block_size=chunk * BLOCK_SIZE,
        spec_name="CpuAndFiles",
        spec_module_path="vllm_cpu_offload",
        self_describing_kv_events=is_described,
        secondary_tiers=[{**tier, "locality": "REMOTE"}],
    )


def test_folders_of_the_example_connector(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    args = transfer("ExampleConnector", shared_storage_path=str(shared))
    store = f'name = "dir"\nconnector = "example"\npath = "{shared}"\nblock_size = {BLOCK_SIZE}\n'
    with fleet(tmp_path, store, args, args) as found:
        first, second = found.names
        asked = prompt(1)
        with found.without(1):
            replica, cached, text = found.complete(asked)
        assert (replica, cached) == (first, 0)
        eventually("folder seen", lambda: found.store()["blocks"] == 1)
        eventually("gpu events", lambda: found.explain(asked)[first]["tiers"] == {"GPU": 96})
        assert found.loadable(asked) == {first: {}, second: {"store:dir": 96}}
        longer = [*asked, *prompt(2, 60)]
        assert found.loadable(longer)[second] == {}, "a prompt that goes on finds nothing"
        with found.without(0):
            replica, cached, again = found.complete(asked)
        assert (replica, cached, again) == (second, 96, text)
        assert found.metric("kvlb_loadable_tokens_total", source="store:dir", result="loaded") == 96
        assert found.metric("kvlb_loadable_tokens_total", result="missed") == 0
        with found.without(0):
            _, cached, _ = found.complete(longer)
        assert cached == 96, "by its own GPU now, and no more"

        for length in (64, 65, 66, 97, 98):  # where blocks end, and the connector's own way to count
            asked = prompt(length, length)
            with found.without(1):
                found.complete(asked)
            kept = len(list(shared.iterdir()))
            eventually("folder seen", lambda: found.store()["blocks"] == kept)  # noqa: B023
            predicted = found.loadable(asked)[second].get("store:dir", 0)
            with found.without(0):
                _, cached, _ = found.complete(asked)
            assert cached == predicted, f"{length} tokens"

        shutil.rmtree(shared)
        eventually("store down", lambda: not found.store()["up"])
        assert "No such file" in found.store()["problem"]
        assert found.loadable(prompt(98, 98)).get(second) == {}
        assert found.metric("kvlb_store_up", store="dir") == 0
        shared.mkdir()
        eventually("store up again", lambda: found.store()["up"])


def test_files_and_memory_of_the_offloading_connector(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    store = f'name = "files"\nconnector = "files"\npath = "{shared}"\ninterval_seconds = 0.2\n'
    with fleet(tmp_path, store, offloading(shared), offloading(shared), env=SHIM) as found:
        first, second = found.names
        asked = prompt(1)
        with found.without(1):
            replica, cached, text = found.complete(asked)
        assert (replica, cached) == (first, 0)
        eventually("files seen", lambda: found.store()["blocks"] >= 3)
        eventually("cpu events", lambda: found.explain(asked)[first]["tiers"] == {"GPU": 96, "CPU": 96})
        eventually("loadable", lambda: found.loadable(asked) == {first: {}, second: {"store:files": 96}})
        longer = [*asked[:64], *prompt(2, 60)]
        assert found.loadable(longer)[second] == {"store:files": 64}
        with found.without(0):
            replica, cached, again = found.complete(asked)
        assert (replica, cached, again) == (second, 96, text)
        assert found.metric("kvlb_loadable_tokens_total", source="store:files", result="loaded") == 96

        found.engines[0].post("/reset_prefix_cache")
        with found.without(1):
            found.complete(prompt(3, 40))  # a clear is published with the next step
        eventually("cleared", lambda: found.explain(asked)[first]["cached_tokens"] == 0)
        assert found.loadable(asked)[first] == {"CPU": 96}
        with found.without(1):
            replica, cached, again = found.complete(asked)
        assert (replica, cached, again) == (first, 96, text)
        assert found.metric("kvlb_loadable_tokens_total", source="CPU", result="loaded") == 96
        assert found.metric("kvlb_loadable_tokens_total", result="missed") == 0

        for length in (97, 96, 95, 64):  # where blocks end: the last token is computed by whoever loads all
            found.engines[0].post("/reset_prefix_cache")
            with found.without(1):
                found.complete(prompt(100 + length, 40))
            eventually("cleared", lambda: found.explain(asked)[first]["cached_tokens"] == 0)
            predicted = found.loadable(asked[:length])[first]
            with found.without(1):
                _, cached, _ = found.complete(asked[:length])
            assert cached == sum(predicted.values()), f"{length} tokens: {predicted}"

        gone = prompt(4)
        with found.without(1):
            found.complete(gone)
        eventually("files seen", lambda: found.loadable(gone)[second] == {"store:files": 96})
        for file in shared.rglob("*.bin"):
            file.unlink()
        eventually("files gone", lambda: found.store()["blocks"] == 0)
        assert found.loadable(gone)[second] == {}
        with found.without(0):
            _, cached, _ = found.complete(gone)
        assert cached == 0


@pytest.mark.long
@pytest.mark.parametrize("is_described", [True, False])
def test_chunks_of_several_blocks(tmp_path: Path, is_described: bool) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    store = f'name = "files"\nconnector = "files"\npath = "{shared}"\ninterval_seconds = 0.2\n'
    args = offloading(shared, 2, is_described=is_described)
    with fleet(tmp_path, store, args, args, env=SHIM) as found:
        first, second = found.names
        for seed in range(3):  # placeholders tell the size of chunks by several of them
            with found.without(1):
                found.complete(prompt(seed, 200))
        asked = prompt(0, 200)
        eventually("files seen", lambda: found.loadable(asked)[second] == {"store:files": 192})
        with found.without(0):
            _, cached, _ = found.complete(asked)
        assert cached == 192
        found.engines[0].post("/reset_prefix_cache")
        with found.without(1):
            found.complete(prompt(9, 40))
        eventually("cleared", lambda: found.explain(asked)[first]["cached_tokens"] == 0)
        for length in (200, 190, 130, 129, 128, 100):
            predicted = found.loadable(asked[:length])[first]
            with found.without(1):
                _, cached, _ = found.complete(asked[:length])
            assert cached == sum(predicted.values()), f"{length} tokens: {predicted}"
            found.engines[0].post("/reset_prefix_cache")
            with found.without(1):
                found.complete(prompt(1000 + length, 40))
            eventually("cleared", lambda: found.explain(asked)[first]["cached_tokens"] == 0)


@pytest.mark.long
def test_a_mooncake_store_that_is_asked(tmp_path: Path) -> None:
    rpc, http, metadata = (free_port() for _ in range(3))
    config = {
        "mode": "embedded",
        "metadata_server": f"http://127.0.0.1:{metadata}/metadata",
        "master_server_address": f"127.0.0.1:{rpc}",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": "64MB",
        "local_buffer_size": "64MB",
    }
    (tmp_path / "mooncake.json").write_text(json.dumps(config))
    path = f"{SHIM['PYTHONPATH']}:{store_packages('mooncake')}"
    env = {"PYTHONPATH": path, "MOONCAKE_CONFIG_PATH": str(tmp_path / "mooncake.json")}
    args = [
        "--kv-transfer-config",
        json.dumps(
            {
                "kv_connector": "MooncakeStoreConnector",
                "kv_connector_module_path": "vllm_cpu_mooncake",
                "kv_role": "kv_both",
            }
        ),
    ]
    binary = store_packages("mooncake") / "mooncake" / "mooncake_master"
    flags = [f"-rpc_address=127.0.0.1 -rpc_port={rpc} -metrics_host=127.0.0.1 -metrics_port={http}"]
    flags += [f"-enable_http_metadata_server=true -http_metadata_server_port={metadata}"]
    store = f'name = "moon"\nconnector = "mooncake"\nurl = "http://127.0.0.1:{http}"\ninterval_seconds = 0.2\n'
    store += "timeout_ms = 2000\ncache_seconds = 0.2\npause_seconds = 0.5\n"
    binary.chmod(0o755)
    with (
        server([str(binary), *" ".join(flags).split()], tmp_path / "master.log") as master,
        fleet(tmp_path, store, args, args, env=env) as found,
    ):
        first, second = found.names
        asked = prompt(1, 150)
        eventually("store up", lambda: found.store()["up"])
        with found.without(1):
            replica, cached, text = found.complete(asked)
        assert (replica, cached) == (first, 0)
        eventually("stored", lambda: found.loadable(asked)[second] == {"store:moon": 128})
        with found.without(0):
            replica, cached, again = found.complete(asked)
        assert (replica, cached, again) == (second, 128, text)
        assert found.metric("kvlb_store_events_total", store="moon", what="lookup_answered") > 0
        assert found.metric("kvlb_loadable_tokens_total", source="store:moon", result="loaded") == 128
        assert found.loadable(prompt(2, 150))[second] == {}
        for length in (96, 97, 128):
            asked_of = prompt(length, length)
            with found.without(1):
                found.complete(asked_of)
            eventually("stored", lambda: found.loadable(asked_of)[second])  # noqa: B023
            predicted = found.loadable(asked_of)[second]
            with found.without(0):
                _, cached, _ = found.complete(asked_of)
            assert cached == sum(predicted.values()), f"{length} tokens: {predicted}"
        master.kill()
        eventually("store down", lambda: not found.store()["up"])
        assert found.loadable(asked)[second] == {}
        with found.without(1):
            assert found.complete(prompt(3, 60))[0] == first


@pytest.mark.long
def test_lmcaches_server_by_the_events_of_its_engines(tmp_path: Path) -> None:
    with lmcache_server(tmp_path) as shared:
        args = transfer("LMCacheMPConnector", **shared.extra)
        store = (
            f'name = "lm"\nconnector = "lmcache"\nurl = "{shared.url}"\ninterval_seconds = 0.2\npause_seconds = 0.5\n'
        )
        shared.wait_ready()
        with fleet(tmp_path, store, args, args, env=shared.env) as found:
            first, second = found.names

            def announced(asked: list[int]) -> dict[str, int]:
                """What the second can load of what the first has computed: told with the next steps of the first."""

                def look() -> dict[str, int]:
                    with found.without(1):
                        found.complete(prompt(2, 40))
                    return found.loadable(asked)[second]

                eventually("announced", lambda: bool(look()))
                return found.loadable(asked)[second]

            def loaded(asked: list[int], predicted: dict[str, int], text: list[int]) -> None:
                """The second has of this prompt what was predicted, by its answer and by its metrics, and says the same."""
                before = fetched(found.engines[1])
                with found.without(0):
                    replica, cached, again = found.complete(asked)
                assert (replica, cached, again) == (second, sum(predicted.values()), text)
                assert fetched(found.engines[1]) - before == cached

            eventually("store up", lambda: found.store()["up"])
            asked = prompt(1, 150)
            with found.without(1):
                replica, cached, text = found.complete(asked)
            assert (replica, cached) == (first, 0)
            assert announced(asked) == {"store:lm": 128}
            assert found.explain(asked)[first]["tiers"] == {"GPU": 128}
            loaded(asked, {"store:lm": 128}, text)
            assert found.metric("kvlb_loadable_tokens_total", source="store:lm", result="loaded") == 128
            for length in (63, 64, 128, 129):  # where chunks end
                of_length = prompt(length, length)
                with found.without(1):
                    _, _, said = found.complete(of_length)
                loaded(of_length, announced(of_length) if length >= CHUNK else {}, said)
            assert found.metric("kvlb_loadable_tokens_total", result="missed") == 0

            cleared = prompt(3, 150)
            with found.without(1):
                found.complete(cleared)
            assert announced(cleared) == {"store:lm": 128}
            clear(shared.url)
            eventually("seen to be empty", lambda: found.loadable(cleared)[second] == {})
            with found.without(0):
                assert found.complete(cleared)[1] == 0

            gone = prompt(4, 150)
            with found.without(1):
                _, _, text = found.complete(gone)
            assert announced(gone) == {"store:lm": 128}
            shared.kill()
            eventually("store down", lambda: not found.store()["up"])
            assert found.store()["problem"]
            assert found.metric("kvlb_store_up", store="lm") == 0
            assert found.loadable(gone) == {first: {}, second: {}}
            assert found.explain(gone)[first]["tiers"] == {"GPU": 128}, "its own are its own"
            assert found.complete(gone) == (first, 128, text)
            with found.without(0):
                assert found.complete(gone) == (second, 0, text)

            shared.start()
            shared.wait_ready()
            eventually("store up again", lambda: found.store()["up"])
            assert found.metric("kvlb_store_up", store="lm") == 1
            assert found.loadable(asked) == found.loadable(gone) == {first: {}, second: {}}, (
                "another life, nothing in it"
            )
            anew = prompt(5, 150)
            eventually("engines are back", lambda: "triggering recovery" in found.engines[0].tail(400))
            eventually("engines are back", lambda: "triggering recovery" in found.engines[1].tail(400))
            with found.without(1):
                _, _, text = found.complete(anew)
            loaded(anew, announced(anew), text)


@pytest.mark.long
def test_lmcaches_server_whose_engines_tell_nothing(tmp_path: Path) -> None:
    """As they come: what is kept is loaded, and kvlb says that it cannot know."""
    with lmcache_server(tmp_path, None) as shared:
        args = transfer("LMCacheMPConnector", **shared.extra)
        store = f'name = "lm"\nconnector = "lmcache"\nurl = "{shared.url}"\ninterval_seconds = 0.2\n'
        shared.wait_ready()
        with fleet(tmp_path, store, args, env=shared.env) as found:
            eventually("store up", lambda: found.store()["up"])
            asked = prompt(1, 150)
            _, cached, text = found.complete(asked)
            assert cached == 0
            eventually("said so", lambda: found.metric("kvlb_store_events_total", store="lm", what="untold") == 2)
            found.complete(prompt(2, 40))
            assert found.loadable(asked) == {found.names[0]: {}}
            assert (tmp_path / "kvlb.log").read_text().count("lmcache.mp.mp_transfer_mode = lmcache_driven") == 1
            found.engines[0].post("/reset_prefix_cache")
            assert found.complete(asked)[1:] == (128, text)


def clear(url: str) -> None:
    """Have LMCache's server forget what it keeps, as an operator does."""
    with urllib.request.urlopen(
        urllib.request.Request(url + "/cache/clear", b"", method="POST"), timeout=10
    ) as response:
        assert response.status == 200
