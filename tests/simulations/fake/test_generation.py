"""Answers: what is read from the cache, where they end, and what they say of themselves."""

from collections import Counter
from typing import Any

import pytest

from balancer.facts import read_models
from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from tests.simulations.fake.samples import IDS, cached_tokens, complete, config, post, run, served


def test_a_repeated_prompt_is_read_from_the_cache_but_for_its_last_block() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            assert cached_tokens(await complete(session)) == 0
            assert cached_tokens(await complete(session)) == 64
            assert cached_tokens(await complete(session, IDS[:64])) == 48
            assert cached_tokens(await complete(session, cache_salt="s")) == 0
            assert cached_tokens(await complete(session, prompt_logprobs=0)) == 0
            assert engine.rank().engine.prefix_cache_hits == 112

    run(test)


def test_the_next_turn_of_a_chat_reuses_the_answer() -> None:
    async def test() -> None:
        async with served() as (_, session):
            said = [{"role": "user", "content": "tell me a story"}]
            body = {"messages": said, "max_tokens": 64, "ignore_eos": True}
            _, first = await post(session, "/v1/chat/completions", body)
            answer = first["choices"][0]["message"]
            said += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "go on"}]
            _, second = await post(session, "/v1/chat/completions", body)
            whole = first["usage"]["prompt_tokens"] + 63  # the last token was never computed
            assert cached_tokens(second) == whole // 16 * 16

    run(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
def test_an_answer_without_a_limit_ends_by_itself(path: str, body: Any) -> None:
    async def test() -> None:
        async with served(config(answer_tokens=20)) as (_, session):
            _, answer = await post(session, path, body)
            usage = answer["usage"]
            assert usage.get("completion_tokens", usage.get("output_tokens")) == 20
            assert answer.get("status") == "completed" or answer["choices"][0]["finish_reason"] == "stop"

    run(test)


def test_rendered_text_and_tokens_in_give_the_same_answer() -> None:
    async def test() -> None:
        async with served() as (_, session):
            body = {"prompt": "once upon a time", "max_tokens": 5}
            text = (await complete(session, **body))["choices"][0]["text"]
            _, (rendered,) = await post(session, "/v1/completions/render", body)
            _, tokenized = await post(session, "/tokenize", {"prompt": body["prompt"]})
            assert rendered["token_ids"] == tokenized["tokens"]
            _, generated = await post(session, "/inference/v1/generate", rendered)
            _, back = await post(session, "/detokenize", {"tokens": generated["choices"][0]["token_ids"]})
            assert back == {"prompt": text}

    run(test)


def test_a_token_that_the_client_stops_at_ends_the_answer_unsaid() -> None:
    async def test() -> None:
        async with served() as (_, session):
            whole = await complete(session, max_tokens=9, return_token_ids=True)
            tokens = whole["choices"][0]["token_ids"]
            cut = await complete(session, max_tokens=9, return_token_ids=True, stop_token_ids=[tokens[4]])
            choice = cut["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[4])
            assert choice["token_ids"] == tokens[:5]
            assert whole["choices"][0]["text"].startswith(choice["text"])
            assert len(choice["text"].split()) == 4

    run(test)


def test_adapters_are_listed_and_hashed_with_name_and_path() -> None:
    lora = Lora("adapter", "/adapters/one", 1)

    async def test() -> None:
        async with served(config(loras=(lora,))) as (engine, session):
            async with session.get("/v1/models") as response:
                base, adapter = read_models(await response.read())
            assert (base.id, base.parent, base.max_model_len) == ("tiny", None, 768)
            assert (adapter.id, adapter.parent, adapter.root) == ("adapter", "tiny", "/adapters/one")
            await complete(session, model="adapter")
            expected = Chain(Recipe(), IDS, Extras(lora=lora)).keys(4)
            assert engine.cached() == Counter(expected)
            assert cached_tokens(await complete(session, model="tiny")) == 0

    run(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("/v1/completions", {"prompt": [[1], []]}),
        ("/v1/completions", {"prompt": {"text": "a"}}),
        ("/tokenize", {"model": "tiny"}),
    ],
)
def test_what_is_no_text_is_refused(path: str, body: Any) -> None:
    async def test() -> None:
        async with served() as (_, session):
            status, error = await post(session, path, body)
            assert status == 400
            assert error["error"]["message"]

    run(test)


def test_skipping_the_cache_and_ignoring_the_end_can_be_asked_for_in_tokens() -> None:
    async def test() -> None:
        async with served(config(answer_tokens=5)) as (_, session):
            params = {"ignore_eos": True, "skip_reading_prefix_cache": True, "max_tokens": 7}
            for _ in range(2):
                body = {"token_ids": IDS, "sampling_params": params}
                _, answer = await post(session, "/inference/v1/generate", body)
                assert cached_tokens(answer) == 0
                assert answer["usage"]["completion_tokens"] == 7

    run(test)


def test_instructions_are_part_of_the_prompt() -> None:
    async def test() -> None:
        async with served() as (_, session):
            _, plain = await post(session, "/v1/responses/render", {"input": "hello"})
            _, told = await post(session, "/v1/responses/render", {"input": "hello", "instructions": "be brief"})
            assert told["token_ids"][-len(plain["token_ids"]) :] == plain["token_ids"]
            assert len(told["token_ids"]) > len(plain["token_ids"])

    run(test)
