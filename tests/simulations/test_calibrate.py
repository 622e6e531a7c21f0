"""``kvlb calibrate``: flags, an engine whose coefficients are known, and what it says when it cannot measure."""

import asyncio
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from balancer import cli
from simulations.fake_engine import FakeConfig, running
from simulations.fitting import Sample, predicted, prompt_steps
from simulations.latency import LatencyModel, Workload
from simulations.probing import Rates, read_rates
from simulations.scenario import cases, load
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

# Slow enough that an engine in this process sleeps more than it computes, and quick enough to wait for.
KNOWN = LatencyModel(overhead=0.02, weights=0.03, token=1e-4, pair=1e-8, context_token=1e-6)

METRICS = b"""# HELP vllm:prompt_tokens Number of prefill tokens processed.
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 9000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 2000.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 10.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 20.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 2.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 400.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 8.0
"""
BY_SOURCE = b"""vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 4000.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 6000.0
"""


def config(**changes: object) -> FakeConfig:
    fields: dict[str, object] = {"port": 0, "event_port": None, "model": "m", "latency": KNOWN, **changes}
    return FakeConfig(**fields)  # type: ignore[arg-type]


async def kvlb(*words: str) -> int:
    pause = () if {"--metrics", "--pause"} & {*words} else ("--pause", "0")
    return await asyncio.to_thread(cli.main, ["calibrate", *pause, *words])


