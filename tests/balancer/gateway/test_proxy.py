"""``gateway/proxy.py``: bytes pass untouched, each lease ends once whatever happens, and nobody computes for nobody."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest

from balancer.arms import arm
from balancer.core import NOTHING_ASKED, Asked, Candidate, PrefixHashes
from balancer.openai import MAX_PROMPTS, PATHS
from balancer.stages import Stages
from balancer.tokens import Prompts
from tests.support.gateways import Gateway, close, gateway, get, post, split, unchunk
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

BODY = b'{"model":"m","prompt":[1,2,3,4,5]}'
EVENTS = [b'data: {"choices":[{"text":"a"}]}\n\n', b": silence\n\n", b"data: [DONE]\n\n"]

COMPLETIONS = "/v1/completions"


@contextlib.contextmanager
def named(case: str) -> Iterator[None]:
    """A failure says for which case it is: starting a gateway for each of them would take most of the time."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the case was {case}")
        raise


def error_of(answer: bytes) -> tuple[int, dict[str, str]]:
    status, headers, body = split(answer)
    assert ("Content-Type", "application/json") in [(name, value.partition(";")[0]) for name, value in headers]
    error: dict[str, str] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return int(status.split(" ")[1]), error


# Bytes

ODD = (
    b'\n { "model" :"m",\t"prompt": [1, 2,3] , "seed":123456789012345678901234567890, "x":1e400,'
    b'"user":"\\u00e9\\ud83d\\ude00 \xc3\xa9", "unknown":{"deep":[null,{}]}, "user":"twice" }\r\n'
)


def test_a_body_arrives_byte_for_byte_on_every_path() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for path in PATHS:
                replica.received.clear()
                with named(path):
                    answer = split(await front.exchange(post(path, ODD, "Content-Type: application/json")))
                    (request,) = replica.received
                    assert (request.body, request.target) == (ODD, path)
                    assert answer[2] == OK

    run(check())


def test_a_body_in_pieces_and_a_packed_one_arrive_whole() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            pieces = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: g\r\nUser-Agent: test\r\nConnection: close\r\n"
            pieces += "Transfer-Encoding: chunked\r\n\r\n"
            cut = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
            await front.exchange(pieces.encode() + cut)
            await front.exchange(post(COMPLETIONS, gzip.compress(BODY), "Content-Encoding: gzip"))
            assert [request.body for request in replica.received] == [BODY, BODY]
            assert [request.values("Content-Encoding") for request in replica.received] == [[], []]
            assert [request.values("Content-Length") for request in replica.received] == [[str(len(BODY))]] * 2

    run(check())


def test_a_body_of_megabytes_arrives_byte_for_byte() -> None:
    body = b'{"model":"m","prompt":"' + b"word " * 600_000 + b'"}'

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            assert split(await front.exchange(post(COMPLETIONS, body)))[2] == OK
            assert replica.received[0].body == body

    run(check())


def test_a_form_arrives_with_its_boundary() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x\r\n\r\n\x00\xff\r\n--x--\r\n'
    kind = "multipart/form-data; boundary=x"

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            await front.exchange(post("/v1/audio/transcriptions", form, f"Content-Type: {kind}"))
            assert (replica.received[0].body, replica.received[0].values("Content-Type")) == (form, [kind])

    run(check())


def test_the_query_passes_as_it_was_written() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            await front.exchange(post(COMPLETIONS + "/?a=%26b%20c&a=2&d", BODY))
            assert replica.received[0].target == COMPLETIONS + "?a=%26b%20c&a=2&d"

    run(check())


