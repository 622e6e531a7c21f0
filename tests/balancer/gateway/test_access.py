"""``gateway/access.py``: whoever has no key reaches nothing, and whoever has one reaches what is his."""

import asyncio
import json
import logging
import os
import shutil
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

from balancer import key_source
from balancer.errors import BadRequest, Forbidden, UnknownModel, UpstreamFailed
from balancer.gateway.access import Access, Admitted, Visit
from balancer.isolation import Salts
from balancer.openai import PATHS, read
from balancer.security import TlsSettings
from balancer.settings import Settings, convert
from balancer.tenants import ANYBODY, Caller
from balancer.tls import ServerTls
from tests.support.certificates import Authority, needs_openssl
from tests.support.gateways import Gateway, close, gateway, get, post, split
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

A, B, OPS = "sk-aaaaaaaaaaaaaaaa", "sk-bbbbbbbbbbbbbbbb", "sk-cccccccccccccccc"
KEYS = f"""
[[keys]]
key = "{A}"
tenant = "a"
models = ["m"]

[[keys]]
key = "{B}"
tenant = "b"
models = ["other*"]

[[keys]]
key = "{OPS}"
tenant = "ops"
admin = true
trusted = true
"""
SALTS = Salts(b"0123456789abcdef", {})
COMPLETIONS, GENERATE = "/v1/completions", "/inference/v1/generate"
BODY = b'{"model":"m","prompt":[1,2,3,4,5]}'


def settings(**sections: Any) -> Settings:
    return convert(sections)


def admit(access: Access, caller: Caller, body: bytes, path: str = COMPLETIONS, *priorities: str) -> Admitted:
    return access.admit(Visit(caller, priorities), path, read(path, "application/json", body), body)


def salt_of(body: bytes) -> Any:
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    (salt,) = [value for name, value in pairs if name == "cache_salt"]
    return salt


# One body


def test_without_settings_a_body_goes_on_as_the_very_same_bytes() -> None:
    for path in PATHS:
        body = b' {"model":"m","cache_salt":"own", "x":1e400}\n'
        admitted = admit(Access(settings()), ANYBODY, body, path)
        assert admitted.body is body
        assert admitted.salt == "own"


def test_each_tenant_gets_its_salt_on_every_path_that_computes() -> None:
    access = Access(settings(), None, SALTS)
    computed = [
        path for path in PATHS if not path.endswith(("render", "tokenize", "count_tokens")) and "audio" not in path
    ]
    assert len(computed) > 12
    for path in computed:
        one, other = (admit(access, Caller(tenant=tenant), BODY, path) for tenant in ("a", "b"))
        assert salt_of(one.body) == one.salt == SALTS.salt("a")
        assert salt_of(other.body) == other.salt == SALTS.salt("b")
        assert one.body.startswith(BODY[:-1])


def test_a_clients_salt_is_mixed_in_and_never_sent() -> None:
    access = Access(settings(), None, SALTS)
    victim = SALTS.salt("b")
    body = b'{"cache_salt":"first","model":"m","cache_s\\u0061lt":"%s"}' % victim.encode()
    admitted = admit(access, Caller(tenant="a"), body)
    assert salt_of(admitted.body) == admitted.salt == SALTS.salt("a", victim)
    assert victim.encode() not in admitted.body


@pytest.mark.parametrize("salt", [b'""', b"5", b"[]", b"false"])
def test_what_is_no_salt_is_refused_where_salts_are_ours(salt: bytes) -> None:
    with pytest.raises(BadRequest, match="cache_salt"):
        admit(Access(settings(), None, SALTS), Caller(tenant="a"), b'{"cache_salt":%s}' % salt)


def test_clients_salts_can_be_refused() -> None:
    access = Access(settings(tenants={"client_salt": "refuse"}), None, SALTS)
    with pytest.raises(Forbidden, match="cache_salt"):
        admit(access, Caller(tenant="a"), b'{"cache_salt":"x"}')
    assert admit(access, Caller(tenant="a"), b'{"cache_salt":null}').salt == SALTS.salt("a")


