"""Requests as clients of a small fleet make them, in every form that carries a prompt, and what their answers say.

Knows the bodies and the ``usage`` of vLLM 0.32.0's dialects. Never knows how kvlb reads them: nothing of it is imported, so a
misreading of its own cannot hide. Everything repeats from the seed, as far as the engine's answers do.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import msgspec

MODEL: Final = "tiny"
ADAPTERS: Final = ("ada", "adb")
BLOCK: Final = 32
WORDS: Final = "ra tuner oh vuler gokan werpan hater sali modo fan heber kiman luhan panfa bertu".split()


class Ask(msgspec.Struct, frozen=True):
    """One request. ``tokens`` has the prompt where it is sent as ids. ``is_compared``: kvlb claims to predict it exactly."""

    kind: str
    path: str
    body: dict[str, Any]
    tokens: list[int] | None = None
    reads_cache: bool = True
    is_compared: bool = True

    @property
    def salt(self) -> str | None:
        salt: str | None = self.body.get("cache_salt")
        return salt

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that it is for."""
        model: str = self.body["model"]
        return model if model in ADAPTERS else None


class Answer(msgspec.Struct, frozen=True):
    """What came back. ``predicted`` is the gateway's header; ``cached`` and ``prompt`` are the engine's usage."""

    replica: str
    predicted: int
    is_predicted: bool
    cached: int | None
    prompt: int | None
    outputs: list[int]
    text: str


async def send(http: aiohttp.ClientSession, url: str, ask: Ask) -> Answer:
    """Send it and read the answer to its end.

    Raises:
        AssertionError: it was refused, or its stream ended too early.
    """
    async with http.post(url + ask.path, json=ask.body) as response:
        raw = await response.read()
        assert response.status == 200, f"{ask.kind}: {response.status} {raw!r}"
        headers = response.headers
    events = read_events(ask, raw) if ask.body.get("stream") else [msgspec.json.decode(raw)]
    cached, prompt = read_usage(events)
    choices = [choice for event in events for choice in event.get("choices") or []]
    return Answer(
        replica=headers["x-kvlb-replica"],
        predicted=int(headers["x-kvlb-cached-tokens"]),
        is_predicted=headers["x-kvlb-predicted"] == "exact",
        cached=cached,
        prompt=prompt,
        outputs=[token for choice in choices for token in choice.get("token_ids") or []],
        text="".join((choice.get("message") or {}).get("content") or "" for choice in choices),
    )