def test_headers_are_treated_alike_on_every_path() -> None:
    sent = ["Authorization: Bearer x", "traceparent: 00-1-2-01", "x-tag: 1", "X-Tag: 2", "X-data-parallel-rank: 7"]
    sent.append("X-Request-ID: mine")
    expected = [
        ("User-Agent", "test"),
        ("Authorization", "Bearer x"),
        ("traceparent", "00-1-2-01"),
        ("x-tag", "1"),
        ("X-Tag", "2"),
        ("X-Request-ID", "mine"),
        ("Content-Length", str(len(BODY))),
    ]

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for path in PATHS:
                replica.received.clear()
                with named(path):
                    await front.exchange(post(path, BODY, *sent, "Keep-Alive: 5", "TE: trailers"))
                    (request,) = replica.received
                    assert [(name, value) for name, value in request.headers if name != "Host"] == expected
                    assert request.values("Host") == [replica.url.removeprefix("http://")]

    run(check())


@pytest.mark.parametrize("own", [[], ["X-Request-Id: "], ["X-Request-Id: mine"], ["X-Request-Id: \N{SNOWMAN}"]])
def test_a_request_has_one_id_everywhere(own: list[str]) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            _, headers, _ = split(await front.exchange(post(COMPLETIONS, BODY, *own)))
            (sent,) = [value for name, value in headers if name.lower() == "x-request-id"]
            assert replica.received[0].values("X-Request-Id") == [sent]
            (entry,) = front.service.decisions.last(2)
            given = own[0].partition(": ")[2].encode().decode("latin-1") if own else ""
            assert sent == given or (not given and len(sent) == 32)
            assert entry.request_id == sent.encode("latin-1").decode()

    run(check())


def test_an_id_that_is_no_text_passes_and_can_be_told() -> None:
    raw = post(COMPLETIONS, BODY, "X-Request-Id: a?").replace(b"a?", b"a\xff")

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            status, headers, _ = split(await front.exchange(raw))
            assert (status, dict(headers)["x-request-id"]) == ("HTTP/1.1 200 OK", "a\\udcff")
            told = json.loads(split(await front.exchange(get("/debug/decisions?request_id=a%5Cudcff")))[2])
            assert [each["request_id"] for each in told["decisions"]] == ["a\\udcff"]

    run(check())


def test_a_refused_request_has_its_id_too() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            _, headers, _ = split(await front.exchange(post(COMPLETIONS, b"{", "X-Request-Id: mine")))
            assert dict(headers)["x-request-id"] == "mine"

    run(check())


def test_an_answer_passes_byte_for_byte_with_its_headers_once() -> None:
    packed = gzip.compress(OK)

    async def answer(request: Received) -> None:
        fields = ["Content-Type: application/json", "Server: uvicorn", "Date: Thu, 01 Jan 1970 00:00:00 GMT"]
        fields += ["Set-Cookie: a=1", "Set-Cookie: b=2", "Content-Encoding: gzip", "Keep-Alive: 5", "x-request-id: 9"]
        request.answer(packed, status="201 Made", headers="".join(f"{field}\r\n" for field in fields))

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.answer = answer
            status, headers, body = split(await front.exchange(post(COMPLETIONS, BODY)))
            assert (status, body) == ("HTTP/1.1 201 Made", packed)
            assert [value for name, value in headers if name == "Set-Cookie"] == ["a=1", "b=2"]
            names = [name.lower() for name, _ in headers if name != "Set-Cookie"]
            assert len(names) == len(set(names)), "a header that may be there once is there twice"
            assert {"server", "date", "content-encoding", "x-request-id"} <= set(names)
            assert "keep-alive" not in names
            assert dict(headers)["Server"] == "uvicorn"

    run(check())


def test_a_stream_passes_piece_by_piece() -> None:
    async def check() -> None:
        pieces: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(request: Received) -> None:
            request.begin_stream()
            while piece := await pieces.get():
                request.chunk(piece)
            request.chunk(b"")

        async with upstream() as replica, gateway([replica.url]) as front:
            replica.answer = answer
            reader, writer = await front.send(post(COMPLETIONS, BODY))
            pieces.put_nowait(EVENTS[0])
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Type: text/event-stream; charset=utf-8\r\n" in head
            for event, following in zip(EVENTS, [*EVENTS[1:], b""], strict=True):
                # Each comes before the next has been sent: nothing is held back.
                expected = b"%x\r\n%s\r\n" % (len(event), event)
                assert await reader.readexactly(len(expected)) == expected
                pieces.put_nowait(following)
            assert await reader.read() == b"0\r\n\r\n"
            await close(writer)
            assert front.is_idle()

    run(check())


