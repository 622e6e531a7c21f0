"""``kvlb doctor`` and ``kvlb explain`` before engines with faults: each broken set-up has its line, from both sides."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

import balancer.doctor
from balancer import cli
from balancer.checks.finding import Result, Verdict
from balancer.doctor import SAMPLES
from simulations.fake_engine import FakeConfig, running
from tests.support.engines import MODEL, config, fleet
from tests.support.gateways import gateway
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

IDS = list(range(300, 370))  # 70 tokens: four blocks of 16, and 6 more


async def kvlb(*words: str) -> int:
    """The command in a thread of its own, as (exit code); what it prints is for ``capsys``."""
    return await asyncio.to_thread(cli.main, list(words))


class Doctor:
    """Runs the doctor and reads what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *words: str) -> tuple[int, dict[tuple[str, Verdict], str]]:
        """(exit code, what is told by check and verdict)."""
        code = await kvlb("doctor", "--json", "--timeout", "4", *words)
        answer = json.loads(self._capsys.readouterr().out)
        results = [Result(**each) for each in answer["results"]]
        return code, {(each.check, Verdict(each.verdict)): f"{each.told}; {each.remedy}" for each in results}


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


def faults(told: dict[tuple[str, Verdict], str]) -> set[str]:
    return {check for check, verdict in told if verdict in {Verdict.DEGRADED, Verdict.BROKEN}}


def test_a_sound_fleet_is_sound_from_both_sides(doctor: Doctor) -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            urls = [f"--replica={engine.url}" for engine in over.engines]
            for words in (["--gateway", over.front.url], urls):
                code, told = await doctor(*words, "--probe")
                assert (code, faults(told)) == (0, set())
                proven = {"recipe", "usage", "port", "replay", "knowledge", "clock", "tokenizer"}
                assert proven <= {each for each, verdict in told if verdict is Verdict.OK}
            assert over.front.is_idle()
            assert not over.front.service.decisions.last(1), "nothing went through the gateway"

    run(check())


def test_every_rank_of_an_endpoint_is_looked_at(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config(data_parallel_size=3)) as engine:
            code, told = await doctor("--probe", f"--replica={engine.url}")
            assert (code, faults(told)) == (0, set())
            assert ("ranks", Verdict.OK) in told
            assert {check for check, verdict in told if verdict is Verdict.SKIPPED} == {"salts"}
            assert await kvlb("doctor", f"--replica={engine.url}") == 0
            lines = capsys.readouterr().out.splitlines()
            address = engine.url.removeprefix("http://")
            assert f"ok        recipe     {', '.join(f'{address}#{rank}' for rank in range(3))}: " in "\n".join(lines)
            assert lines[-1].startswith("ok: ")

    run(check())


def test_an_idle_fleet_cannot_prove_its_recipe_and_says_so(doctor: Doctor) -> None:
    async def check() -> None:
        async with running(config()) as engine:
            code, told = await doctor(f"--replica={engine.url}")
            assert (code, faults(told)) == (0, set())
            assert "no traffic" in told["recipe", Verdict.SKIPPED]
            assert "--probe" in told["usage", Verdict.SKIPPED]

    run(check())


def test_a_discovery_that_finds_nothing_has_its_line_from_both_sides(doctor: Doctor, tmp_path: Path) -> None:
    found_by = {"discovery": {"name": "file", "path": str(tmp_path / "nowhere.toml")}}
    settings = tmp_path / "kvlb.toml"
    settings.write_text(f'[discovery]\nname = "file"\npath = "{tmp_path / "nowhere.toml"}"\n')

    async def check() -> None:
        async with gateway([], wait=False, **found_by) as front:
            await eventually(lambda: front.service.follower.problem is not None)
            for words in (["--gateway", front.url], ["--config", str(settings)]):
                code, told = await doctor(*words)
                assert code == 2
                assert "cannot read" in told["discovery", Verdict.BROKEN]
                assert "--replica" not in told["endpoint", Verdict.BROKEN]

    run(check())


OLD: dict[str, Any] = {"vllm_version": "0.22.0"}

BROKEN: list[tuple[FakeConfig, int, dict[str, str]]] = [
    (config(event_port=None, replay_port=None), 2, {"events": "KV events are off"}),
    (config(has_prefix_caching=False), 2, {"caching": "prefix caching is off"}),
    (config(replay_port=None), 1, {"replay": "has no replay socket", "knowledge": ""}),
    (config(has_usage_details=False), 1, {"usage": "--enable-prompt-tokens-details"}),
    (config(**OLD), 2, {"events": "does not tell where its KV events are", "seed": "PYTHONHASHSEED"}),
    (config(hash_algorithm="xxhash"), 1, {"recipe": "PYTHONHASHSEED"}),
]