def read_events(ask: Ask, raw: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    is_openai = ask.path not in {"/v1/messages", "/v1/responses"}
    assert not is_openai or lines[-1] == b"[DONE]", f"{ask.kind}: the stream ended too early: {raw[-300:]!r}"
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def read_usage(events: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """(cached tokens, prompt tokens) of the last event that tells, in whichever dialect."""
    cached = prompt = None
    for event in events:
        usage = event.get("usage") or (event.get("response") or {}).get("usage") or {}
        if "cache_read_input_tokens" in usage:  # Anthropic's input tokens are those that were not cached
            read = usage["cache_read_input_tokens"] or 0
            cached, prompt = read, usage["input_tokens"] + read + (usage.get("cache_creation_input_tokens") or 0)
        elif details := usage.get("prompt_tokens_details") or usage.get("input_tokens_details"):
            cached, prompt = details["cached_tokens"], usage.get("prompt_tokens", usage.get("input_tokens"))
    return cached, prompt


class Clients:
    """Makes the requests; mutable: later ones go on from the answers to earlier ones, which are told with ``heard``."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._stems = [self._tokens(length) for length in (64, 96, 160, 320, 330)]
        self._texts = [self._words(length) for length in (12, 40, 90)]
        self._said: list[list[int]] = []  # prompts and their answers, as ids
        self._asked: list[Ask] = []
        self._chat: list[dict[str, str]] = []

    def asks(self, rounds: int) -> Iterator[Ask]:
        """``rounds`` times one request of each kind, in an order that changes each time."""
        for _ in range(rounds):
            for make in self._draw.sample(self._kinds(), len(self._kinds())):
                ask = make()
                self._asked.append(ask)
                yield ask
                if self._draw.random() < 0.2:
                    yield msgspec.structs.replace(ask, kind="repeat at once")

    def burst(self, count: int) -> list[Ask]:
        """Requests to be sent at the same time; half of them share a beginning that nobody has asked for before."""
        new = self._tokens(self._draw.choice((64, 150, 256)))
        shared = [self._completion("burst", new + self._tokens(self._draw.randint(1, 40))) for _ in range(count // 2)]
        others = [self._completion("burst", self._prompt()) for _ in range(count - count // 2)]
        return self._draw.sample(shared + others, count)

    def heard(self, ask: Ask, answer: Answer) -> None:
        """What the next turn of this conversation goes on from."""
        if ask.tokens is not None and answer.outputs and ask.salt is ask.adapter is None:
            self._said = [*self._said[-11:], ask.tokens + answer.outputs]
        if ask.kind == "chat turn":
            self._chat.append({"role": "assistant", "content": answer.text})

    def fresh(self, length: int) -> Ask:
        """A prompt that nobody has asked for before."""
        return self._completion("ids", self._tokens(length), max_tokens=4)

    def slow(self, length: int, max_tokens: int, *, is_stream: bool) -> Ask:
        """A prompt that nobody has asked for before; 200 tokens of its answer take a second (see ``slow_tokens``)."""
        slowly = {"vllm_xargs": {"seconds_per_token": 0.005}}
        return self._completion("slow", self._tokens(length), max_tokens=max_tokens, stream=is_stream, **slowly)

    def _kinds(self) -> list[Callable[[], Ask]]:
        return [
            lambda: self._completion("ids", self._prompt()),
            lambda: self._completion("ids", self._prompt(), max_tokens=60),
            lambda: self._completion("ids, whole blocks", self._whole_blocks()),
            lambda: self._completion("ids, next turn", self._next_turn()),
            lambda: self._completion("ids, streamed", self._prompt(), **self._stream()),
            lambda: self._completion("ids, salted", self._prompt(), cache_salt=self._draw.choice("ab")),
            lambda: self._completion("ids, adapter", self._prompt(), model=self._draw.choice(ADAPTERS)),
            lambda: self._completion(
                "ids, adapter, salted", self._prompt(), model="ada", cache_salt=self._draw.choice("ab")
            ),
            lambda: self._messages("chat, adapter", "/v1/chat/completions", model=self._draw.choice(ADAPTERS)),
            lambda: self._completion("ids, report mode", self._prompt(), vllm_xargs={"kv_cache_report_mode": "full"}),
            lambda: self._completion("short", self._tokens(self._draw.randint(1, BLOCK))),
            self._again,
            self._again,
            self._prompt_logprobs,
            self._echo,
            self._several_samples,
            self._several_prompts,
            lambda: self._text("text"),
            lambda: self._text("text, salted", cache_salt=self._draw.choice("ab")),
            lambda: self._messages("chat", "/v1/chat/completions"),
            lambda: self._messages("chat, streamed", "/v1/chat/completions", **self._stream()),
            self._chat_turn,
            lambda: self._messages("messages", "/v1/messages"),
            lambda: self._messages("messages, streamed", "/v1/messages", stream=True),
            lambda: self._responses("responses"),
            lambda: self._responses("responses, streamed", stream=True),
            lambda: self._generate("generate"),
            lambda: self._generate("generate, streamed", **self._stream()),
            lambda: self._generate("generate, salted", cache_salt=self._draw.choice("ab")),
            self._skips_cache,
        ]

    # Prompts

    def _tokens(self, count: int) -> list[int]:
        return self._draw.choices(range(5, 1000), k=count)

    def _words(self, count: int) -> str:
        return " ".join(self._draw.choices(WORDS, k=count))

    def _prompt(self) -> list[int]:
        return self._draw.choice(self._stems) + self._tokens(self._draw.choice((1, 5, 31, 32, 33, 70)))

    def _whole_blocks(self) -> list[int]:
        stem = self._draw.choice(self._stems)
        return stem[: len(stem) // BLOCK * BLOCK]

    def _next_turn(self) -> list[int]:
        before = self._draw.choice(self._said) if self._said else self._prompt()
        return before[:800] + self._tokens(self._draw.randint(1, 40))

    def _sentence(self) -> str:
        return f"{self._draw.choice(self._texts)} {self._words(self._draw.randint(1, 20))}"

    def _few(self) -> int:
        return self._draw.randint(1, 24)

    @staticmethod
    def _stream() -> dict[str, Any]:
        return {"stream": True, "stream_options": {"include_usage": True}}

    # Forms

    def _completion(self, kind: str, tokens: list[int], max_tokens: int | None = None, **more: Any) -> Ask:
        count = max_tokens or self._few()
        body = {"model": MODEL, "prompt": tokens, "max_tokens": count, "return_token_ids": True, "ignore_eos": True}
        return Ask(kind, "/v1/completions", {**body, **more}, tokens)

    def _again(self) -> Ask:
        """One of the last prompts, in whichever form it was."""
        return msgspec.structs.replace(
            self._draw.choice(self._asked[-12:] or [self._completion("ids", self._prompt())]), kind="again"
        )

    def _prompt_logprobs(self) -> Ask:
        ask = self._completion("prompt_logprobs", self._prompt(), prompt_logprobs=0)
        return msgspec.structs.replace(ask, reads_cache=False)

    def _echo(self) -> Ask:
        ask = self._completion("echo with logprobs", self._prompt(), echo=True, logprobs=1)
        return msgspec.structs.replace(ask, reads_cache=False)

    def _several_samples(self) -> Ask:
        return msgspec.structs.replace(
            self._completion("n=2", self._prompt(), n=2, return_token_ids=False), is_compared=False
        )

    def _several_prompts(self) -> Ask:
        body = {"model": MODEL, "prompt": [self._prompt(), self._prompt()], "max_tokens": self._few()}
        return Ask("list of prompts", "/v1/completions", body, is_compared=False)

    def _text(self, kind: str, **more: Any) -> Ask:
        body = {"model": MODEL, "prompt": self._sentence(), "max_tokens": self._few(), **more}
        return Ask(kind, "/v1/completions", body)

    def _messages(self, kind: str, path: str, **more: Any) -> Ask:
        said = [{"role": "user", "content": self._sentence()}]
        if path == "/v1/messages":
            more["system"] = self._texts[0]
        else:
            said.insert(0, {"role": "system", "content": self._texts[0]})
        return Ask(kind, path, {"model": MODEL, "messages": said, "max_tokens": self._few(), **more})

    def _chat_turn(self) -> Ask:
        if not self._chat or len(self._chat) > 7:
            self._chat = [{"role": "system", "content": self._sentence()}]
        self._chat.append({"role": "user", "content": self._words(9)})
        body = {"model": MODEL, "messages": list(self._chat), "max_tokens": self._draw.randint(20, 50)}
        return Ask("chat turn", "/v1/chat/completions", body)

    def _responses(self, kind: str, **more: Any) -> Ask:
        said: Any = self._sentence()
        if self._draw.random() < 0.5:
            said = [{"role": "user", "content": said}]
        body = {"model": MODEL, "input": said, "instructions": self._texts[1], "max_output_tokens": self._few()}
        return Ask(kind, "/v1/responses", {**body, **more})

    def _generate(self, kind: str, **more: Any) -> Ask:
        tokens = self._prompt()
        sampling = {"max_tokens": self._few(), "ignore_eos": True}
        body = {"model": MODEL, "token_ids": tokens, "sampling_params": sampling, **more}
        return Ask(kind, "/inference/v1/generate", body, tokens)

    def _skips_cache(self) -> Ask:
        ask = self._generate("generate, skips the cache")
        ask.body["sampling_params"]["skip_reading_prefix_cache"] = True
        return msgspec.structs.replace(ask, reads_cache=False)
