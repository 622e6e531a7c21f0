"""Text -> token ids, by asking a replica: only the engine knows its template, its tokenizer and its defaults for certain.

Knows the render and tokenise endpoints of vLLM (0.8 - 0.32), the time limit, and what it has been told before. Never fails a
request: what cannot be tokenised in time is routed without its tokens.
"""

import asyncio
import contextlib
import logging
import math
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import msgspec
import xxhash

from balancer.core import Prompt
from balancer.media import read_features
from balancer.openai import Inbound, Kind
from balancer.settings import TokenizerSettings
from balancer.upstream import payload, whole

log = logging.getLogger(__name__)

NO_SUCH_PATH: Final = frozenset({403, 404, 405, 501})
"""What engines without render endpoints answer: 404 before vLLM 0.18, 403 with a hint since 0.30 unless --enable-scale-out."""

CHAT_FIELDS: Final = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)
"""What ``/tokenize`` reads of a chat request (vLLM 0.32, ``TokenizeChatRequest``)."""

SAMPLING_FIELDS: Final = frozenset(
    "max_tokens max_completion_tokens max_output_tokens min_tokens temperature top_p top_k min_p seed n best_of stop "
    "stop_token_ids stop_sequences ignore_eos presence_penalty frequency_penalty repetition_penalty logit_bias logprobs "
    "top_logprobs prompt_logprobs stream stream_options user request_id priority metadata store cache_salt".split()
)
"""Fields of a request that change nothing about its prompt's tokens."""

NOT_IN_KEY: Final = SAMPLING_FIELDS - {"cache_salt"}

ANSWER_FIELDS: Final = frozenset(
    "response_format structured_outputs structural_tag guided_json guided_regex guided_choice guided_grammar "
    "guided_decoding_backend guided_whitespace_pattern parallel_tool_calls include_reasoning thinking_token_budget "
    "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output return_tokens_as_token_ids return_token_ids "
    "return_token_offsets return_prompt_text return_mm_kwargs mm_payload routed_experts_prompt_start logprob_token_ids echo "
    "suffix allowed_token_ids bad_words use_beam_search length_penalty repetition_detection watermarking stream_interval "
    "session_id vllm_xargs service_tier prompt_cache_key prompt_cache_retention safety_identifier".split()
)
"""Fields that ``/tokenize`` need not be told either: they shape the answer, or engines ignore them.

Source: vLLM 0.32.0, ``build_chat_params`` and ``build_tok_params`` of its requests. Kimi K3 alone writes ``response_format``
and a ``tool_choice`` that is not "auto" into its prompt (``renderers/kimi_k3.py``), and is mis-scored.
"""