def test_an_event_of_megabytes_passes_whole() -> None:
    event = b'data: {"logprobs":"' + b"x" * 3_000_000 + b'"}\n\n'

    async def answer(request: Received) -> None:
        request.begin_stream()
        for piece in (event, *EVENTS, b""):
            request.chunk(piece)

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.answer = answer
            assert split(await front.exchange(post(COMPLETIONS, BODY)))[2] == event + b"".join(EVENTS)

    run(check())


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "429 Slow Down", "500 Oops", "503 Busy"])
def test_an_error_of_the_replica_is_the_answer(status: str) -> None:
    async def answer(request: Received) -> None:
        request.answer(b'{"error":  {"message":"no"}}', status=status, headers="Retry-After: 7\r\n")

    async def check() -> None:
        async with upstream() as replica, upstream() as other, gateway([replica.url, other.url]) as front:
            replica.answer = other.answer = answer
            first, headers, body = split(await front.exchange(post(COMPLETIONS, BODY)))
            assert (first, body) == (f"HTTP/1.1 {status}", b'{"error":  {"message":"no"}}')
            assert ("Retry-After", "7") in headers
            asked = 2 if status == "503 Busy" else 1
            assert len(replica.received) + len(other.received) == asked, "an answer was asked for twice"
            assert await front.outcomes() == {"error": asked}
            assert front.is_idle()

    run(check())


def test_a_redirection_is_the_clients_to_follow() -> None:
    async def answer(request: Received) -> None:
        request.answer(b"", status="307 Elsewhere", headers="Location: /v1/embeddings\r\n")

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.answer = answer
            status, headers, _ = split(await front.exchange(post(COMPLETIONS, BODY)))
            assert (status, dict(headers)["Location"]) == ("HTTP/1.1 307 Elsewhere", "/v1/embeddings")
            assert len(replica.received) == 1

    run(check())


# Endings: every path, every way

Ending = Callable[[Gateway, Upstream, str], Awaitable[None]]


async def _client_leaves_before_an_answer(front: Gateway, replica: Upstream, path: str) -> None:
    async def silence(request: Received) -> None: ...

    replica.answer = silence
    await _leave_after(front, replica, path, lambda: bool(replica.received))


async def _client_leaves_in_a_stream(front: Gateway, replica: Upstream, path: str) -> None:
    async def answer(request: Received) -> None:
        request.begin_stream()
        request.chunk(EVENTS[0])

    replica.answer = answer
    _, writer = await front.send(post(path, BODY))
    live = front.service.router.fleet
    await eventually(lambda: live.open_leases == 1 and all(each.queued_tokens == 0 for each in live))
    await close(writer)
    async with asyncio.timeout(1):
        await replica.received[-1].gone.wait()
    await eventually(front.is_idle)
    assert await front.outcomes(path) == {"cancelled": 1}


async def _leave_after(front: Gateway, replica: Upstream, path: str, condition: Callable[[], bool]) -> None:
    _, writer = await front.send(post(path, BODY))
    await eventually(condition)
    await close(writer)
    async with asyncio.timeout(1):
        await replica.received[-1].gone.wait()
    await eventually(front.is_idle)
    assert await front.outcomes(path) == {"cancelled": 1}


async def _replica_resets_before_an_answer(front: Gateway, replica: Upstream, path: str) -> None:
    async def answer(request: Received) -> None:
        request.reset()

    replica.answer = answer
    status, error = error_of(await front.exchange(post(path, BODY)))
    assert (status, error["code"]) == (502, "replica_failed")
    assert await front.outcomes(path) == {"unreachable": 1}