def test_what_would_go_round_the_salts_is_refused() -> None:
    strict, lax = (Access(settings(tenants={"unsalted": rule}), None, SALTS) for rule in ("refuse", "pass"))
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--'
    speech = "/v1/audio/transcriptions"
    inbound = read(speech, "multipart/form-data; boundary=x", form)
    with pytest.raises(Forbidden, match="audio"):
        strict.admit(Visit(Caller(tenant="a")), speech, inbound, form)
    assert lax.admit(Visit(Caller(tenant="a")), speech, inbound, form) == Admitted(form, None, None)
    named = b'{"token_ids":[1],"features":{"mm_hashes":{"image":["theirs"]}}}'
    with pytest.raises(Forbidden, match="features"):
        admit(strict, Caller(tenant="a"), named, GENERATE)
    assert admit(lax, Caller(tenant="a"), named, GENERATE).salt == SALTS.salt("a")


def test_what_steers_engines_is_for_trusted_keys_alone() -> None:
    access = Access(settings())
    body = b'{"model":"m","kv_transfer_params":{"remote_host":"evil"},"priority":-7}'
    with pytest.raises(Forbidden, match="priority"):
        admit(access, Caller(), body)
    allowed = admit(access, Caller(priority=-7), body)
    assert json.loads(allowed.body) == {"model": "m", "priority": -7}
    assert allowed.priority == -7
    assert not allowed.has_params
    assert admit(access, Caller(is_trusted=True), body) == Admitted(body, None, -7, has_params=True)
    for own in (b'{"vllm_xargs":{"kv_transfer_params":{}}}', b'{"kv_transfer_params":{}}'):
        assert admit(Access(settings(clients={"transfer_params": "pass"})), Caller(), own).has_params
    for other in (b'{"ec_transfer_params":{}}', b'{"kv_transfer_params":null}', b"{}"):
        assert not admit(Access(settings(clients={"transfer_params": "pass"})), Caller(), other).has_params


@pytest.mark.parametrize(
    ("rule", "header", "allowed", "priority"),
    [
        ("check", "5", True, 5),
        ("check", "\xa0-1", False, None),
        ("check", "nonsense", True, 3),
        ("refuse", "5", False, None),
        ("refuse", "nonsense", True, None),
        ("strip", "-9", True, None),
        ("pass", "-9", True, -9),
    ],
)
def test_the_header_of_a_priority_is_judged_like_the_field(
    rule: str, header: str, allowed: bool, priority: int | None
) -> None:
    access = Access(settings(clients={"priority": rule}))
    body = b'{"model":"m"}' if rule == "refuse" else b'{"model":"m","priority":3}'
    if allowed:
        assert admit(access, Caller(), body, COMPLETIONS, header).priority == priority
    else:
        with pytest.raises(Forbidden):
            admit(access, Caller(), body, COMPLETIONS, header)


def test_a_key_of_low_priority_is_not_served_earlier_by_asking_for_none() -> None:
    late = Caller(priority=10)
    for rule, body in (("check", BODY), ("check", b'{"priority":null}'), ("strip", b'{"priority":-5}')):
        admitted = admit(Access(settings(clients={"priority": rule})), late, body)
        assert json.loads(admitted.body)["priority"] == admitted.priority == 10
    assert json.loads(admit(Access(settings()), late, b'{"priority":11}').body) == {"priority": 11}
    assert admit(Access(settings()), late, BODY, COMPLETIONS, "12").body is BODY
    with pytest.raises(Forbidden):
        admit(Access(settings()), late, b'{"priority":9}')


def test_no_header_of_several_can_be_more_urgent() -> None:
    with pytest.raises(Forbidden):
        admit(Access(settings()), Caller(), BODY, COMPLETIONS, "5", "-5")


def test_whoever_has_a_list_of_models_is_not_told_of_others() -> None:
    access = Access(settings())
    error = UnknownModel("served: secret-model")
    assert access.told(ANYBODY, error) is error
    assert "secret-model" not in access.told(Caller(models=("m",)), error).message