WITH_TOKENIZE: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Paths whose bodies ``/tokenize`` understands; the other dialects have shapes of their own."""

TEXT_FIELDS: Final = ("model", "add_special_tokens")

KNOWN_SECONDS: Final = 60.0
"""How long an answer is taken for what an engine would say now: chat templates may write the date into a prompt."""

PATIENCE: Final = 2
"""Time-outs in a row before an endpoint is not asked for a while: a single one may be a text of a million tokens."""

FIRST_PAUSE: Final = 5.0
"""Seconds; each time-out after it doubles the next one."""

LONGEST_PAUSE: Final = 60.0

Prompts = tuple[Prompt, ...]

_NULL: Final = msgspec.Raw(b"null")
_NONE: Final = msgspec.Raw(b'"none"')


class _Untellable(Exception):
    """A request has something that ``/tokenize`` cannot be told: its ids would be others."""


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: msgspec.Raw = _NULL


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _Message(msgspec.Struct):
    content: Any = None


_rendered = msgspec.json.Decoder(_Rendered)
_rendered_list = msgspec.json.Decoder(list[_Rendered])
_tokenized = msgspec.json.Decoder(_Tokenized)


class _Pause(msgspec.Struct):
    """How patient we are with an endpoint that does not answer in time. Changes."""

    timeouts: int = 0
    began: float = -math.inf
    until: float = 0.0


class Tokenizer:
    """Asks, and remembers the answers for a while, within a bound of memory."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: TokenizerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[bytes, Prompts] = OrderedDict()
        self._known_bytes = 0
        self._without_render: set[tuple[str, str]] = set()
        self._pauses: dict[str, _Pause] = {}
        self.counters: Counter[str] = Counter()

    async def token_ids(
        self, endpoint: str, path: str, inbound: Inbound, body: bytes, headers: Mapping[str, str]
    ) -> Prompts:
        """The prompts of a text request, as ``endpoint`` would tokenise them; empty when that cannot be learnt in time.

        Raises:
            aiohttp.ClientConnectorError: nobody listens at ``endpoint``; another one can still be asked.
        """
        key, now = _key(path, body), self._clock()
        known = self._known.get(key)
        if known is not None and _rendered_at(known) + KNOWN_SECONDS > now:
            self._known.move_to_end(key)
            self.counters["cached"] += 1
            return known
        if not self._may_ask(endpoint, now):
            self.counters["paused"] += 1
            return ()
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                prompts = await self._ask(endpoint, path, inbound, body, headers)
            self._pauses.pop(endpoint, None)
        except aiohttp.ClientConnectorError:
            raise
        except _Untellable:
            self.counters["untellable"] += 1
            return ()
        except (TimeoutError, aiohttp.ClientError, OSError, OverflowError, msgspec.MsgspecError) as error:
            self.counters["failed"] += 1
            if isinstance(error, TimeoutError):
                self._timed_out(endpoint, now)
            log.debug("%s cannot tokenise a request to %s: %r", endpoint, path, error)
            return ()
        self.counters["asked" if prompts else "failed"] += 1
        prompts = tuple([msgspec.structs.replace(each, rendered_at=now) for each in prompts])
        if prompts:
            self._remember(key, prompts)
        return prompts

    def forget_endpoint(self, endpoint: str) -> None:
        """The engine behind this address may be another one now: ask anew, about everything.

        What is known may have come from another endpoint; but it was one of the same model, with the same template.
        """
        self._known.clear()
        self._known_bytes = 0
        self._without_render = {pair for pair in self._without_render if pair[0] != endpoint}
        self._pauses.pop(endpoint, None)

    def is_paused(self, endpoint: str) -> bool:
        """Whether it has not answered in time lately, and is better not asked now."""
        pause = self._pauses.get(endpoint)
        return pause is not None and self._clock() < pause.until

    def _may_ask(self, endpoint: str, now: float) -> bool:
        """Whether to ask now. After a pause one request tries, and the others do without meanwhile."""
        pause = self._pauses.get(endpoint)
        if pause is None or pause.timeouts < PATIENCE:
            return True
        if now < pause.until:
            return False
        pause.until = now + self._settings.timeout_seconds
        return True

    def _timed_out(self, endpoint: str, asked_at: float) -> None:
        pause = self._pauses.setdefault(endpoint, _Pause())
        if asked_at <= pause.began:
            return  # one of those that were waiting when it began
        pause.timeouts += 1
        if pause.timeouts >= PATIENCE:
            pause.began = self._clock()
            pause.until = pause.began + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(10, pause.timeouts - PATIENCE))
            log.info("%s does not tokenise in time; asked again in %.0f s", endpoint, pause.until - pause.began)

    async def _ask(
        self, endpoint: str, path: str, inbound: Inbound, body: bytes, headers: Mapping[str, str]
    ) -> Prompts:
        if (endpoint, path) not in self._without_render:
            status, answer = await self._post(f"{endpoint}{path}/render", _without_tensors(body), headers)
            if status == 200:
                return _read_rendered(answer)
            if status not in NO_SUCH_PATH:
                return ()
            self._without_render.add((endpoint, path))
        if path not in WITH_TOKENIZE:
            raise _Untellable
        return await self._tokenize(endpoint, inbound, body, headers)

    async def _tokenize(self, endpoint: str, inbound: Inbound, body: bytes, headers: Mapping[str, str]) -> Prompts:
        bodies = _tokenize_bodies(inbound, body)
        answers = await asyncio.gather(*(self._post(f"{endpoint}/tokenize", each, headers) for each in bodies))
        if any(status != 200 for status, _ in answers):
            return ()
        return tuple(Prompt(array("I", _tokenized.decode(answer).tokens)) for _, answer in answers)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        async with self._session.post(url, data=payload(body), headers=headers) as response:
            return response.status, await whole(response)

    async def both_ways(
        self, endpoint: str, path: str, inbound: Inbound, body: bytes, headers: Mapping[str, str]
    ) -> dict[str, Prompts]:
        """What each way of asking this endpoint answers, ``render`` and ``tokenize``: for whoever compares them.

        A way that it does not have, or that has no answer, is left out.

        Raises:
            aiohttp.ClientError, OSError, msgspec.MsgspecError: it cannot be asked, or answers nonsense.
        """
        status, answer = await self._post(f"{endpoint}{path}/render", body, headers)
        found = {"render": _read_rendered(answer) if status == 200 else (), "tokenize": ()}
        if path in WITH_TOKENIZE:
            with contextlib.suppress(_Untellable):
                found["tokenize"] = await self._tokenize(endpoint, inbound, body, headers)
        return {way: prompts for way, prompts in found.items() if prompts}

    def _remember(self, key: bytes, prompts: Prompts) -> None:
        # The same text may have been asked for twice at once.
        self._known_bytes -= _size(self._known.pop(key)) if key in self._known else 0
        self._known[key] = prompts
        self._known_bytes += _size(prompts)
        while self._known_bytes > self._settings.cache_bytes:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _size(oldest)


