"""``balancer/ends.py``: what engines are asked, and what becomes of their answers, right ones and odd ones."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from balancer.checks.facts import Address, Cache, Endpoint, Facts, SharedStore
from balancer.ends import first_address, with_ends
from balancer.timeouts import TimeoutSettings
from balancer.upstream import open_session
from tests.support.upstream import Received, Upstream, upstream
from tests.support.waiting import run

TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def info(host: str = "127.0.0.1", port: int = 5600, **config: Any) -> bytes:
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": port}
    made = {"model_config": {"model": "m", "dtype": "torch.float32"}, "kv_transfer_config": TRANSFER, **config}
    return json.dumps({"vllm_config": made, "vllm_env": environment}).encode()


def cache(name: str, url: str, role: str = "both", **changes: Any) -> Cache:
    return msgspec.structs.replace(Cache(replica=name, endpoint=url, role=role, models=("m",)), **changes)


def fleet(*caches: Cache, name: tuple[str, ...] = ("nixl",), **changes: Any) -> Facts:
    endpoints = tuple(Endpoint(url=each.endpoint) for each in caches)
    made = Facts(kvlb="1", endpoints=endpoints, caches=caches, disaggregation=name)
    return msgspec.structs.replace(made, **changes)


async def asked(given: Facts, *, probe: bool = False, headers: Mapping[str, str] | None = None) -> dict[str, Cache]:
    session = open_session(TimeoutSettings())
    try:
        found = await with_ends(session, given, headers or {}, probe=probe)
    finally:
        await session.close()
    assert len(found.caches) == len(given.caches)
    return {each.replica: each for each in found.caches}


def questions(of: Upstream) -> list[str]:
    return [each.path for each in of.questions]


def test_engines_of_a_fleet_without_roles_and_stores_are_not_asked() -> None:
    async def check() -> None:
        async with upstream() as engine:
            found = await asked(fleet(cache("a", engine.url)), probe=True)
            assert found == {"a": cache("a", engine.url)}
            assert questions(engine) == []

    run(check())


def test_what_they_tell_is_taken_over_and_its_address_is_tried() -> None:
    async def check() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, upstream() as first, upstream() as second:
            first.paths["/server_info"] = info(port=port - 1, cache_config={"cache_dtype": "fp8"})
            given = fleet(
                cache("p", first.url, "prefill", rank=1), cache("d", second.url, "decode", cache_dtype="auto")
            )
            found = await asked(given, headers={"Authorization": "Bearer key"})
            assert found["p"].end.addresses == (Address("127.0.0.1", port),), "of rank 1 it is the port behind"
            assert (found["p"].end.dtype, found["p"].cache_dtype) == ("float32", "fp8")
            assert found["p"].end.connectors == ("NixlConnector",)
            assert found["d"] == given.caches[1], "one that tells nothing is as it was"
            assert first.questions[0].values("Authorization") == ["Bearer key"]
            assert questions(first) == ["/server_info"], "nothing is sent without a probe"

    run(check())


def test_a_port_at_which_nobody_listens_is_told() -> None:
    async def check() -> None:
        async with upstream() as engine:
            engine.paths["/server_info"] = info(port=1)
            found = await asked(fleet(cache("p", engine.url, "prefill"), cache("d", engine.url, "decode")))
            (address,) = found["p"].end.addresses
            assert address.problem is not None
            assert "refused" in address.problem
            assert found["d"].end.addresses == (), "nobody has to reach it"

    run(check())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", ""])
def test_what_is_no_address_is_not_tried(host: str) -> None:
    async def check() -> None:
        async with upstream() as engine:
            engine.paths["/server_info"] = info(host=host)
            found = await asked(fleet(cache("p", engine.url, "prefill"), cache("d", engine.url, "decode")))
            assert found["p"].end.addresses == (Address(host, 5600),)

    run(check())


def test_another_machines_own_address_is_not_tried_here() -> None:
    async def check() -> None:
        given = fleet(
            cache("p", "http://192.0.2.1:1", "prefill", address="127.0.0.1:1"), cache("d", "http://192.0.2.2:1", "decode"),
            name=("p2p_nccl",), endpoints=(Endpoint(url="http://192.0.2.2:1", problem="lost"),),
        )  # fmt: skip
        session = _Refusing()
        found = await with_ends(session, given, {}, probe=False)  # type: ignore[arg-type]
        assert found.caches[0].end.addresses == (Address("127.0.0.1", 1),)
        assert session.asked == ["http://192.0.2.1:1/server_info?config_format=json"], "one that is lost is not asked"

    run(check())


class _Refusing:
    """A session of which every request fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, url: str, **_: object) -> Any:
        self.asked.append(url)
        raise ConnectionRefusedError


