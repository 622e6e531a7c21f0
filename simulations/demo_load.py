"""The demo's traffic: conversations of several turns that share system prompts, and what came of them.

Knows users, turns, words and figures. Never knows processes or policies: it talks OpenAI to one address. The same seed gives
the same conversations.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec

SYSTEM_PROMPTS: Final = 6
WORDS: Final = (
    "the a of to and in is it that for on with as are this be at or from by we can not all one new time more "
    "when will there some other what over which their into has two its like these may then about first any my now "
    "such many after work between long where much should through each back even most made under never well last"
).split()


class Load(msgspec.Struct, frozen=True):
    """How much of what. Lengths count words; the fake tokenizer makes about one token of each."""

    seed: int = 1
    seconds: float = 12.0
    users: int = 28
    system_words: int = 900
    question_words: int = 60
    answer_tokens: int = 24
    turns: int = 6
    think_seconds: float = 0.25

    def describe(self) -> str:
        return (
            f"{self.users} users for {self.seconds:g} s, {SYSTEM_PROMPTS} shared system prompts of {self.system_words} words, "
            f"{self.turns} turns a conversation"
        )


class Workload:
    """Makes the conversations; draws from its own dice."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._systems = [
            self._text(random.Random(f"{load.seed} system {at}"), load.system_words) for at in range(SYSTEM_PROMPTS)
        ]

    def conversation(self, user: int, number: int) -> list[dict[str, str]]:
        """The opening of a user's conversation."""
        dice = random.Random(f"{self.load.seed} {user} {number}")
        return [{"role": "system", "content": dice.choice(self._systems)}]

    def question(self, user: int, number: int, turn: int) -> dict[str, str]:
        dice = random.Random(f"{self.load.seed} {user} {number} {turn}")
        return {"role": "user", "content": self._text(dice, self.load.question_words)}

    def sample(self) -> list[dict[str, str]]:
        """A short request to try by hand."""
        return [{"role": "user", "content": self._text(random.Random(self.load.seed), 60)}]

    @staticmethod
    def _text(dice: random.Random, words: int) -> str:
        return " ".join(dice.choices(WORDS, k=words))


class Result(msgspec.Struct):
    """What came of the traffic so far. Changes as answers come in."""

    elapsed: float = 0.0
    requests: int = 0
    failed: int = 0
    first_failure: str = ""
    prompt_tokens: int = 0
    predicted: int = 0
    actual: int = 0
    exact: int = 0
    first_tokens: list[float] = []

    @property
    def token_hit_rate(self) -> float | None:
        """Share of all prompt tokens that the engines took from their caches, by their own account."""
        return self.actual / self.prompt_tokens if self.prompt_tokens else None

    @property
    def exact_share(self) -> float | None:
        """Share of requests whose cached tokens were predicted exactly."""
        return self.exact / self.requests if self.requests else None

    def ttft(self, quantile: float) -> float | None:
        """Time to first token in seconds, at this quantile."""
        if not self.first_tokens:
            return None
        ordered = sorted(self.first_tokens)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def figures(self) -> dict[str, float | int | None]:
        return {
            "requests": self.requests,
            "failed": self.failed,
            "token_hit_rate": self.token_hit_rate,
            "predicted_cached_tokens": self.predicted,
            "actual_cached_tokens": self.actual,
            "exact_share": self.exact_share,
            "ttft_p50_s": self.ttft(0.5),
            "ttft_p99_s": self.ttft(0.99),
        }


async def play(load: Load, gateway: str, model: str, progress: Callable[[Result], None]) -> Result:
    """Let all users talk for ``load.seconds``."""
    result = Result()
    started = time.monotonic()
    until = started + load.seconds
    workload = Workload(load)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        users = [_User(number, workload, session, gateway, model, result) for number in range(load.users)]
        tasks = [asyncio.create_task(user.talk(until)) for user in users]
        try:
            while not all(task.done() for task in tasks):
                result.elapsed = time.monotonic() - started
                progress(result)
                await asyncio.wait(tasks, timeout=0.2)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return result


class _User:
    """One person with one conversation after another."""

    def __init__(
        self, number: int, workload: Workload, session: aiohttp.ClientSession, gateway: str, model: str, result: Result
    ) -> None:
        self._number = number
        self._workload = workload
        self._session = session
        self._url = f"{gateway}/v1/chat/completions"
        self._model = model
        self._result = result

    async def talk(self, until: float) -> None:
        load = self._workload.load
        dice = random.Random(f"{load.seed} pauses of {self._number}")
        await asyncio.sleep(dice.random())  # people do not begin in step
        conversation = 0
        while True:
            messages = self._workload.conversation(self._number, conversation)
            for turn in range(load.turns):
                if time.monotonic() >= until:
                    return
                messages.append(self._workload.question(self._number, conversation, turn))
                messages.append({"role": "assistant", "content": await self._ask(messages)})
                await asyncio.sleep(load.think_seconds * (0.5 + dice.random()))
            conversation += 1

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._workload.load.answer_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked = time.monotonic()
        answer, first = [], None
        usage: dict[str, Any] = {}
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    self._failed(f"{response.status} {(await response.text())[:200]}")
                    return ""
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    if first is None:
                        first = time.monotonic() - asked
                    chunk = msgspec.json.decode(line[6:])
                    usage = chunk.get("usage") or usage
                    answer += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
                predicted = int(response.headers["x-kvlb-cached-tokens"])
        except (aiohttp.ClientError, TimeoutError) as error:
            self._failed(repr(error))
            return ""
        self._note(first, predicted, usage)
        return "".join(answer)

    def _failed(self, why: str) -> None:
        self._result.failed += 1
        self._result.first_failure = self._result.first_failure or why

    def _note(self, first: float | None, predicted: int, usage: dict[str, Any]) -> None:
        result = self._result
        actual = usage["prompt_tokens_details"]["cached_tokens"]
        result.requests += 1
        result.prompt_tokens += usage["prompt_tokens"]
        result.predicted += predicted
        result.actual += actual
        result.exact += predicted == actual
        if first is not None:
            result.first_tokens.append(first)