def _rendered_at(prompts: Prompts) -> float:
    return prompts[0].rendered_at or 0.0


def _key(path: str, body: bytes) -> bytes:
    """Equal for requests that have the same tokens: what only steers the sampling is left out.

    The salt is not: nobody shall tell by the time of an answer what others have sent with another one.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    told = [part for name, raw in fields.items() if name not in NOT_IN_KEY for part in (name.encode(), bytes(raw))]
    return xxhash.xxh3_128_digest(b"\0".join([path.encode(), *told]))


def _has_media(messages: msgspec.Raw) -> bool:
    """Whether any part of a message is not text: its placeholders depend on what the engine makes of it."""
    parsed = msgspec.json.decode(messages, type=list[_Message])
    parts = [part for message in parsed if isinstance(message.content, list) for part in message.content]
    return any(not isinstance(part, dict) or part.get("type") != "text" for part in parts)


def _without_tensors(body: bytes) -> bytes:
    """The body as it is rendered: of pictures, only names and places are wanted (``mm_payload`` of vLLM 0.32)."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    try:
        has_media = any(_has_media(fields[name]) for name in ("messages", "input") if name in fields)
    except msgspec.ValidationError:  # no list of messages: a text, or what the engine will refuse
        return body
    return msgspec.json.encode({**fields, "mm_payload": _NONE}) if has_media else body


def _size(prompts: Prompts) -> int:
    return 200 + sum(112 + 4 * len(each.tokens) + 300 * len(each.media.items) for each in prompts)


def _read_rendered(answer: bytes) -> Prompts:
    """Chat renders to one object, completions to a list."""
    rendered = _rendered_list.decode(answer) if answer.lstrip().startswith(b"[") else [_rendered.decode(answer)]
    return tuple(Prompt(array("I", each.token_ids), read_features(each.features)) for each in rendered)


def _tokenize_bodies(inbound: Inbound, body: bytes) -> list[bytes]:
    """What to ask ``/tokenize``.

    Raises:
        _Untellable: the request has something that it cannot be told.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    told = CHAT_FIELDS if inbound.kind is Kind.CHAT else (*TEXT_FIELDS, "prompt")
    rest = {name for name, raw in fields.items() if raw != _NULL} - SAMPLING_FIELDS - ANSWER_FIELDS - set(told)
    if fields.get("tool_choice") != _NONE or fields.get("tools", _NULL) == _NULL:
        rest.discard(
            "tool_choice"
        )  # else some leave the tools out, and some do not (--exclude-tools-when-tool-choice-none)
    if rest:
        raise _Untellable
    if inbound.kind is Kind.CHAT:
        if "messages" not in fields or _has_media(fields["messages"]):
            raise _Untellable
        return [msgspec.json.encode({name: fields[name] for name in CHAT_FIELDS if name in fields})]
    texts = msgspec.json.decode(fields.get("prompt", msgspec.Raw(b'""')), type=str | list[str])
    common = {name: fields[name] for name in TEXT_FIELDS if name in fields}
    return [msgspec.json.encode({**common, "prompt": text}) for text in ([texts] if isinstance(texts, str) else texts)]