def test_replicas_are_named_only_to_whoever_may_know_the_fleet() -> None:
    error = UpstreamFailed("replica 10.0.0.1:8000 cannot be reached")
    assert "10.0.0.1" not in Access(settings()).told(ANYBODY, error).message
    assert Access(settings(server={"expose_decisions": True})).told(ANYBODY, error) is error


# Through a gateway


def authorized(key: str) -> str:
    return f"Authorization: Bearer {key}"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def file_of_keys(folder: Path, text: str = KEYS) -> str:
    file = folder / "keys.toml"
    file.write_text(text)
    return str(file)


async def refused(front: Gateway, replica: Upstream, request: bytes) -> tuple[int, dict[str, Any], dict[str, str]]:
    """(status, error, headers) of a request that must reach nobody."""
    before = len(replica.received)
    answer = await front.exchange(request)
    told, headers, body = split(answer)
    assert len(replica.received) == before
    assert front.is_idle()
    return int(told.split(" ")[1]), json.loads(body)["error"], {name.lower(): value for name, value in headers}


def test_no_path_reaches_an_engine_or_the_state_of_the_fleet_without_a_key(tmp_path: Path) -> None:
    own = [
        "/metrics",
        "/v1/models",
        "/v1/models/m",
        "/kvlb/status",
        "/kvlb/load",
        "/kvlb/snapshot",
        "/debug/decisions",
        "/debug/facts",
    ]
    own += ["/index/replicas", "/reset_prefix_cache", "/nothing", "/health/../metrics", "//health", "/health%2f"]

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], auth={"keys_file": file_of_keys(tmp_path)}) as front:
            for header in ([], [authorized("sk-dddddddddddddddd")], ["Authorization: Basic x"], ["x-api-key: "]):
                for request in [post(path, BODY, *header) for path in PATHS] + [
                    get(path, "GET", *header) for path in own
                ]:
                    told, error, headers = await refused(front, replica, request)
                    assert (told, error["code"]) == (401, "invalid_api_key")
                    assert headers["www-authenticate"].startswith("Bearer")
            for path in ("/health", "/ping", "/ready"):
                assert status(await front.exchange(get(path))) == 200
            assert replica.questions
            assert not any(A in str(question.headers) for question in replica.questions)

    run(check())


def test_a_large_body_is_not_read_before_there_is_a_key(tmp_path: Path) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], auth={"keys_file": file_of_keys(tmp_path)}) as front:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: g\r\nUser-Agent: test\r\n"
            for framing in ("Content-Length: 60000000", "Transfer-Encoding: chunked", "Content-Length: 20000"):
                for expect in ("", "Expect: 100-continue\r\n"):
                    answer = await front.exchange(f"{head}{framing}\r\n{expect}\r\n".encode())
                    assert status(answer) == 401
                    assert b'"invalid_api_key"' in answer
            reader, writer = await front.send(
                f"{head}{authorized(A)}\r\nContent-Length: 20000\r\nExpect: 100-continue\r\n\r\n".encode()
            )
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            await close(writer)
            body = BODY.replace(b"5", b"5," * 20_000 + b"6")
            assert status(await front.exchange(post(COMPLETIONS, body, authorized(A)))) == 200
            assert replica.received[-1].body == body

    run(check())


