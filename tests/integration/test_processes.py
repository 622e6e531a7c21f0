"""The command ``kvlb`` as users run it: processes, ports, signals, exit codes and what stands on the terminal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from simulations.demo import free_ports
from tests.support.processes import ROOT, SECONDS, ask, finished, started, stopped, wait_for


def serve(*flags: str) -> Sequence[str]:
    return ("serve", "--replica", "http://127.0.0.1:9", *flags)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (serve("--prot", "1"), 2, "kvlb serve: unknown argument --prot; did you mean --port?"),
        (serve("--policy", "best"), 2, "kvlb: policy.name: there is no policy 'best'; there are: cache_aware, "),
        (serve("--policy", "os:path"), 2, "kvlb: policy.name: 'os:path' is no policy"),
        (serve("--host", "192.0.2.1", "--port", "0"), 2, "kvlb: server.host: cannot listen on 192.0.2.1:0: "),
        (serve("--config", "/no/such.toml"), 2, "kvlb: --config: cannot read '/no/such.toml': "),
        (serve("--snapshot", "/no/such"), 2, "kvlb: snapshot.path: '/no/such': there is no folder /no; "),
        (
            serve("--snapshot", __file__),
            2,
            f"kvlb: snapshot.path: '{__file__}': it is there, and is no kvlb snapshot; ",
        ),
        (("serve",), 2, "kvlb: replicas: none given; name at least one with --replica http://HOST:PORT"),
        (
            serve("--port", "0", "--startup-timeout", "0.3", "--log-level", "error"),
            1,
            "kvlb: no replica can be used after 0.3 s (http://127.0.0.1:9: connection refused)",
        ),
        (("fake-engine", "--block-size", "0"), 2, "kvlb: fake-engine: block_size"),
        (("demo", "--seconds", "0"), 2, "kvlb: --seconds: give a number above 0"),
        (("nonsense",), 2, "kvlb: argument COMMAND: invalid choice: 'nonsense'"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(words: Sequence[str], code: int, message: str) -> None:
    told, lines = finished(*words)
    assert told == code
    assert len(lines) == 1, lines
    assert lines[0].startswith(message)


@pytest.mark.parametrize(
    "words", [serve("--port"), ("fake-engine", "--event-port", "0", "--replay-port", "0", "--port")]
)
def test_a_port_in_use_is_one_line(words: Sequence[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, lines = finished(*words, str(taken.getsockname()[1]))
    assert code == 2
    assert len(lines) == 1, lines
    assert "in use" in lines[0]
    assert "--port" in lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_asked_to(number: int) -> None:
    (port,) = free_ports(1)
    with started(*serve("--port", str(port))) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        code, told = stopped(process, number)
        assert code == 0
        assert "Traceback" not in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_while_it_waits_for_its_first_replica(number: int) -> None:
    (port,) = free_ports(1)
    with started(*serve("--port", str(port), "--startup-timeout", "600")) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        code, told = stopped(process, number)
        assert code == 0
        assert "Traceback" not in told


def test_it_answers_and_ends_while_a_sibling_is_asked() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with started(*serve("--port", str(port), "--sibling", url)) as process:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            asked_at = time.monotonic()
            code, told = stopped(process, signal.SIGTERM)
    assert (code, time.monotonic() - asked_at < 4) == (0, True)
    assert f"asking {url} for its index (at most 30 s)" in told
    assert "the snapshot is not used" not in told


def living(group: int) -> list[str]:
    """Processes of the group; those that are dead and not yet collected do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has ended since
            continue
        state, _, owner = rest.split()[:3]
        if int(owner) == group and state != "Z":
            found.append(name)
    return found