def assert_ends_with_error(path: str, rest: bytes) -> None:
    """As the dialect of this path says it, and as an event of its own whatever came before."""
    assert rest.startswith(b"\n\n")
    assert rest.endswith(b"\n\n")
    *named, data = rest.strip().split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    if path == "/v1/messages":
        assert (named, told["type"], told["error"]["type"]) == ([b"event: error"], "error", "api_error")
    elif path == "/v1/responses":
        assert (named, told["type"], told["code"]) == ([b"event: error"], "error", "replica_failed")
    else:
        assert (named, told["error"]["code"]) == ([], "replica_failed")


async def _replica_dies_in_a_stream(front: Gateway, replica: Upstream, path: str) -> None:
    async def answer(request: Received) -> None:
        request.begin_stream()
        request.chunk(EVENTS[0])
        request.reset()

    replica.answer = answer
    head, _, rest = (await front.exchange(post(path, BODY))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    body, is_whole = unchunk(rest)
    assert not is_whole, "the client must not take this for the whole answer"
    assert body.startswith(EVENTS[0])
    assert_ends_with_error(path, body.removeprefix(EVENTS[0]))
    assert len(replica.received) == 1, "never asked again once a byte has come"
    assert await front.outcomes(path) == {"error": 1}


async def _replica_falls_silent_in_a_stream(front: Gateway, replica: Upstream, path: str) -> None:
    async def answer(request: Received) -> None:
        request.begin_stream()
        request.chunk(EVENTS[0])

    replica.answer = answer
    body, is_whole = unchunk((await front.exchange(post(path, BODY))).partition(b"\r\n\r\n")[2])
    assert not is_whole
    assert_ends_with_error(path, body.removeprefix(EVENTS[0]))
    async with asyncio.timeout(1):
        await replica.received[-1].gone.wait()
    assert await front.outcomes(path) == {"error": 1}


async def _replica_dies_in_a_plain_answer(front: Gateway, replica: Upstream, path: str) -> None:
    async def answer(request: Received) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        request.close()

    replica.answer = answer
    status, error = error_of(await front.exchange(post(path, BODY)))
    assert (status, error["code"]) == (502, "replica_failed"), "nothing of it had been given"
    assert await front.outcomes(path) == {"unreachable": 1}


async def _replica_dies_in_a_long_answer(front: Gateway, replica: Upstream, path: str) -> None:
    begun = b"{" * 100_000

    async def answer(request: Received) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n" + begun)
        request.close()

    replica.answer = answer
    _, _, body = (await front.exchange(post(path, BODY))).partition(b"\r\n\r\n")
    assert body == begun, "the promised length is not reached, so the client notices"
    assert await front.outcomes(path) == {"error": 1}


async def _replica_is_silent(front: Gateway, replica: Upstream, path: str) -> None:
    async def silence(request: Received) -> None: ...

    replica.answer = silence
    status, error = error_of(await front.exchange(post(path, BODY)))
    assert (status, error["code"]) == (504, "replica_timeout")
    assert len(replica.received) == 1
    assert await front.outcomes(path) == {"error": 1}


async def _all_is_well(front: Gateway, replica: Upstream, path: str) -> None:
    assert split(await front.exchange(post(path, BODY)))[2] == OK
    assert await front.outcomes(path) == {"ok": 1}


ENDINGS: dict[str, Ending] = {
    function.__name__.strip("_"): function
    for function in (
        _all_is_well,
        _client_leaves_before_an_answer,
        _client_leaves_in_a_stream,
        _replica_resets_before_an_answer,
        _replica_dies_in_a_stream,
        _replica_falls_silent_in_a_stream,
        _replica_dies_in_a_plain_answer,
        _replica_dies_in_a_long_answer,
        _replica_is_silent,
    )
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_ending_leaves_anything_behind_on_any_path(ending: str) -> None:
    async def check() -> None:
        limits = {"first_byte_seconds": 0.05, "idle_seconds": 0.05} if "silent" in ending else {}
        async with upstream() as replica, gateway([replica.url], timeouts=limits) as front:
            for path in PATHS:
                await eventually(lambda: front.service.is_ready)
                replica.received.clear()
                with named(path):
                    await ENDINGS[ending](front, replica, path)
                    assert front.is_idle()
                    assert not front.service.router._open

    run(check())


def test_a_client_that_leaves_during_tokenisation_leaves_nothing() -> None:
    async def silence(request: Received) -> None: ...

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.paths[COMPLETIONS + "/render"] = silence
            _, writer = await front.send(post(COMPLETIONS, b'{"model":"m","prompt":"text"}'))
            await eventually(lambda: replica.questions[-1].path == COMPLETIONS + "/render")
            await close(writer)
            async with asyncio.timeout(1):
                await replica.questions[-1].gone.wait()
            assert front.is_idle()
            assert not replica.received

    run(check())


def test_a_replica_that_is_gone_is_not_needed_to_tokenise() -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack, upstream() as good:
            good.paths[COMPLETIONS + "/render"] = b'[{"token_ids":[1,2,3,4,5]}]'
            async with upstream() as gone:
                front = await stack.enter_async_context(gateway([gone.url, good.url], health={"interval_seconds": 60}))
            fleet = front.service.router.fleet
            busy = fleet.acquire(next(live for live in fleet if live.replica.endpoint == good.url), 0, 0, 0.0)
            answer = await front.exchange(post(COMPLETIONS, b'{"model":"m","prompt":"text"}'))
            fleet.release(busy, 0.0)
            _, headers, body = split(answer)
            assert body == OK
            assert dict(headers)["x-kvlb-prompt-tokens"] == "5"
            assert await front.outcomes() == {"ok": 1}, "that it is gone was known before the request was routed"
            assert front.is_idle()

    run(check())


@pytest.mark.parametrize("close_how", ["reset", "close"])
def test_a_replica_that_breaks_off_before_its_answer_is_replaced(close_how: str) -> None:
    async def answer(request: Received) -> None:
        getattr(request, close_how)()

    async def check() -> None:
        async with upstream() as bad, upstream() as good:
            bad.answer = answer
            async with gateway([bad.url, good.url], policy={"name": "round_robin"}) as front:
                for _ in range(2):
                    assert split(await front.exchange(post(COMPLETIONS, BODY)))[2] == OK
                tried = len(bad.received)
                assert tried in {1, 2}, "by name, so by chance; it answers, so whether it is lost is for probes to say"
                assert len(good.received) == 2
                assert all(request.body == BODY for request in good.received)
                assert await front.outcomes() == {"ok": 2, "unreachable": tried}
                assert front.is_idle()

    run(check())


def test_all_replicas_are_tried_and_each_once() -> None:
    async def answer(request: Received) -> None:
        request.reset()

    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url]) as front:
            one.answer = two.answer = answer
            status, error = error_of(await front.exchange(post(COMPLETIONS, BODY)))
            assert (status, error["code"]) == (502, "replica_failed")
            assert (len(one.received), len(two.received)) == (1, 1)

    run(check())