def test_a_probe_of_what_does_not_answer_as_an_engine_is_no_proof() -> None:
    async def check() -> None:
        async with upstream() as engine:
            given = fleet(cache("p", engine.url, "prefill"), cache("d", engine.url, "decode"))
            for body, is_fetchable in (
                (b"nonsense", None),
                (b'{"usage": {"prompt_tokens": 3}}', False),
                (b'{"kv_transfer_params": {}}', False),
                (
                    b'{"kv_transfer_params": {"remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": null}}',
                    False,
                ),
            ):
                engine.paths["/v1/completions"] = body
                end = (await asked(given, probe=True))["p"].end
                assert (end.is_fetchable, end.addresses) == (is_fetchable, ()), body
            odd = {"remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": 7, "remote_port": "x"}
            engine.paths["/v1/completions"] = json.dumps({"kv_transfer_params": odd}).encode()
            end = (await asked(given, probe=True))["p"].end
            assert (end.is_fetchable, end.addresses) == (True, ())

    run(check())


def test_the_answer_of_a_probe_names_the_address_and_its_blocks_are_let_go() -> None:
    async def check() -> None:
        async with upstream() as first, upstream() as second:
            bodies: list[dict[str, Any]] = []

            async def answer(request: Received) -> None:
                bodies.append(json.loads(request.body))
                told = {
                    "remote_engine_id": "e",
                    "remote_block_ids": [[1]],
                    "remote_host": "127.0.0.1",
                    "remote_port": 1,
                }
                request.answer(json.dumps({"kv_transfer_params": told}).encode())

            first.paths["/v1/completions"] = second.paths["/v1/completions"] = answer
            first.paths["/server_info"] = info(host="0.0.0.0")
            found = await asked(fleet(cache("p", first.url, "prefill"), cache("d", second.url, "decode")), probe=True)
            (address,) = found["p"].end.addresses
            assert (address.host, address.port) == ("127.0.0.1", 1), "what it tells others counts, not what was set"
            prefill, release = bodies
            assert (prefill["max_tokens"], prefill["kv_transfer_params"]["do_remote_decode"]) == (1, True)
            assert release["kv_transfer_params"]["remote_engine_id"] == "e"
            assert questions(second) == ["/server_info", "/v1/completions"]

    run(check())


def test_workers_behind_a_bootstrap_server_are_found_wherever_they_stand() -> None:
    async def check() -> None:
        async with upstream() as engine:
            workers = {"0": {"0": "tcp://127.0.0.1:1", "1": "tcp://[::1]:2"}, "1": {"0": 5, "1": "nonsense"}}
            engine.paths["/query"] = json.dumps({"0": {"engine_id": "e", "worker_addr": workers}, "1": {}}).encode()
            given = fleet(
                cache("p", engine.url, "prefill", bootstrap=engine.url),
                cache("d", engine.url, "decode"),
                name=("mooncake",),
            )
            found = (await asked(given))["p"].end.addresses
            assert [(each.host, each.port) for each in found[1:]] == [("127.0.0.1", 1), ("::1", 2)]
            assert found[0].problem is None, "the server itself answers"
            engine.paths["/query"] = b"[]"
            assert len((await asked(given))["p"].end.addresses) == 1

    run(check())


def test_replicas_that_share_a_store_are_asked_and_others_are_not() -> None:
    async def check() -> None:
        async with upstream() as first, upstream() as second:
            first.paths["/server_info"] = info()
            store = SharedStore(name="s", connector="files", replicas=("a",))
            found = await asked(fleet(cache("a", first.url), cache("b", second.url), stores=(store,)), probe=True)
            assert found["a"].end.dtype == "float32"
            assert (questions(first), questions(second)) == (["/server_info"], [])

    run(check())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:14579", ("10.0.0.1", 14579)),
        ("host:10.0.0.1,handshake:6301,notify:61005", ("10.0.0.1", 6301)),
        ("host: 10.0.0.1, handshake: 6301", ("10.0.0.1", 6301)),
        ("h:7300/7301:7400/7401", ("h", 7300)),
        ("[fd00::1]:5", ("fd00::1", 5)),
        ("h", None),
        ("h:", None),
        ("h:0", None),
        ("h:65536", None),
        ("h:999999", None),
        ("host:h,notify:5", None),
        ("", None),
        (":5", ("", 5)),
    ],
)
def test_addresses_are_read_as_the_settings_write_them(address: str, expected: tuple[str, int] | None) -> None:
    assert first_address(address) == expected
