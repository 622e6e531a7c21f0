"""What clients send, against what the engine makes of it: every form of the same prompt finds the same blocks."""

import asyncio
import json
from collections.abc import Sequence

import aiohttp
import pytest

from balancer.audit import Cause
from balancer.core import Knowledge
from simulations.fake import tokenizer
from simulations.fake_engine import running
from tests.support.engines import MODEL, Fleet, config, fleet
from tests.support.gateways import close, gateway, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

IDS = list(range(300, 370))  # 70 tokens: four blocks of 16, and 6 more
CHAT = {"messages": [{"role": "user", "content": "Tell me of caches, and of their blocks. " * 4}]}


async def generate(over: Fleet, ids: list[int], max_tokens: int = 1) -> tuple[str, int, list[int]]:
    """Tokens in and out, as (replica, predicted cached tokens, generated ids)."""
    body = {"token_ids": ids, "sampling_params": {"max_tokens": max_tokens, "ignore_eos": True}}
    headers, answer = await over.post("/inference/v1/generate", body)
    return (
        headers["x-kvlb-replica"],
        int(headers["x-kvlb-cached-tokens"]),
        json.loads(answer)["choices"][0]["token_ids"],
    )


def test_what_an_engine_has_generated_counts_in_the_next_turn() -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            home, _, generated = await generate(over, IDS, 100)
            assert len(generated) == 100
            await over.settle()
            again, predicted, _ = await generate(over, [*IDS, *generated, 7, 8, 9])
            # The last token that it generated was never computed on, so its block may still be short of it.
            assert (again, predicted) == (home, (70 + 99) // 16 * 16)
            await over.settle()
            changed = [*generated[:20], 5, *generated[21:]]  # as when a template leaves out part of an answer
            assert (await generate(over, [*IDS, *changed, 7]))[:2] == (home, (70 + 20) // 16 * 16)
            assert over.exact_share()[0] == over.exact_share()[1]

    run(check())


def test_rendered_chats_sent_as_tokens_find_what_the_chat_has_left() -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            headers, _ = await over.post("/v1/chat/completions", {**CHAT, "max_tokens": 1})
            await over.settle()
            _, answer = await over.post("/v1/chat/completions/render", CHAT)
            ids = json.loads(answer)["token_ids"]
            home, predicted, _ = await generate(over, ids)
            assert home == headers["x-kvlb-replica"]
            assert predicted == (len(ids) - 1) // 16 * 16 > 0

    run(check())


def test_a_template_that_writes_the_date_costs_the_index_nothing_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rendered before is computed after: predicted too high, and no more than that."""
    day = ["mon"]
    render = tokenizer.Tokenizer.render_chat

    def dated(self: tokenizer.Tokenizer, messages: Sequence[tuple[str, str]], *, is_open: bool = True) -> list[int]:
        return render(self, [("system", f"today is {day[0]} "), *messages], is_open=is_open)

    monkeypatch.setattr(tokenizer.Tokenizer, "render_chat", dated)
    talks = [
        [
            {"role": "system", "content": "be brief and be kind to all of them. " * 12},
            {"role": "user", "content": word * 30},
        ]
        for word in ("one ", "two ", "six ", "ten ")
    ]

    async def check() -> None:
        async with fleet(config()) as over:

            async def ask() -> list[tuple[int, int]]:
                asked = []
                for messages in talks:
                    headers, body = await over.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
                    cached = json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]
                    asked.append((int(headers["x-kvlb-cached-tokens"]), cached))
                    await over.settle()
                return asked

            await ask()
            caches = over.router.caches
            for day[0] in ("tue", "wed"):
                assert all(predicted > actual for predicted, actual in await ask())
                await eventually(lambda: not caches.healer._doubts)
            assert over.mirrors()
            assert caches.healer.corrections.total() == 0
            assert {each.cause for each in caches.audit.differences} == {Cause.WORKLOAD}
            (live,) = over.router.fleet
            assert caches.view(live.replica.id, 0.0).state is Knowledge.EXACT

    run(check())


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b"])
def test_a_salt_that_engines_refuse_is_theirs_to_refuse(salt: str) -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            body = json.dumps({"model": MODEL, "prompt": IDS, "max_tokens": 1, "cache_salt": salt, "request_id": "r"})
            through = split(await over.front.exchange(post("/v1/completions", body.encode())))
            host, _, port = over.engines[0].url.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(post("/v1/completions", body.encode()))
            direct = split(await reader.read())
            await close(writer)
            assert through[0] == direct[0] == "HTTP/1.1 400 Bad Request"
            assert over.front.is_idle()

    run(check())


@pytest.mark.parametrize("huge", [2**32, 2**63, 2**64, 10**30, -1])
def test_ids_that_no_vocabulary_has_are_the_engines_to_refuse(huge: int) -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            body = json.dumps(
                {"model": MODEL, "token_ids": [huge] * 300, "sampling_params": {"max_tokens": 1}}
            ).encode()
            through = split(await over.front.exchange(post("/inference/v1/generate", body)))
            assert through[0] == "HTTP/1.1 400 Bad Request"
            assert str(huge) in json.loads(through[2])["error"]["message"], "the engine's own words"
            assert over.front.is_idle()

    run(check())


def test_two_pictures_in_the_same_text_are_two_prompts() -> None:
    """Their placeholders are the same ids: only what an engine calls them tells them apart, from where they lie."""

    async def render(request: Received) -> None:
        url = json.loads(request.body)["messages"][0]["content"][1]["image_url"]["url"]
        features = {"mm_hashes": {"image": [url]}, "mm_placeholders": {"image": [{"offset": 22, "length": 30}]}}
        request.answer(json.dumps({"token_ids": [7] * 70, "features": features}).encode())

    async def check() -> None:
        paths = {"/v1/chat/completions/render": render}
        async with upstream(paths=paths) as one, upstream(paths=paths) as two, gateway([one.url, two.url]) as front:

            async def ask(picture: str) -> tuple[str, int]:
                parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": picture}}]
                body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": parts}]}).encode()
                _, headers, _ = split(await front.exchange(post("/v1/chat/completions", body)))
                told = {name.lower(): value for name, value in headers}
                return told["x-kvlb-replica"], int(told["x-kvlb-cached-tokens"])

            home, predicted = await ask("http://pictures/cat.png")
            assert predicted == 0
            assert await ask("http://pictures/dog.png") == (home, 20), "the text before it, in blocks of 4"
            for picture in ("cat", "dog"):
                assert await ask(f"http://pictures/{picture}.png") == (home, 68)

    run(check())


def test_after_a_gateways_restart_a_prompt_that_was_sent_again_stays_there_although_nothing_can_be_replayed() -> None:
    """The engines are warm and announce nothing again: what is unknown is not taken for a certain miss for ever."""

    async def check() -> None:
        prompts = [[at + 300] * 70 for at in range(8)]
        quiet = config(replay_port=None)
        async with running(quiet) as one, running(quiet) as two, aiohttp.ClientSession() as client:
            urls = [one.url, two.url]
            async with gateway(urls) as front:
                over = Fleet([one, two], front, client)
                await eventually(lambda: sum(each.is_connected for each in front.service.publishers().values()) == 2)
                for prompt in prompts:
                    await over.complete(prompt)
            async with gateway(urls) as front:
                over = Fleet([one, two], front, client)
                await eventually(lambda: sum(each.is_connected for each in front.service.publishers().values()) == 2)
                assert {
                    front.service.router.caches.view(live.replica.id, 0.0).state for live in front.service.router.fleet
                } == {Knowledge.PARTIAL}
                homes = [(await over.complete(prompt))[0] for prompt in prompts]
                again = [await over.complete(prompt) for prompt in prompts]
                assert [home for home, _, _ in again] == homes
                assert [(predicted, actual) for _, predicted, actual in again] == [(64, 64)] * len(prompts)

    run(check())


def test_after_a_gateways_restart_prompts_are_sent_to_where_they_lie_although_nobody_tells() -> None:
    """Where a prompt that nobody holds goes among equals is not chance: a gateway that knows nothing chooses alike."""

    async def check() -> None:
        prompts = [[at + 300] * 300 for at in range(12)]
        quiet = config(replay_port=None)
        async with running(quiet) as one, running(quiet) as two, aiohttp.ClientSession() as client:
            homes = []
            for urls in ([one.url, two.url], [two.url, one.url]):
                async with gateway(urls, policy={"name": "cache_aware"}) as front:  # no clock decides
                    over = Fleet([one, two], front, client)
                    await eventually(
                        lambda: sum(each.is_connected for each in front.service.publishers().values()) == 2
                    )
                    homes.append([(await over.complete(prompt)) for prompt in prompts])
            assert [home for home, _, _ in homes[1]] == [home for home, _, _ in homes[0]]
            assert [actual for _, _, actual in homes[1]] == [288] * len(prompts)

    run(check())
