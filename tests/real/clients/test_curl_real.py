"""curl before a real engine, directly and through kvlb: what scripts and people send, in every way that curl can put it.

Run by ``scripts/test-real tests/real/clients``. What is said on the wire is compared in ``witness.Witness.ask``; so is curl's
own account of it.
"""

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.real.clients.tools import tool
from tests.real.clients.wire import value
from tests.real.clients.witness import Witness

pytestmark = pytest.mark.real

ASKED: Final[dict[str, Any]] = {"model": "tiny", "prompt": "ra tuner oh ž 🦙 " * 8, "max_tokens": 8, "temperature": 0}
STREAMED: Final = {**ASKED, "stream": True, "vllm_xargs": {"seconds_per_token": 0.015}}
PATH: Final = "/v1/completions"


class Told(msgspec.Struct, frozen=True):
    """What curl says of a transfer: HTTP's version and status, and how many connections it took."""

    version: str
    status: int
    connections: int
    type: str


def curl(url: str, name: str, *args: str, path: str = PATH, body: bytes | None = None) -> Told:
    """One call; ``body`` is what curl reads from its input."""
    told = '{"version": "%{http_version}", "status": %{http_code}, "connections": %{num_connects}, "type": "%{content_type}"}'
    command = [tool("curl"), "-sS", "--max-time", "60", "-H", f"X-Request-Id: {name}", "-o", "-", "-w", "\n" + told]
    done = subprocess.run([*command, *args, url + path], input=body, capture_output=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout.rpartition(b"\n")[2], type=Told)


JSON: Final = ("-H", "Content-Type: application/json", "--data-binary", "@-")

WAYS: Final[dict[str, tuple[str, ...]]] = {
    "plain": JSON,
    "as JSON": ("--json", "@-"),
    "unbuffered": ("-N", *JSON),
    "asks whether it may": ("-H", "Expect: 100-continue", *JSON),
    "in chunks": ("-H", "Transfer-Encoding: chunked", *JSON),
    "takes packed answers": ("--compressed", *JSON),
    "one request a connection": ("-H", "Connection: close", *JSON),
    "HTTP/1.0": ("--http1.0", *JSON),
    "with many headers": (*JSON, *(part for at in range(80) for part in ("-H", f"X-Own-{at}: {at}; ž"))),
    "with a query": (*JSON, "--url-query", "a=b c&d"),
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask_gets_the_engines_answer(witness: Witness, way: str, is_stream: bool) -> None:
    body = json.dumps(STREAMED if is_stream else ASKED, ensure_ascii=False).encode()
    both = witness.ask(lambda url, name: curl(url, name, *WAYS[way], body=body))
    assert both.through == both.direct
    assert both.through.status == 200
    assert both.exchange.sent == body
    if is_stream:
        assert both.exchange.received.endswith(b"data: [DONE]\n\n")


def test_who_would_speak_another_http_is_answered_in_this_one(witness: Witness) -> None:
    """The engine alone loses the body of such a request (uvicorn 0.54) and refuses it."""
    body = json.dumps(ASKED).encode()
    plain = witness.ask(lambda url, name: curl(url, name, *JSON, body=body))
    told = curl(witness.front.url, "upgrade", "--http2", *JSON, body=body)
    assert (told.version, told.status) == ("1.1", 200)
    exchange = witness.front.exchanges()[-1]
    assert value(exchange.asked, b"upgrade") == b"h2c"
    assert text(exchange.received) == text(plain.exchange.received)


def text(answer: bytes) -> str:
    found: str = json.loads(answer)["choices"][0]["text"]
    return found


def test_a_packed_body_is_unpacked_for_the_engine(witness: Witness) -> None:
    """Which would not take it itself."""
    body = json.dumps(ASKED).encode()
    told = curl(witness.front.url, "packed", *JSON, "-H", "Content-Encoding: gzip", body=gzip.compress(body))
    assert told.status == 200
    (behind,) = [
        each
        for each in witness.behind.exchanges()
        if each.path == PATH and value(each.asked, b"x-request-id") == b"packed"
    ]
    assert behind.sent == body
    assert value(behind.asked, b"content-encoding") is None


BROKEN: Final[dict[str, bytes]] = {
    "no JSON": b'{"model": "tiny", "prompt": ',
    "nothing": b"",
    "no object": b"[1, 2]",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_what_nobody_can_read_is_refused_as_the_engine_would(witness: Witness, body: bytes) -> None:
    both = witness.ask(lambda url, name: curl(url, name, *JSON, body=body), is_ours=True)
    assert both.through == both.direct
    error = json.loads(both.exchange.received)["error"]
    assert set(error) == {"message", "type", "param", "code"}


def test_text_that_is_none_is_the_engines_to_refuse(witness: Witness) -> None:
    both = witness.ask(lambda url, name: curl(url, name, *JSON, body=b'{"model": "tiny", "prompt": "\xff\xfe"}'))
    assert both.through == both.direct
    assert both.through.status == 400


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/audio/transcriptions", "/classify"])
def test_what_the_model_cannot_do_the_engine_says_itself(witness: Witness, path: str) -> None:
    body = json.dumps({"model": "tiny", "input": "ra"}).encode()
    both = witness.ask(lambda url, name: curl(url, name, *JSON, path=path, body=body))
    assert both.through == both.direct
    assert both.through.status >= 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "ra ž tuner"}),
        ("/detokenize", {"tokens": [300, 301]}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "ra"}]}),
        ("/inference/v1/generate", {"token_ids": [5] * 40, "sampling_params": {"max_tokens": 3, "temperature": 0}}),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "ra"}]], "max_tokens": 3, "temperature": 0}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_paths_of_vllms_own_pass_too(witness: Witness, path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "tiny", **fields}).encode()
    if path.endswith("/render") or path == "/tokenize":  # as kvlb itself asks, so the witness leaves them out
        theirs, ours = (raw(url, path, body) for url in (witness.engine.url, witness.gateway.url))
        assert ours == theirs
        return
    both = witness.ask(lambda url, name: curl(url, name, *JSON, path=path, body=body))
    assert both.through == both.direct
    assert both.through.status == 200


def raw(url: str, path: str, body: bytes) -> Any:
    named = ("-H", "X-Request-Id: render")
    done = subprocess.run(
        [tool("curl"), "-sSf", *named, *JSON, url + path], input=body, capture_output=True, check=True, timeout=90
    )
    return json.loads(done.stdout)


def test_one_connection_serves_many_requests_in_their_order(witness: Witness, tmp_path: Path) -> None:
    """curl keeps its connection for all requests of one call."""
    bodies = [json.dumps({**ASKED, "prompt": [at] * 40, "stream": at % 2 == 0}).encode() for at in range(5, 15)]
    args: list[str] = []
    for at, body in enumerate(bodies):
        (tmp_path / f"{at}").write_bytes(body)
        args += [*(["--next"] if at else []), "-sS", "-H", "Content-Type: application/json"]
        args += ["-d", f"@{tmp_path / str(at)}", "-w", "\n%{num_connects} %{http_code}\n", witness.front.url + PATH]
    done = subprocess.run([tool("curl"), *args], capture_output=True, check=True, timeout=90)
    told = [line for line in done.stdout.splitlines() if line in {b"1 200", b"0 200"}]
    assert told == [b"1 200", *[b"0 200"] * 9]
    witness.assert_all_passed(10)
    assert [each.sent for each in witness.front.exchanges()[-10:]] == bodies