def test_a_replica_that_accepts_and_never_answers_does_not_hold_up_the_others() -> None:
    async def silence(request: Received) -> None: ...

    async def check() -> None:
        async with upstream() as deaf, upstream() as good:
            deaf.answer = silence
            async with gateway([deaf.url, good.url], policy={"name": "least_load"}) as front:
                held = [await front.send(post(COMPLETIONS, BODY)) for _ in range(2)]
                await eventually(lambda: deaf.received and len(deaf.received) + len(good.received) == 2)
                for _ in range(5):
                    assert split(await front.exchange(post(COMPLETIONS, BODY)))[2] == OK
                assert len(deaf.received) == 1
                for _, writer in held:
                    await close(writer)
                await eventually(front.is_idle)

    run(check())


def test_an_error_of_kvlbs_own_is_one_too_and_leaves_nothing() -> None:
    class Broken:
        def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
            raise ZeroDivisionError

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            front.service.router.arms.first = arm("broken", Broken())
            status, error = error_of(await front.exchange(post(COMPLETIONS, BODY)))
            assert (status, error["type"]) == (500, "internal_error")
            assert front.is_idle()

    run(check())


# Refusals


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        (b"{", 400, None, "the body is not valid JSON"),
        (b"[1]", 400, None, "the body must be a JSON object"),
        (b'{"model":1}', 400, None, "model: expected a string"),
        (b'{"model":"nope"}', 404, "model_not_found", "the model 'nope' is not served here; served: m"),
        (b'{"model":"\xff"}', 400, None, "the body is not valid JSON"),
    ],
)
def test_a_wrong_body_is_told_what_is_wrong(body: bytes, status: int, code: str | None, message: str) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            told, error = error_of(await front.exchange(post(COMPLETIONS, body)))
            assert (told, error["code"]) == (status, code)
            assert error["message"].startswith(message)
            assert not replica.received

    run(check())