def test_a_key_reaches_its_models_and_an_admin_the_state_of_the_fleet(tmp_path: Path) -> None:
    async def check() -> None:
        auth = {"keys_file": file_of_keys(tmp_path)}
        async with upstream() as replica, gateway([replica.url], auth=auth, upstream={"api_key": "theirs"}) as front:
            for header in (authorized(A), f"x-api-key: {A}"):
                assert status(await front.exchange(post(COMPLETIONS, BODY, header))) == 200
                assert replica.received[-1].values("Authorization") == ["Bearer theirs"]
                assert replica.received[-1].values("x-api-key") == []
            for body in (BODY, b'{"model":"nothing","prompt":[1]}', b'{"prompt":[1]}'):
                told, error, _ = await refused(front, replica, post(COMPLETIONS, body, authorized(B)))
                assert (told, "m" in error["message"].split()) in {(404, False), (503, False)}
            assert [
                [each["id"] for each in json.loads(split(await front.exchange(request))[2])["data"]]
                for request in (get("/v1/models", "GET", authorized(key)) for key in (A, B, OPS))
            ] == [["m"], [], ["m"]]
            assert status(await front.exchange(get("/v1/models/m", "GET", authorized(B)))) == 404
            for path in ("/metrics", "/kvlb/status", "/debug/decisions", "/v1/models/../../debug/decisions"):
                told, error, _ = await refused(front, replica, get(path, "GET", authorized(A)))
                assert (told, error["code"]) == (403, "not_allowed")
            for path in ("/metrics", "/kvlb/status", "/debug/decisions"):
                assert status(await front.exchange(get(path, "GET", authorized(OPS)))) == 200

    run(check())


def test_each_key_has_its_own_limits_and_a_request_its_tenant(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def slowly(request: Received) -> None:
        await may_go_on.wait()
        request.answer(OK)

    async def check() -> None:
        auth = {"keys_file": file_of_keys(tmp_path, KEYS.replace('models = ["m"]', "concurrent_requests = 1"))}
        async with upstream() as replica, gateway([replica.url], auth=auth) as front:
            replica.answer = slowly
            first = asyncio.ensure_future(front.exchange(post(COMPLETIONS, BODY, authorized(A))))
            await eventually(lambda: replica.received)
            refusal = split(await front.exchange(post(COMPLETIONS, BODY, authorized(A))))
            assert " 429 " in refusal[0]
            assert "a-" in json.loads(refusal[2])["error"]["message"]
            second = asyncio.ensure_future(front.exchange(post(COMPLETIONS, BODY, authorized(OPS))))
            await eventually(lambda: len(replica.received) == 2)
            may_go_on.set()
            assert [status(await each) for each in (first, second)] == [200, 200]
            assert status(await front.exchange(post(COMPLETIONS, BODY, authorized(A)))) == 200

    run(check())


def test_keys_that_are_taken_away_are_refused_at_once_and_a_bad_file_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_source, "LOOK_SECONDS", 0.01)

    async def check() -> None:
        name = file_of_keys(tmp_path)
        async with upstream() as replica, gateway([replica.url], auth={"keys_file": name}) as front:
            asking = post(COMPLETIONS, BODY, authorized(A))
            assert status(await front.exchange(asking)) == 200
            file_of_keys(tmp_path, "[[keys]]\n")
            await eventually(lambda: "stays as it was" in caplog.text)
            assert status(await front.exchange(asking)) == 200
            file_of_keys(tmp_path, KEYS.replace(A, "sk-eeeeeeeeeeeeeeee"))
            await eventually(lambda: "auth.keys_file: read again" in caplog.text)
            assert status(await front.exchange(asking)) == 401

    with caplog.at_level(logging.INFO):
        run(check())
    assert A not in caplog.text


