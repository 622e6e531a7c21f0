"""vLLM 0.32.0 takes the command lines that the chart renders, and kvlb finds what it starts by them.

Run by ``scripts/test-real tests/real/test_chart_real.py``; one engine is started, by what the chart says and what a CPU needs.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulations.demo import free_ports
from tests.helm.rendering import container, render
from tests.helm.running import Container, ended, put
from tests.helm.test_fleet import FLEETS, engines, environment
from tests.real.engines import running_engine, tiny_model
from tests.real.environment import vllm_python
from tests.real.stores import eventually
from tests.support.api_server import api_server_apart
from tests.support.processes import ask

pytestmark = pytest.mark.real


def test_vllm_takes_the_command_lines_of_the_chart() -> None:
    found = [(case, engine) for case in FLEETS for engine in engines(render(case))]
    words = [container(engine)["args"][1:] for _, engine in found]
    script = Path(__file__).with_name("vllm_arguments.py")
    done = subprocess.run(
        [str(vllm_python()), str(script)], input=json.dumps(words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for (case, engine), words_of, made in zip(found, words, seen, strict=True):
        ports = {each["name"]: each["containerPort"] for each in container(engine)["ports"]}
        assert made["model_tag"] == words_of[0]
        assert (made["port"], made["enable_prompt_tokens_details"], made["enable_scale_out"]) == (
            ports["http"],
            True,
            True,
        )
        events = made["kv_events_config"]
        assert events["enable_kv_cache_events"] is True
        assert events["endpoint"] == f"tcp://*:{ports['events-0']}"
        assert events["replay_endpoint"] == f"tcp://*:{ports['replay-0']}"
        assert (made["kv_transfer_config"] is not None) == (case in {"pd", "lmcache", "mooncake"})
        assert made["data_parallel_size"] == (2 if case == "dp" else 1)
        assert [each["name"] for each in made["lora_modules"]] == (["sql", "legal"] if case == "lora" else [])
        assert made["shutdown_timeout"] > 0


def known(url: str) -> list[str]:
    return [each["knowledge"]["state"] for each in ask(f"{url}/kvlb/status")[0]["replicas"]]


def test_kvlb_knows_exactly_what_an_engine_of_the_chart_holds(tmp_path: Path) -> None:
    http, events, replay = free_ports(3)
    rendered = render(
        "default",
        engines__port=http,
        engines__eventsPort=events,
        engines__replayPort=replay,
        gateway__drain={"graceSeconds": 0, "timeoutSeconds": 5},
        settings__server={"expose_decisions": True},
        fleet={"enabled": True, "engine": {"model": str(tiny_model()), "servedModelName": "tiny", "gpuResource": ""}},
    )
    engine = rendered.one("StatefulSet")
    _, model, *words = container(engine)["args"]
    assert model == str(tiny_model())
    kept = {
        name: value.replace("/cache/", f"{tmp_path}/cache/")
        for name, value in environment(engine).items()
        if isinstance(value, str) and value.startswith("/cache/")
    }
    with running_engine(http, events, *words, env={**kept, "VLLM_HOST_IP": "127.0.0.1"}), api_server_apart() as api:
        put(api, engine, "127.0.0.1")
        made = Container(rendered, tmp_path, discovery=f'api_server = "{api.server.url}"')
        with made.running() as process:
            made.wait("readinessProbe", 200, process)
            url = f"http://127.0.0.1:{made.ports['http']}"
            seen = []
            for _ in range(2):
                body = {"model": "tiny", "prompt": list(range(100)), "max_tokens": 1}
                answer, headers = ask(f"{url}/v1/completions", body)
                cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
                seen.append((cached, int(headers["x-kvlb-cached-tokens"])))
                eventually("known exactly", lambda: known(url) == ["exact"])
            assert seen == [(0, 0), (96, 96)]
            script = container(engine)["lifecycle"]["preStop"]["exec"]["command"][2]
            idle = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
            assert idle.returncode == 0, "an engine with nothing under way may end at once"
            assert ended(process) == 0