def test_a_text_request_of_many_prompts_is_routed_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(count: int) -> list[int]:
        """How many prompts the router hears of, when the engine makes ``count`` of a request."""
        seen: list[int] = []
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.paths[f"{COMPLETIONS}/render"] = json.dumps([{"token_ids": [1, 2]}] * count).encode()
            hashes = front.service.hashes

            def counted(prompts: Prompts, salt: str | None, stages: Stages) -> PrefixHashes:
                seen.append(len(prompts))
                return hashes(prompts, salt, stages)

            monkeypatch.setattr(front.service, "hashes", counted)
            await front.exchange(post(COMPLETIONS, b'{"model":"m","prompt":["a"]}'))
        return seen

    assert run(check(MAX_PROMPTS)) == [MAX_PROMPTS]
    assert run(check(MAX_PROMPTS + 1)) == []


def test_a_header_that_is_no_text_is_refused_as_any_other() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            wrong = post(COMPLETIONS, BODY, "Content-Encoding: ?").replace(b"?", b"\xff")
            status, error = error_of(await front.exchange(wrong))
            assert (status, error["code"]) == (415, "unknown_encoding")
            assert error["message"].startswith(r"Content-Encoding: '\udcff' is not read here")

    run(check())


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_read(is_chunked: bool) -> None:
    """A body that would be a thousand times the limit: the answer comes while most of it has not been sent."""

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], server={"max_body_bytes": 1000}) as front:
            kind = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 1000000"
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: g\r\n{kind}\r\n\r\n"
            piece = b"5dc\r\n" + b"x" * 1500 + b"\r\n" if is_chunked else b""
            reader, writer = await front.send(head.encode() + piece)
            async with asyncio.timeout(2):
                answer = await reader.readuntil(b"}}")
            await close(writer)
            status, error = error_of(answer)
            assert (status, error["code"]) == (413, "body_too_large")
            assert "server.max_body_bytes" in error["message"]
            assert not replica.received

    run(check())


def test_a_body_at_the_limit_is_accepted() -> None:
    async def check() -> None:
        async with (
            upstream() as replica,
            gateway([replica.url], server={"max_body_bytes": len(BODY)}) as front,
        ):
            assert split(await front.exchange(post(COMPLETIONS, BODY)))[2] == OK
            assert error_of(await front.exchange(post(COMPLETIONS, BODY + b" ")))[0] == 413

    run(check())


def test_a_packed_body_counts_unpacked() -> None:
    bomb = gzip.compress(b'{"model":"m","pad":"' + b"x" * 50_000_000 + b'"}')

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], server={"max_body_bytes": 1_000_000}) as front:
            assert error_of(await front.exchange(post(COMPLETIONS, bomb, "Content-Encoding: gzip")))[0] == 413
            assert not replica.received

    run(check())