def test_tenants_are_kept_apart_in_what_replicas_get_and_in_our_hashes(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")

    async def check() -> None:
        tenants = {"isolation": True, "secret_file": str(secret), "groups": {"both": ["a", "ops"]}}
        auth = {"keys_file": file_of_keys(tmp_path, KEYS.replace('models = ["other*"]', ""))}
        async with upstream() as replica, gateway([replica.url], auth=auth, tenants=tenants) as front:
            for key in (A, B, OPS):
                assert status(await front.exchange(post(COMPLETIONS, BODY, authorized(key)))) == 200
            a, b, ops = (salt_of(request.body) for request in replica.received)
            assert a == ops != b
            entries = front.service.decisions.last(3)
            assert [entry.salt == entries[0].salt for entry in entries] == [True, False, True]
            told, error, _ = await refused(
                front, replica, post("/v1/responses", b'{"model":"m","previous_response_id":"x"}', authorized(A))
            )
            assert (told, error["param"]) == (403, "previous_response_id")

    run(check())


@pytest.mark.parametrize(
    "field", [{"kv_transfer_params": {"remote_host": "evil"}}, {"vllm_xargs": {"kv_cache_report_mode": "full"}}]
)
def test_what_steers_engines_does_not_reach_them(field: dict[str, Any]) -> None:
    headers = [
        "x-prefiller-host-port: 169.254.169.254:80",
        "X-Gateway-Destination-Endpoint: evil:1",
        "x-kvlb-replica: r",
    ]
    headers += [
        "X-data-parallel-rank: 3",
        "Origin: https://a.example",
        "x-request-id: ___prefill_addr_evil:1___decode_addr_evil:2_1",
    ]

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for path in PATHS:
                body = json.dumps({"model": "m", "prompt": [1], "token_ids": [1], **field}).encode()
                await front.exchange(post(path, body, "Content-Type: application/json", *headers))
                assert b"evil" not in replica.received[-1].body
                assert b"full" not in replica.received[-1].body
                assert "evil" not in str(replica.received[-1].headers)
                assert {name.lower() for name, _ in replica.received[-1].headers} == {
                    "host",
                    "user-agent",
                    "content-type",
                    "content-length",
                    "x-request-id",
                }

    run(check())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"model":"m","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {400}),
        (b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, {400}),
        (b'{"model":"m","prompt":[' + b"9" * 1_000_000 + b"]}", {200, 400}),
        (b'{"model":"m","prompt":[1],"seed":1e' + b"9" * 100_000 + b"}", {200, 400}),
        (b'{"model":"nothing","prompt":[1],"model":"m","kv_transfer_params":null,"kv_transfer_params":{"a":1}}', {200}),
        (b'{"model":"m","prompt":[1],"model":"nothing"}', {404}),
        (b'{"model":"m","prompt":[1],"\xed\xa0\x80":1,"kv_transfer_params":{"a":1}}', {400}),
        (b"{" + b'"a":1,' * 200_000 + b'"model":"m","kv_transfer_params":{"a":1}}', {200}),
    ],
)
def test_bodies_that_are_bombs_or_traps_are_refused_or_harmless(body: bytes, told: set[int]) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            assert status(await front.exchange(post(COMPLETIONS, body))) in told
            assert all(b"kv_transfer_params" not in request.body for request in replica.received)
            assert status(await front.exchange(post(COMPLETIONS, BODY))) == 200
            assert front.is_idle()

    run(check())