@pytest.mark.parametrize(("engine", "code", "expected"), BROKEN)
def test_a_fault_of_an_engine_has_its_line(
    doctor: Doctor, engine: FakeConfig, code: int, expected: dict[str, str]
) -> None:
    async def check() -> None:
        async with running(engine) as broken:
            found, told = await doctor("--probe", f"--replica={broken.url}")
            assert found == code
            assert faults(told) <= set(expected)
            lines = {check: text for (check, verdict), text in told.items() if verdict is not Verdict.OK}
            assert all(text in lines[check] for check, text in expected.items() if text)

    run(check())


def test_a_seed_that_is_set_heals_an_old_engine(doctor: Doctor, tmp_path: Path) -> None:
    async def check() -> None:
        async with running(config(**OLD, hash_seed="0")) as engine:
            path = tmp_path / "kvlb.toml"
            path.write_text(
                f'[[replicas]]\nurl = "{engine.url}"\nevents = "{engine.events()}"\n'
                f'replay = "{engine.replay()}"\nhash_seed = "0"\n[log]\ndecisions = "{tmp_path / "log"}"\n'
                f'[snapshot]\npath = "{tmp_path / "index"}"\n'
            )
            code, told = await doctor("--probe", "--config", str(path))
            assert (code, faults(told)) == (0, set())
            assert ("snapshot", Verdict.OK) in told

    run(check())
    assert [each.name for each in tmp_path.iterdir()] == ["kvlb.toml"], "a fleet that is looked at leaves no trace"


def test_a_place_where_the_index_cannot_be_saved_and_one_that_is_too_small_are_found(
    doctor: Doctor, tmp_path: Path
) -> None:
    places = {tmp_path: "it is a folder itself", tmp_path / "no" / "index": f"there is no folder {tmp_path / 'no'}"}

    async def check() -> None:
        async with running(config()) as engine:
            for place, problem in places.items():
                path = tmp_path / "kvlb.toml"
                path.write_text(
                    f'[[replicas]]\nurl = "{engine.url}"\n[snapshot]\npath = "{place}"\n[index]\nmax_blocks = 100\n'
                )
                code, told = await doctor("--config", str(path))
                assert (code, faults(told)) == (2, {"snapshot", "memory"})
                assert problem in told["snapshot", Verdict.BROKEN]
                assert "at most 100 blocks, and the fleet 512" in told["memory", Verdict.DEGRADED]

    run(check())


def test_a_port_where_nobody_or_somebody_else_listens_is_told_apart(doctor: Doctor, tmp_path: Path) -> None:
    async def check() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        other = server.sockets[0].getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            closed = free.getsockname()[1]
        async with server, running(config()) as engine:
            for port, reason in ((closed, "refused"), (other, "no ZMQ handshake")):
                path = tmp_path / "kvlb.toml"
                path.write_text(f'[[replicas]]\nurl = "{engine.url}"\nevents = "tcp://127.0.0.1:{port}"\n')
                code, told = await doctor("--timeout", "1", "--config", str(path))
                assert (code, faults(told)) == (2, {"port"})
                assert reason in told["port", Verdict.BROKEN]

    run(check())


SETTINGS_FAULTS = [
    ("block_size = 64", ("recipe", Verdict.DEGRADED), "block_size is set to 64, the engine has 16; remove block_size"),
    ('topic = "kv@"', ("port", Verdict.BROKEN), "publishes under topic '', subscribed to 'kv@'; remove topic"),
]


@pytest.mark.parametrize(("setting", "line", "expected"), SETTINGS_FAULTS)
def test_a_setting_that_is_not_the_engines_is_found(
    doctor: Doctor, tmp_path: Path, setting: str, line: tuple[str, Verdict], expected: str
) -> None:
    async def check() -> None:
        async with running(config()) as engine:
            path = tmp_path / "kvlb.toml"
            path.write_text(f'[[replicas]]\nurl = "{engine.url}"\n{setting}\n')
            for words in ((), ("--probe",)):
                _, told = await doctor("--config", str(path), *words)
                assert line[0] in faults(told)
                assert expected in told[line]

    run(check())