@pytest.mark.parametrize("body", [gzip.compress(BODY)[:-12], b"no gzip at all"], ids=["cut", "none"])
def test_a_broken_packed_body_is_the_clients_fault(body: bytes) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            assert error_of(await front.exchange(post(COMPLETIONS, body, "Content-Encoding: gzip")))[0] == 400
            assert not replica.received

    run(check())


@pytest.mark.parametrize("encoding", ["br", "zstd", "rot13", "gzip, gzip"])
def test_an_encoding_that_is_not_read_here_is_refused(encoding: str) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            status, error = error_of(await front.exchange(post(COMPLETIONS, BODY, f"Content-Encoding: {encoding}")))
            assert (status, error["code"]) == (415, "unknown_encoding")
            assert not replica.received

    run(check())


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 40",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding : chunked",
        "X: a\n Transfer-Encoding: chunked",
    ],
)
def test_nothing_that_could_be_cut_in_two_ways_is_forwarded(framing: str) -> None:
    hidden = post(COMPLETIONS, BODY, "X-Hidden: yes")
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: g\r\nUser-Agent: test\r\n{framing}\r\n\r\n".encode()

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            answer = await front.exchange(head + b"0\r\n\r\n" + hidden)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"HTTP/1.1 ") == 1
            assert not replica.received

    run(check())


def test_a_body_in_odd_chunks_is_forwarded_with_a_length_and_nothing_else() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: g\r\nUser-Agent: test\r\nConnection: close\r\n"
            head += "Transfer-Encoding: chunked\r\n\r\n"
            chunks = b'%x;a="\xff"\r\n%b\r\n0\r\nX-data-parallel-rank: 3\r\nAuthorization: x\r\n\r\n' % (
                len(BODY),
                BODY,
            )
            await front.exchange(head.encode() + chunks)
            (request,) = replica.received
            assert request.body == BODY
            names = {name.lower() for name, _ in request.headers}
            assert names == {"host", "user-agent", "x-request-id", "content-length"}

    run(check())


def test_a_client_that_has_said_its_last_word_still_gets_its_answer() -> None:
    async def answer(request: Received) -> None:
        await asyncio.sleep(0.2)
        request.answer(OK)

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            replica.answer = answer
            reader, writer = await front.send(post(COMPLETIONS, BODY))
            writer.write_eof()
            assert (await reader.read()).endswith(OK)
            await close(writer)
            assert await front.outcomes() == {"ok": 1}

    run(check())


def test_a_refused_request_does_not_poison_the_next_on_its_connection() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            answers = await front.exchange(post(COMPLETIONS, b"{", close=False) + post(COMPLETIONS, BODY))
            assert answers.count(b"HTTP/1.1 400") == 1
            assert answers.endswith(OK)

    run(check())


def test_no_client_can_spoil_the_index_by_report_mode() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            body = b'{"model":"m", "prompt":[1,2], "vllm_xargs":{"kv_cache_report_mode":"full","kept":1}}'
            await front.exchange(post(COMPLETIONS, body))
            (received,) = replica.received
            assert json.loads(received.body) == {"model": "m", "prompt": [1, 2], "vllm_xargs": {"kept": 1}}

    run(check())


def test_a_prompt_that_no_engine_takes_is_not_hashed() -> None:
    """A million token ids cost half a second of hashing, and the engine refuses them anyway: its words are the answer."""

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            assert front.service.max_model_len("m") == 4096
            answer = await front.exchange(post(COMPLETIONS, json.dumps({"model": "m", "prompt": [7] * 4097}).encode()))
            assert split(answer)[2] == OK, "whatever the replica says"
            assert front.service.memory.bytes_held == 0
            assert await front.samples("kvlb_routed_prompt_tokens_total") == []

    run(check())
