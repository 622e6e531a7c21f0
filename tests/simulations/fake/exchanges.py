"""What a client may ask of a vLLM server, and the shape of an answer: its keys in their order, and the types of its values.

Knows how to ask any server. ``answers_vllm_0.32.0.json`` has what a real vLLM answered, so that the fake engine can be held
against it without one; ``exchanges.py URL`` writes it anew. That server must serve a model named "tiny", of at most 768 tokens,
with the dev mode, scale-out paths and usage details switched on, as ``tests/real/engines.py`` does.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("answers_vllm_0.32.0.json")

MAX_MODEL_LEN = 768

Exchange = tuple[str, str, Any, Mapping[str, str]]
"""Method, path, body (bytes are sent as they are) and headers."""

IDS = list(range(40, 110))
SAID = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
STEADY = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TWELVE = {"max_tokens": 12, "ignore_eos": True}
GENERATE = {"token_ids": IDS, "sampling_params": TWELVE}


def _post(path: str, body: Any, **headers: str) -> Exchange:
    return ("POST", path, body if isinstance(body, bytes) else {"model": "tiny", **body}, headers)


def _completion(**fields: Any) -> Exchange:
    return _post("/v1/completions", {"prompt": IDS, **TWELVE, **fields})


def _chat(**fields: Any) -> Exchange:
    return _post("/v1/chat/completions", {"messages": SAID, **TWELVE, **fields})


EXCHANGES: dict[str, Exchange] = {
    **{f"GET {path}": ("GET", path, None, {}) for path in ("/health", "/ping", "/version", "/v1/models", "/load")},
    **{f"GET {path}": ("GET", path, None, {}) for path in ("/kv_event_sources", "/is_sleeping", "/is_paused", "/nope")},
    "GET what is only posted to": ("GET", "/v1/completions", None, {}),
    "completion": _completion(),
    "completion, cached": _completion(),
    "completion with ids and a request id": _post(
        "/v1/completions", {"prompt": IDS, **TWELVE, "return_token_ids": True}, **{"X-Request-Id": "abc"}
    ),
    "completion of a text, twice": _completion(prompt="hello there", n=2),
    "completion of texts": _completion(prompt=["hello", "there"]),
    "completion of lists of ids": _completion(prompt=[IDS, IDS]),
    "completion without a limit": _post("/v1/completions", {"prompt": IDS}),
    "completion, streamed": _completion(stream=True),
    "completion, streamed with ids and usage": _completion(**USAGE, return_token_ids=True),
    "completion, streamed with steady usage": _completion(**STEADY),
    "completion without a model": ("POST", "/v1/completions", {"prompt": IDS, "max_tokens": 2}, {}),
    "completion with log-probabilities of the prompt": _completion(prompt_logprobs=0),
    "completion up to the context's end": _completion(prompt=[55] * (MAX_MODEL_LEN - 6), max_tokens=100),
    "completion without a prompt": _post("/v1/completions", {"max_tokens": 2}),
    "completion of an unknown model": _completion(model="x"),
    "completion of nothing": _completion(prompt=[]),
    "completion of an empty text": _completion(prompt=""),
    "completion of texts and ids": _completion(prompt=["a", 1]),
    "completion of no token": _completion(max_tokens=0),
    "completion of too much": _completion(prompt=[55] * (MAX_MODEL_LEN + 1)),
    "completion that leaves no room": _completion(prompt=[55] * MAX_MODEL_LEN),
    "completion of an id out of the vocabulary": _completion(prompt=[10_000_000]),
    "completion with a limit that is no number": _completion(max_tokens="x"),
    "completion with an empty salt": _completion(cache_salt=""),
    "completion, not JSON": _post("/v1/completions", b"{bad"),
    "completion, not an object": _post("/v1/completions", b"[1]"),
    "completion on a rank that is not there": _post(
        "/v1/completions", {"prompt": IDS}, **{"X-data-parallel-rank": "3"}
    ),
    "completion on a rank that is no number": _post(
        "/v1/completions", {"prompt": IDS}, **{"X-data-parallel-rank": "x"}
    ),
    "chat": _chat(),
    "chat with ids": _chat(return_token_ids=True),
    "chat, streamed": _chat(stream=True),
    "chat, streamed with ids and usage": _chat(**USAGE, return_token_ids=True),
    "chat, streamed with steady usage": _chat(**STEADY),
    "chat in parts, twice": _chat(messages=PARTS, n=2),
    "chat without messages": _chat(messages=[]),
    "chat of an unknown model": _chat(model="x"),
    "responses": _post("/v1/responses", {"input": "hello", "max_output_tokens": 12}),
    "responses, streamed": _post("/v1/responses", {"input": "hello", "max_output_tokens": 12, "stream": True}),
    "messages": _post("/v1/messages", {"messages": SAID[1:], "max_tokens": 12}),
    "messages, streamed": _post(
        "/v1/messages", {"messages": SAID[1:], "max_tokens": 12, "stream": True, "system": "be"}
    ),
    "messages of an unknown model": _post("/v1/messages", {"messages": SAID[1:], "max_tokens": 12, "model": "x"}),
    "count_tokens": _post("/v1/messages/count_tokens", {"messages": SAID[1:]}),
    "generate": _post("/inference/v1/generate", GENERATE),
    "generate with ids": _post("/inference/v1/generate", {**GENERATE, "return_token_ids": True, "request_id": "me"}),
    "generate, streamed": _post("/inference/v1/generate", {**GENERATE, **USAGE, "return_token_ids": True}),
    "generate in text": _post("/inference/v1/generate", {**GENERATE, "output_mode": "text"}),
    "generate twice": _post("/inference/v1/generate", {**GENERATE, "sampling_params": {**TWELVE, "n": 2}}),
    "generate from nothing": _post("/inference/v1/generate", {**GENERATE, "token_ids": []}),
    "generate from an unknown model": _post("/inference/v1/generate", {**GENERATE, "model": "x"}),
    "tokenize": _post("/tokenize", {"prompt": "hello there"}),
    "tokenize with texts": _post("/tokenize", {"prompt": "hello there", "return_token_strs": True}),
    "tokenize a chat": _post("/tokenize", {"messages": SAID}),
    "tokenize for an unknown model": _post("/tokenize", {"prompt": "hello", "model": "x"}),
    "detokenize": _post("/detokenize", {"tokens": IDS}),
    "render a completion": _post("/v1/completions/render", {"prompt": "hello", "max_tokens": 3}),
    "render completions": _post("/v1/completions/render", {"prompt": ["hello", "b"], "cache_salt": "q"}),
    "render a chat": _post("/v1/chat/completions/render", {"messages": SAID}),
    "render responses": _post("/v1/responses/render", {"input": "hello"}),
    "render messages": _post("/v1/messages/render", {"messages": SAID[1:], "max_tokens": 3}),
    "reset": ("POST", "/reset_prefix_cache", None, {}),
    "sleep lightly": ("POST", "/sleep?level=0", None, {}),
    "asleep": ("GET", "/is_sleeping", None, {}),
    "wake up": ("POST", "/wake_up", None, {}),
    "pause": ("POST", "/pause", None, {}),
    "paused": ("GET", "/is_paused", None, {}),
    "resume": ("POST", "/resume", None, {}),
    "abort what is not there": ("POST", "/inference/v1/abort_requests", {"request_ids": ["x"]}, {}),
}


def ask(url: str, exchange: Exchange) -> dict[str, Any]:
    """Status, content type and shape of the server's answer."""
    method, path, body, headers = exchange
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return _described(response.status, response.headers.get("Content-Type"), response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return _described(error.code, error.headers.get("Content-Type"), error.read().decode())


def _described(status: int, content_type: str | None, body: str) -> dict[str, Any]:
    if content_type and content_type.startswith("text/event-stream"):
        # How many tokens come at once is a matter of time: runs of equal events are one.
        shapes: list[Any] = []
        for event in body.split("\n\n")[:-1]:
            if not shapes or _event(event) != shapes[-1]:
                shapes.append(_event(event))
        return {"status": status, "type": content_type, "events": shapes}
    return {"status": status, "type": content_type, "body": shape(json.loads(body)) if body else None}


def _event(text: str) -> Any:
    name, _, data = text.rpartition("data: ")
    return [name.strip(), data if data == "[DONE]" else shape(json.loads(data))]


def shape(value: Any) -> Any:
    """Names of types in place of values; keys keep their order, and equal elements of a list are one."""
    if isinstance(value, dict):
        return [[key, shape(each)] for key, each in value.items()]
    if isinstance(value, list):
        shapes = [shape(each) for each in value]
        return ["list", *(each for number, each in enumerate(shapes) if each not in shapes[:number])]
    return None if value is None else type(value).__name__


def record(url: str) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(ask(url, exchange))}" for name, exchange in EXCHANGES.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record(sys.argv[1])