def test_a_probe_whose_events_come_elsewhere_is_told(doctor: Doctor, tmp_path: Path) -> None:
    async def check() -> None:
        async with running(config()) as one, running(config()) as other:
            path = tmp_path / "kvlb.toml"
            path.write_text(
                f'[[replicas]]\nurl = "{one.url}"\nevents = "{other.events()}"\nreplay = "{other.replay()}"\n'
            )
            code, told = await doctor("--config", str(path), "--probe")
            assert (code, faults(told)) == (2, {"port"})
            assert "the probe was answered, and no event came" in told["port", Verdict.BROKEN]

    run(check())


def test_what_takes_long_is_told_while_it_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            closed = free.getsockname()[1]
        async with running(config()) as engine:
            path = tmp_path / "kvlb.toml"
            path.write_text(f'[[replicas]]\nurl = "{engine.url}"\nevents = "tcp://127.0.0.1:{closed}"\n')
            assert await kvlb("doctor", "--timeout", "1.5", "--config", str(path)) == 2
        told = capsys.readouterr()
        assert told.err == f"waiting up to 1.5 s for tcp://127.0.0.1:{closed}\n"
        assert "connection refused; open the port" in told.out
        assert "or mend events of [[replicas]]" in told.out

    run(check())


def test_what_traffic_shows_is_told_by_the_gateway(doctor: Doctor) -> None:
    async def check() -> None:
        async with fleet(config(has_usage_details=False)) as over:
            code, told = await doctor("--gateway", over.front.url)
            assert (code, faults(told)) == (0, set())
            for at in range(20):
                await over.post("/v1/completions", {"prompt": IDS, "max_tokens": 1, "cache_salt": str(at)})
            await over.settle()
            await over.post("/v1/completions", {"prompt": IDS, "max_tokens": 1, "cache_salt": "0"})
            code, told = await doctor("--gateway", over.front.url)
            assert (code, faults(told)) == (1, {"usage", "salts"})
            assert (
                "100% of the last 21 requests have a cache_salt, of which 20 differ" in told["salts", Verdict.DEGRADED]
            )

    run(check())


def test_a_lost_engine_is_found_through_the_gateway(doctor: Doctor) -> None:
    async def check() -> None:
        async with running(config()) as one, running(config()) as two, gateway([one.url, two.url]) as front:
            await two.stop()
            await eventually(lambda: bool(front.service.watchers[two.url].problem))
            code, told = await doctor("--gateway", front.url)
            assert (code, faults(told)) == (2, {"endpoint"})
            assert "cannot be used" in told["endpoint", Verdict.BROKEN]

    run(check())


def test_replicas_with_other_tokenizers_and_without_caching_are_found(doctor: Doctor) -> None:
    def paths(tokens: bytes) -> dict[str, bytes]:
        metrics = b'vllm:cache_config_info{engine="0",block_size="4",enable_prefix_caching="False"} 1.0\n'
        return {"/metrics": metrics, "/tokenize": b'{"tokens":%b}' % tokens}

    async def check() -> None:
        async with upstream(paths=paths(b"[1,2]")) as one, upstream(paths=paths(b"[1,3]")) as two:
            code, told = await doctor(f"--replica={one.url}", f"--replica={two.url}")
            assert (code, faults(told)) == (2, {"caching", "tokenizer"})
            lines = told["tokenizer", Verdict.BROKEN]
            assert f"{one.url} (tokenize)" in lines
            assert f"{two.url} (tokenize)" in lines
            assert not one.received, "no request was sent without --probe"

    run(check())


