"""Clients that leave, wait no longer, or are many: the engine stops, and neither it nor the gateway keeps anything of them.

Run by ``scripts/test-real tests/real/clients``. The clients connect to the gateway itself, with nothing between that could end
a connection in another way than they do.
"""

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any, Final

import anthropic
import msgspec
import openai
import pytest

from tests.real.clients import test_anthropic_real, test_openai_real
from tests.real.clients.tools import tool
from tests.real.clients.witness import Witness

pytestmark = pytest.mark.real

LEAVE_SECONDS: Final = 5.0
"""Within this time all must be over; usually it takes a tenth of a second."""

LONG: Final = 1500
SLOWLY: Final[dict[str, Any]] = {"vllm_xargs": {"seconds_per_token": 0.005}, "ignore_eos": True}
PROMPT: Final = [7] * 40
SAID: Final[list[Any]] = [{"role": "user", "content": "luhan panfa bertu"}]
COMPLETION: Final[dict[str, Any]] = {"model": "tiny", "prompt": PROMPT, "max_tokens": LONG, "temperature": 0}
MESSAGE: Final[dict[str, Any]] = {"model": "tiny", "messages": SAID, "max_tokens": LONG}


def openai_closes_its_stream(url: str) -> None:
    with test_openai_real.client(url) as one:
        stream = one.completions.create(**COMPLETION, stream=True, extra_body=SLOWLY)
        assert next(stream).choices[0].text
        stream.close()


def openai_waits_no_longer(url: str) -> None:
    with test_openai_real.client(url, timeout=0.5) as one, pytest.raises(openai.APITimeoutError):
        one.completions.create(**COMPLETION, extra_body=SLOWLY)


def openai_is_cancelled(url: str) -> None:
    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as one:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await one.completions.create(**COMPLETION, extra_body=SLOWLY)

    asyncio.run(leave())


def openai_leaves_a_response(url: str) -> None:
    with test_openai_real.client(url) as one:
        asked: dict[str, Any] = {"model": "tiny", "input": "luhan panfa", "max_output_tokens": LONG}
        with one.responses.create(**asked, stream=True, extra_body=SLOWLY) as stream:
            assert [next(stream).type for _ in range(5)][-1] == "response.output_text.delta"


def anthropic_leaves_its_stream(url: str) -> None:
    with (
        test_anthropic_real.client(url) as one,
        one.messages.stream(**MESSAGE, extra_body={"vllm_xargs": SLOWLY["vllm_xargs"]}) as stream,
    ):
        assert next(stream.text_stream)


def anthropic_waits_no_longer(url: str) -> None:
    with test_anthropic_real.client(url, timeout=0.5) as one, pytest.raises(anthropic.APITimeoutError):
        one.messages.create(**MESSAGE, extra_body={"vllm_xargs": SLOWLY["vllm_xargs"]})


def curl_waits_no_longer(url: str) -> None:
    body = msgspec.json.encode({**COMPLETION, **SLOWLY, "stream": True})
    command = [tool("curl"), "-sSN", "--max-time", "0.7", "--json", "@-", url + "/v1/completions"]
    left = subprocess.run(command, input=body, capture_output=True, check=False, timeout=30)
    assert left.returncode == 28, left.stderr  # which is curl's own word for it
    assert left.stdout.startswith(b"data: ")
    assert b"[DONE]" not in left.stdout


def curl_is_killed(url: str) -> None:
    body = msgspec.json.encode({**COMPLETION, **SLOWLY, "stream": True})
    command = [tool("curl"), "-sSN", "--json", body.decode(), url + "/v1/completions"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline().startswith(b"data: ")
        curl.kill()


LEAVING: Final = (
    openai_closes_its_stream,
    openai_waits_no_longer,
    openai_is_cancelled,
    openai_leaves_a_response,
    anthropic_leaves_its_stream,
    anthropic_waits_no_longer,
    curl_waits_no_longer,
    curl_is_killed,
)


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_who_leaves_is_forgotten_by_the_engine_and_the_gateway(witness: Witness, leave: Callable[[str], None]) -> None:
    before = witness.metric("vllm:generation_tokens_total")
    cancelled = witness.outcomes()["cancelled"]
    leave(witness.gateway.url)
    witness.wait("nothing is under way", witness.is_idle, LEAVE_SECONDS)
    generated = witness.metric("vllm:generation_tokens_total") - before
    assert 0 < generated < LONG
    assert witness.outcomes()["cancelled"] == cancelled + 1


def test_many_leave_at_once_and_the_next_one_is_served(witness: Witness) -> None:
    async def leave_all() -> None:
        async with openai.AsyncOpenAI(base_url=witness.gateway.url + "/v1", api_key="any", max_retries=0) as one:
            asked = [{**COMPLETION, "prompt": [at, *PROMPT], "stream": True} for at in range(5, 25)]
            streams: list[Any] = await asyncio.gather(
                *(one.completions.create(**each, extra_body=SLOWLY) for each in asked)
            )
            await asyncio.gather(*(anext(stream.__aiter__()) for stream in streams))
            await asyncio.gather(*(stream.close() for stream in streams))

    asyncio.run(leave_all())
    witness.wait("nothing is under way", witness.is_idle, LEAVE_SECONDS)
    both = witness.ask(test_openai_real.made(lambda one: test_openai_real.complete(one, prompt=[5, *PROMPT])))
    assert both.through.usage.completion_tokens == 12
