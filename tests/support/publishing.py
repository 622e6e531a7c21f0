"""Engines as an index service sees them: publishers with hashes of their own, and the service's client.

Knows vLLM's events and the paths of ``kvlb index``. An engine hashes in a way that nobody else knows, so that its keys have to
be learned. ``settled`` waits for a mark that is published behind all the rest: what is looked at then is no longer on its way.
"""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Final

from simulations.demo import free_ports
from tests.indexer.samples import payload, stored_map
from tests.indexer.sources.publisher import FakePublisher
from tests.support.processes import started, wait_for

BLOCK: Final = 8
SECONDS: Final = 15.0

_serial = count(1)
_tokens = count(1_000)


def fresh(blocks: int) -> list[int]:
    """Tokens of so many blocks that nobody has seen before."""
    return [next(_tokens) for _ in range(blocks * BLOCK)]


def chain(tokens: Sequence[int], *, seed: int = 0, extra: object = None, form: str = "int") -> list[Any]:
    """An engine's own hashes of the full blocks: integers, signed integers or bytes."""
    found: list[Any] = []
    parent = b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        text = repr((seed, tokens[start : start + BLOCK], extra)).encode()
        parent = blake2b(parent + text, digest_size=32).digest()
        found.append(parent if form == "bytes" else int.from_bytes(parent[:8], "big", signed=form == "signed"))
    return found


class IndexClient:
    """Somebody who asks an index service."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, body) of the answer; a body that is bytes is sent as it is."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return response.status, _read(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error.read())

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return self.ask("POST", path, body)

    def get(self, path: str) -> Any:
        status, body = self.ask("GET", path)
        assert status == 200, body
        return body


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode()


@contextlib.contextmanager
def index_process(*flags: str) -> Iterator[tuple[IndexClient, "subprocess.Popen[str]"]]:
    """A ``kvlb index`` of its own."""
    (port,) = free_ports(1)
    with started("index", "--port", str(port), *flags) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", process)
        yield IndexClient(url), process


class Engine:
    """One engine's publisher, registered as an instance of a model of its own unless told otherwise."""

    def __init__(
        self, index: IndexClient, *, model: str | None = None, has_replay: bool = True, keeps: int | None = None
    ) -> None:
        self.index = index
        self.instance = next(_serial)
        self.model = model or f"model-{self.instance}"
        self.publisher = FakePublisher(has_replay=has_replay, topic=b"kv-events", keeps=keeps)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.stop()

    def register(self, **fields: Any) -> None:
        """Register, and wait until its past has been asked for, or (where nobody can) until it is listened to."""
        body = {
            "instance_id": self.instance,
            "model_name": self.model,
            "endpoint": self.publisher.events,
            "replay_endpoint": self.publisher.replay,
            "block_size": BLOCK,
            **fields,
        }
        status, answer = self.index.post("/register", **body)
        assert status == 201, answer
        if self.publisher.replay is not None:
            self.wait(lambda: self.statuses() == {"active"})
        else:
            self.publisher.wait_subscribed()

    def unregister(self) -> None:
        assert self.index.post("/unregister", instance_id=self.instance, model_name=self.model)[0] == 200

    # What it publishes

    def publish(self, *events: Any, is_lost: bool = False, rank: Any = 0) -> None:
        self.publisher.publish(payload(*events, timestamp=time.time(), rank=rank), is_lost=is_lost)

    def store(
        self,
        tokens: Sequence[int],
        hashes: Sequence[Any] | None = None,
        *,
        first: int = 0,
        last: int | None = None,
        is_lost: bool = False,
        rank: Any = 0,
        **fields: Any,
    ) -> list[Any]:
        """Store blocks ``first`` to ``last`` of the prompt; returns the hashes of all its blocks."""
        hashes = chain(tokens) if hashes is None else list(hashes)
        self.publish(stored(tokens, hashes, first, last, **fields), is_lost=is_lost, rank=rank)
        return list(hashes)

    # What the service says

    def query(self, tokens: Sequence[int], **fields: Any) -> dict[str, Any]:
        status, answer = self.index.post("/query", model_name=self.model, token_ids=list(tokens), **fields)
        assert status == 200, answer
        return dict(answer)

    def blocks(self, tokens: Sequence[int], **fields: Any) -> int:
        """Blocks of the prompt that the service says are on this engine's GPU."""
        ranks = self.query(tokens, **fields)["scores"].get(str(self.instance), {})
        return int(max(ranks.values(), default=0) / BLOCK)

    def statuses(self) -> set[str]:
        """How the service says that this engine's listeners stand."""
        return {
            listener["status"]
            for worker in self.index.get("/workers")
            if (worker["instance_id"], worker["model_name"]) == (self.instance, self.model)
            for listener in worker["listeners"].values()
        }

    def is_doubted(self) -> bool:
        return self.statuses() != {"active"}

    def settled(self, **fields: Any) -> "Engine":
        """This engine, once all that was published has been applied."""
        mark = fresh(1)
        self.store(mark, **fields)
        self.wait(lambda: self.blocks(mark))
        return self

    def wait(self, condition: Any) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, f"still false: {condition}"
            self._pause()

    @staticmethod
    def _pause() -> None:
        time.sleep(0.01)


def stored(
    tokens: Sequence[int],
    hashes: Sequence[Any],
    first: int = 0,
    last: int | None = None,
    *,
    salt: str | None = None,
    lora: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The event of vLLM 0.32 for blocks ``first`` to ``last`` of a prompt."""
    last = len(hashes) if last is None else last
    extras = [[*([lora] if lora else []), *([salt] if salt and not at else [])] or None for at in range(first, last)]
    return stored_map(
        hashes[first:last],
        hashes[first - 1] if first else None,
        token_ids=list(tokens[first * BLOCK : last * BLOCK]),
        block_size=BLOCK,
        lora_id=1 if lora else None,
        lora_name=lora,
        **{"extra_keys": extras, "group_idx": 0, "kv_cache_spec_kind": "full_attention", **fields},
    )