def test_no_client_writes_lines_into_the_log_or_into_heads(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for line in ("x-request-id: a\x1b[31m", "x-request-id: a\rb", "x-request-id: a\nX-Injected: 1", "x-a: b\0"):
                assert status(await front.exchange(post(COMPLETIONS, BODY, line))) == 400
            assert not replica.received
            for path in ("/a\x1b[31m", "/%0aforged", "/kvlb/status%0d%0aX: 1"):
                await front.exchange(get(path))

    with caplog.at_level(logging.DEBUG):
        run(check())
    assert not any(
        set(record.getMessage()) & set("\r\n\x1b") for record in caplog.records if record.name.startswith("balancer")
    )


# Browsers


def test_a_preflight_needs_no_key_and_answers_may_be_read(tmp_path: Path) -> None:
    origin = "Origin: https://a.example"
    asked = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"]

    async def check() -> None:
        auth, cors = {"keys_file": file_of_keys(tmp_path)}, {"origins": ["https://a.example"]}
        async with upstream() as replica, gateway([replica.url], auth=auth, cors=cors) as front:
            for path in (COMPLETIONS, "/v1/models", "/v1/chat/completions/"):
                told, headers, _ = split(await front.exchange(get(path, "OPTIONS", origin, *asked)))
                assert told.startswith("HTTP/1.1 204")
                assert dict(headers)["Access-Control-Allow-Origin"] == "https://a.example"
                assert dict(headers)["Access-Control-Allow-Headers"] == "authorization"
            for request in (post(COMPLETIONS, BODY, origin, authorized(A)), post(COMPLETIONS, BODY, origin)):
                found = [name for name, _ in split(await front.exchange(request))[1]]
                assert found.count("Access-Control-Allow-Origin") == 1
            stranger = split(await front.exchange(post(COMPLETIONS, BODY, "Origin: https://b.example", authorized(A))))
            assert "Access-Control-Allow-Origin" not in dict(stranger[1])

    run(check())


def test_without_origins_a_preflight_is_answered_and_allows_nothing() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            told, headers, _ = split(await front.exchange(get(COMPLETIONS, "OPTIONS", "Origin: https://a.example")))
            assert told.startswith("HTTP/1.1 204")
            assert dict(headers)["Allow"] == "POST, OPTIONS"
            assert not any(name.startswith("Access-Control") for name, _ in headers)

    run(check())


# TLS


async def heard(front: Gateway, tls: ssl.SSLContext | None) -> None:
    """Return once an answer has come.

    Raises:
        ssl.SSLError, ConnectionError: none comes.
    """
    if not await front.exchange(post(COMPLETIONS, BODY), tls):
        raise ConnectionError  # so TLS 1.3 tells a client that it is not heard


@needs_openssl
def test_clients_and_replicas_are_spoken_to_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert, key), (own_cert, own_key), (replica_cert, replica_key) = map(
        authority.signed, ("gateway", "client", "replica")
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(replica_cert, replica_key)
    theirs.load_verify_locations(authority.file)
    theirs.verify_mode = ssl.CERT_REQUIRED  # of kvlb, too
    client = ssl.create_default_context(cafile=authority.file)

    async def check() -> None:
        tls = {"cert_file": cert, "key_file": key, "client_ca_file": authority.file}
        ours = {"ca_file": authority.file, "cert_file": own_cert, "key_file": own_key}
        async with upstream(tls=theirs) as replica, gateway([replica.url], tls=tls, upstream=ours) as front:
            assert front.url.startswith("https://")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await heard(front, client)
            client.load_cert_chain(own_cert, own_key)
            for body in (BODY, BODY.replace(b"5", b"5," * 200_000 + b"6")):
                assert status(await front.exchange(post(COMPLETIONS, body), client)) == 200
                assert replica.received[-1].body == body
            with pytest.raises(ConnectionError):
                await heard(front, None)

    run(check())


@needs_openssl
@pytest.mark.parametrize("is_asked", [True, False], ids=["SIGHUP", "the file"])
def test_replicas_are_spoken_to_with_what_the_files_have_now(
    tmp_path: Path, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides get a new authority; connections of before are cut, so that nothing goes on by them."""
    monkeypatch.setattr(key_source, "LOOK_SECONDS", 60.0 if is_asked else 0.05)
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = {side: [str(tmp_path / f"{side}.{part}") for part in ("ca", "pem", "key")] for side in ("replica", "kvlb")}

    def give(side: str, authority: Authority) -> None:
        for path, file in zip(files[side], (authority.file, *authority.signed(side)), strict=True):
            shutil.copy(file, path)

    give("replica", old)
    give("kvlb", old)
    ca, cert, key = files["replica"]
    theirs = ServerTls(TlsSettings(cert_file=cert, key_file=key, client_ca_file=ca))

    async def check() -> None:
        ours = dict(zip(("ca_file", "cert_file", "key_file"), files["kvlb"], strict=True))
        async with upstream(tls=theirs.context) as replica, gateway([replica.url], upstream=ours) as front:
            assert status(await front.exchange(post(COMPLETIONS, BODY))) == 200
            give("replica", new)
            theirs.reload()
            for connection in list(replica.connections):
                connection.transport.abort()
            assert status(await front.exchange(post(COMPLETIONS, BODY))) in {502, 503}
            give("kvlb", new)
            if is_asked:
                os.kill(os.getpid(), signal.SIGHUP)
            until = asyncio.get_running_loop().time() + 20
            while status(await front.exchange(post(COMPLETIONS, BODY))) != 200:
                assert asyncio.get_running_loop().time() < until
                await asyncio.sleep(0.05)

    run(check())