def test_an_engine_that_answers_nothing_is_given_up(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(request: Received) -> None:
        await request.gone.wait()

    async def check() -> None:
        async with upstream(paths={"/health": never}) as one, upstream(paths={"/tokenize": never}) as two:
            monkeypatch.setattr(balancer.doctor, "PROBE_SECONDS", 0.5)
            code, told = await doctor("--probe", f"--replica={one.url}", f"--replica={two.url}")
            assert (code, told["endpoint", Verdict.BROKEN].split(";")[0]) == (2, "cannot be used: no answer in time")
            assert "cannot be reached from here" in told["tokenizer", Verdict.DEGRADED]

    run(check())


def test_samples_are_asked_in_both_ways_of_every_engine() -> None:
    from balancer.checks.facts import Facts
    from balancer.doctor import diagnose, looking_at
    from balancer.settings import ReplicaSettings, Settings

    async def check() -> None:
        async with running(config()) as one, running(config(has_scale_out=False)) as two:
            settings = Settings(replicas=(ReplicaSettings(url=one.url), ReplicaSettings(url=two.url)))
            async with looking_at(settings, 4, print) as ask:
                facts: Facts = await diagnose(ask, api_key=None, probe=False, ports=True)
            ways = {(each.endpoint, each.sample, each.way) for each in facts.samples}
            both = {(one.url, name, way) for name in SAMPLES for way in ("render", "tokenize")}
            assert ways == both | {(two.url, name, "tokenize") for name in SAMPLES}

    run(check())


def test_engines_with_a_key_are_asked_with_it(doctor: Doctor) -> None:
    async def check() -> None:
        async with running(config(api_key="secret")) as engine:
            code, told = await doctor(f"--replica={engine.url}")
            assert code == 2
            assert (
                told["endpoint", Verdict.BROKEN] == "asks for a key; give --api-key KEY (kvlb serve: upstream.api_key)"
            )
            code, told = await doctor(f"--replica={engine.url}", "--api-key", "wrong")
            assert (code, told["endpoint", Verdict.BROKEN].split(";")[0]) == (2, "the key was refused")
            code, told = await doctor(f"--replica={engine.url}", "--api-key", "secret", "--probe")
            assert (code, faults(told)) == (0, set())

    run(check())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gateway", "http://127.0.0.1:9", "--replica", "http://h:1"], "--gateway: looks at a running gateway"),
        (["--gateway", "http://127.0.0.1:9"], "no gateway at http://127.0.0.1:9: connection refused"),
        (["--gateway", "nowhere"], "--gateway: 'nowhere' is not an endpoint"),
        (["--replica", "h:1"], "replicas[0].url: 'h:1' is not an endpoint"),
        (["--config", "/no/such.toml"], "--config: cannot read '/no/such.toml'"),
        (["--timeout", "0", "--replica", "http://h:1"], "--timeout: 0 cannot be used"),
        (["--nope"], "unknown argument --nope; did you mean --probe?"),
    ],
)
def test_wrong_usage_and_an_absent_gateway_are_one_line_and_three(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(["doctor", *words])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (3, "", 1)
    assert message in told.err


# Explain


def test_a_prompt_and_a_request_of_the_past_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            at = ["--gateway", over.front.url]
            tokens = ["--tokens", json.dumps(IDS)]
            assert await kvlb("explain", *at, *tokens) == 0
            assert "no signal: all candidates equal" in capsys.readouterr().out
            headers, _ = await over.post("/v1/completions", {"prompt": IDS, "max_tokens": 2}, **{"x-request-id": "r1"})
            await over.settle()
            chosen = headers["x-kvlb-replica"]

            assert await kvlb("explain", *at, *tokens, "--model", MODEL) == 0
            lines = capsys.readouterr().out.splitlines()
            mark, *mine = lines[2].split()
            other = lines[3].split()
            assert (mark, mine[:4], mine[-3:]) == ("*", [chosen, "64", "0", "0"], ["exact", "GPU", "64"])
            cost, others = (row[row.index("s") + 2] for row in (mine, other))  # behind the wait and the speed
            assert 10 * float(cost) < float(others)
            assert lines[4].startswith(f"{chosen}: it has the lowest cost, {cost[:6]}")
            assert f"; next is {other[0]} with {others[:6]}" in lines[4]

            assert await kvlb("explain", *at, *tokens, "--salt", "other") == 0
            assert "no signal: all candidates equal" in capsys.readouterr().out

            assert await kvlb("explain", *at, "--request-id", "r1", "--json") == 0
            (told,) = json.loads(capsys.readouterr().out)
            assert (told["request_id"], told["replica"], told["truth"]["cached_tokens"]) == ("r1", chosen, 0)

            for words, line in (
                (["--request-id", "r/2"], "--request-id: 'r/2' is not among the last 1 decisions"),
                (["--prompt", "x", "--model", "nope"], "the model 'nope' is not served here"),
            ):
                assert await kvlb("explain", *at, *words) == 2
                assert line in capsys.readouterr().err
            assert await kvlb("explain", "--gateway", over.engines[0].url, "--prompt", "x") == 3
            assert "it is no kvlb, or an older one" in capsys.readouterr().err

    run(check())


def test_a_chat_is_explained_with_the_tokens_of_its_template(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": "alpha beta gamma delta " * 10}]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(messages))

    async def check() -> None:
        async with fleet(config()) as over:
            await over.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
            await over.settle()
            assert await kvlb("explain", "--gateway", over.front.url, "--messages", str(path), "--json") == 0
            told = json.loads(capsys.readouterr().out)
            assert told["knows_tokens"]
            assert told["cached_tokens"] == (told["prompt_tokens"] - 1) // 16 * 16 > 0

    run(check())