def test_the_demo_ends_with_its_terminal_and_takes_its_processes_along() -> None:
    # Whoever runs these tests under nohup hands the signal down as ignored, which the demo respects.
    main = "import runpy, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); runpy.run_module('balancer', None, '__main__')"
    words = [sys.executable, "-c", main, "demo"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        assert b"starting 4 engines" in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 130
    assert not living(process.pid)


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("<&-", 2, "kvlb: tokens: standard input is closed; "),
        (">/dev/full", 1, "kvlb: cannot write what was asked for: No space left on device"),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_an_output_that_cannot_be_used_is_one_line(redirection: str, code: int, message: str) -> None:
    line = f'seq 1 40 | {{ "{sys.executable}" -m balancer hash {redirection}; }}'
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1, done.stderr


def test_an_engine_and_a_gateway_serve_and_end() -> None:
    gateway, engine, events, replay = free_ports(4)
    flags = ["--port", engine, "--event-port", events, "--replay-port", replay, "--model", "m", "--speed", "50"]
    with ExitStack() as stack:
        behind = stack.enter_context(started("fake-engine", *map(str, flags)))
        wait_for(f"http://127.0.0.1:{engine}/health", behind)
        words = ["--replica", f"http://127.0.0.1:{engine}", "--port", str(gateway), "--expose-decisions"]
        front = stack.enter_context(started("serve", *words))
        url = f"http://127.0.0.1:{gateway}"
        wait_for(f"{url}/ready", front)
        body = {"model": "m", "prompt": list(range(300, 370)), "max_tokens": 2}
        first, _ = ask(f"{url}/v1/completions", body)
        again, headers = ask(f"{url}/v1/completions", body)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert headers["x-kvlb-cached-tokens"] == "64"

        # Bytes that are no HTTP are told to who sent them, and to nobody else: anyone could fill the log.
        for wrong in (b"POST / HTTP/1.1\r\nno header\r\n\r\n", b"GET /a?x=%d y HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", gateway)) as raw:
                raw.sendall(wrong)
                assert b" 400 Bad Request" in raw.recv(100)

        code, told = stopped(front)
        assert (code, "Traceback" in told) == (0, False), told
        assert "WARNING" not in told, told
        code, told = stopped(behind)
        assert (code, "Traceback" in told) == (0, False), told


def test_what_it_knew_when_it_was_ended_it_knows_when_it_is_started_again(tmp_path: Path) -> None:
    gateway, engine, events, replay = free_ports(4)
    flags = ["--port", engine, "--event-port", events, "--replay-port", replay, "--model", "m", "--speed", "50"]
    words = ("serve", "--replica", f"http://127.0.0.1:{engine}", "--port", str(gateway), "--snapshot")
    url = f"http://127.0.0.1:{gateway}"
    with started("fake-engine", *map(str, flags)):
        with started(*words, str(tmp_path / "index")) as front:
            wait_for(f"{url}/ready", front)
            ask(f"{url}/v1/completions", {"model": "m", "prompt": list(range(300, 370)), "max_tokens": 2})
            while ask(f"{url}/kvlb/status")[0]["replicas"][0]["blocks"] < 4:
                time.sleep(0.02)
            code, told = stopped(front)
            assert (code, "Traceback" in told) == (0, False), told
        with started(*words, str(tmp_path / "index")) as front:
            wait_for(f"{url}/ready", front)
            code, told = stopped(front)
            assert ": took over 4 blocks of 1 replica, as of " in told
            assert (code, "Traceback" in told) == (0, False), told


def test_a_stream_under_way_is_finished_before_it_ends() -> None:
    gateway, engine, events, replay = free_ports(4)
    flags = ["--port", engine, "--event-port", events, "--replay-port", replay, "--model", "m", "--decode-ms", "20"]
    with (
        started("fake-engine", *map(str, flags)),
        started("serve", "--replica", f"http://127.0.0.1:{engine}", "--port", str(gateway)) as front,
    ):
        url = f"http://127.0.0.1:{gateway}"
        wait_for(f"{url}/ready", front)
        body = {"model": "m", "prompt": [300] * 20, "max_tokens": 30, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            begun = response.readline()
            front.send_signal(signal.SIGTERM)
            rest = response.read()
        assert begun.startswith(b"data: {")
        assert rest.endswith(b"data: [DONE]\n\n")
        assert front.wait(timeout=SECONDS) == 0


def test_the_demo_shows_what_routing_by_cache_is_worth(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    code, lines = finished("demo", "--seconds", "2", "--json", str(path), seconds=120)
    assert code == 0, lines
    policies = json.loads(path.read_text())
    assert list(policies) == ["round_robin", "predicted_ttft"]
    for figures in policies.values():
        assert figures["failed"] == 0
        assert figures["exact_share"] > 0.98
        assert 0 < figures["ttft_p50_s"] <= figures["ttft_p99_s"]
    assert policies["predicted_ttft"]["token_hit_rate"] > policies["round_robin"]["token_hit_rate"]


def test_the_module_and_the_console_script_are_the_same_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", "import sys; from balancer.cli import main; sys.exit(main(['--version']))"]
    told = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    module = subprocess.run(
        [sys.executable, "-m", "balancer", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    ).stdout
    assert told == module
    assert told.startswith("kvlb ")