def test_an_engines_own_times_come_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Judged by what the model says of steps, by a tolerance that leaves room for a busy machine, not by the clock."""
    quick = ("--lengths", "16,512,2048,6000", "--batches", "1,4", "--decode-tokens", "16", "--repeats", "2")

    async def check() -> None:
        async with running(config()) as engine:
            assert await kvlb(engine.url, *quick) == 0
            told = capsys.readouterr()
            found = tomllib.loads(told.out)["fleet"]["latency"]
            model = LatencyModel(**found)
            step = Workload(decode_requests=4, decode_context=4 * 2048)
            assert model.seconds(step) == pytest.approx(KNOWN.seconds(step), rel=0.4)
            prompt = Sample("p", prompt_steps(4000, 2048), 1.0, 1)
            assert predicted(model, prompt) == pytest.approx(predicted(KNOWN, prompt), rel=0.4)
            # 4 prompts, and answers of 1 and 4 behind two contexts, twice; the first one of all is not timed.
            assert f"kvlb calibrate {engine.url}: m\n# 28 requests: prompts of 16 to 6000 tokens" in told.out
            assert "8 samples (medians of repeats); error of the fit: " in told.out
            assert engine.rank().engine.prefix_cache_hits == 0
            path = tmp_path / "scenario.toml"
            path.write_text(f'model = "detailed"\npolicies = ["round_robin"]\n{told.out}')
            (case,) = cases(load(str(path)))
            assert case.fleet.latency == model  # type: ignore[union-attr]

    run(check(), 60)


def test_json_has_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config(speed=10)) as engine:
            words = ("--lengths", "16,64", "--batches", "1", "--decode-tokens", "8", "--repeats", "1", "--json")
            assert await kvlb(engine.url, *words) == 0
            found = json.loads(capsys.readouterr().out)
            assert [each["name"] for each in found["samples"]] == [
                "a prompt of 16", "a prompt of 64", "a token of 1 behind 32", "a token of 1 behind 2048",
            ]  # fmt: skip
            assert set(found["latency"]) == {"overhead", "weights", "token", "pair", "context_token", "request"}
            assert found["requests"] == 4

    run(check())


def test_salts_alone_keep_prompts_apart(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config(speed=20)) as engine:
            words = ("--lengths", "64,128", "--batches", "1,2", "--decode-tokens", "8", "--vocabulary", "2")
            assert await kvlb(engine.url, *words) == 0  # there is one token to draw, so all prompts begin alike
            assert engine.rank().engine.prefix_cache_queries > 0
            assert engine.rank().engine.prefix_cache_hits == 0

    run(check())


def test_answers_that_do_not_come_side_by_side_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config(speed=20, max_num_seqs=1)) as engine:
            words = ("--lengths", "16,64", "--batches", "1,4", "--decode-tokens", "8", "--repeats", "1")
            assert await kvlb(engine.url, *words) == 0
            assert "# 4 answers behind 32 tokens did not come side by side\n" in capsys.readouterr().out

    run(check())


def test_long_contexts_are_halved_until_they_fit_a_cache_that_is_not_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.probing.read_cache_config", lambda page: [])

    async def check() -> None:
        async with running(
            config(speed=20, num_gpu_blocks=300, max_model_len=3000, max_num_batched_tokens=8192)
        ) as engine:
            words = ("--lengths", "16", "--batches", "4", "--decode-tokens", "48", "--repeats", "2", "--json")
            assert await kvlb(engine.url, *words) == 0
            found = json.loads(capsys.readouterr().out)
            names = [each["name"] for each in found["samples"]]
            assert names == ["a prompt of 16", "a token of 4 behind 32", "a token of 4 behind 1024"]
            assert found["notes"] == []
            # One before all, then 9 a round, and 4 of the first one that were too long.
            assert found["requests"] == 2 * 9 + 4

    run(check())


def test_the_engine_rests_before_each_sample(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("simulations.calibrate.asyncio", SimpleNamespace(sleep=rest))

    async def check() -> None:
        async with running(config(speed=20)) as engine:
            words = ("--lengths", "16,64", "--batches", "1", "--decode-tokens", "8", "--repeats", "2")
            assert await kvlb(engine.url, *words, "--pause", "0.25") == 0
            assert rests == [0.25] * 2 * (2 + 2)
            assert cli.main(["calibrate", engine.url, "--pause", "-1"]) == 2
            assert "--pause: must be a number of seconds, 0 or more, got -1" in capsys.readouterr().err

    run(check())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--model", "n"), 2, "--model: http://127.0.0.1:{port} serves no n; it serves m"),
        (
            ("--lengths", "16,8192"),
            2,
            "--lengths: 8192 tokens and one of the answer are more than m takes; 8191 at most",
        ),
        (("--lengths", "16,x"), 2, "--lengths: '16,x' is not a list of whole numbers"),
        (("--repeats", "0"), 2, "--repeats: must be at least 1"),
        (("--timeout", "nan"), 2, "--timeout: must be a number of seconds above 0"),
        (("--decode-tokens", "9000"), 2, "--decode-tokens: 9000 do not fit"),
        (
            ("--metrics", "--lengths", "16"),
            2,
            "--lengths, --metrics: --metrics sends nothing to the engine; leave one of them out",
        ),
        (("--metrics", "--model", "m"), 2, "--model, --metrics: --metrics sends nothing"),
        (
            ("--repeats", "2", "--repeats", "3"),
            2,
            "--repeats 2, --repeats 3: one of them would not count; give it once",
        ),
        (("--lengths", "16", "--lengths", "64"), 2, "give both at once, as in --lengths 16,64"),
        (("--metrics",), 2, "--metrics: the engine has no vllm:request_prefill_time_seconds_sum; measure it without"),
    ],
)
def test_what_cannot_be_measured_is_said(
    words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check() -> None:
        async with running(config()) as engine:
            assert await kvlb(engine.url, *words) == code
            assert told.format(port=engine.config.port) in capsys.readouterr().err

    run(check())


def test_a_key_is_asked_for_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config(api_key="secret", speed=20)) as engine:
            words = ("--lengths", "16", "--batches", "1", "--decode-tokens", "8", "--repeats", "1")
            assert await kvlb(engine.url, *words) == 2
            assert "give --api-key" in capsys.readouterr().err
            assert await kvlb(engine.url, *words, "--api-key", "secret") == 0

    run(check())


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with running(config()) as engine:
            url = engine.url
        assert await kvlb(url) == 3
        assert f"no engine at {url}: " in capsys.readouterr().err
        assert await kvlb("nowhere") == 2

    run(check())


def test_an_engine_that_refuses_a_prompt_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(request: Received) -> None:
        request.answer(b'{"error": {"message": "token id 999 is out of vocabulary"}}', status="400 Bad Request")

    async def check() -> None:
        async with upstream() as engine:
            engine.is_question = lambda request: request.method == "GET"
            engine.answer = refuse
            engine.paths["/metrics"] = METRICS
            assert await kvlb(engine.url) == 2
            told = capsys.readouterr().err
            assert "token id 999 is out of vocabulary; see --lengths, --vocabulary" in told

    run(check())


def test_the_engines_own_account(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with upstream() as engine:
            engine.is_question = lambda request: request.method == "GET"
            engine.paths["/metrics"] = METRICS
            assert await kvlb(engine.url, "--metrics") == 0
            told = capsys.readouterr().out
            found = LatencyModel(**tomllib.loads(told)["fleet"]["latency"])
            assert found == LatencyModel.from_rates(prefill_tokens_per_second=4000, decode_seconds_per_token=0.02)
            assert "# 8,000 prompt tokens in 2.0 s, 400 tokens of answers in 8.0 s\n" in told
            assert not engine.received
            engine.paths["/metrics"] = METRICS.replace(b" 8.0", b" 0.0")
            assert await kvlb(engine.url, "--metrics") == 2
            assert "has not computed prompts and answers yet" in capsys.readouterr().err

    run(check())


def test_cached_tokens_are_not_taken_for_computed_ones() -> None:
    assert read_rates(METRICS + BY_SOURCE) == Rates(4000.0, 2.0, 400.0, 8.0)
    old = METRICS.replace(b"inter_token_latency", b"time_per_output_token")
    assert read_rates(old) == Rates(8000.0, 2.0, 400.0, 8.0)
