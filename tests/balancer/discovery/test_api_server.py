"""``discovery/api_server.py``: whom to ask, with what to show, and what files that change do to it."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from balancer.discovery import api_server as module
from balancer.discovery import kubernetes as kubernetes_module
from balancer.discovery import pauses as pauses_module
from balancer.discovery.api_server import PODS, Access, ApiServer, Refused, Unanswered, Unasked
from balancer.discovery.base import Found
from balancer.discovery.kinds import Pod
from balancer.discovery.kubernetes import KubernetesDiscovery
from tests.conformance.discovery import until, watching
from tests.support import api_server as stand_in
from tests.support.api_server import NAMESPACE, Refusal, StandIn, api_server, pod
from tests.support.certificates import Authority, needs_openssl
from tests.support.waiting import eventually, run


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service account."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(module, "ACCOUNT", folder)
    return folder


def with_server(check: Callable[[StandIn], Awaitable[None]], tls: ssl.SSLContext | None = None) -> None:
    async def begin() -> None:
        async with api_server(tls) as server:
            await check(server)

    run(begin())


async def names(access: Access) -> list[str]:
    async with ApiServer(access) as asked:
        return [each.metadata.name for each in (await asked.list(PODS, Pod, "")).items]


def server_tls(authority: Authority, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.signed(name))
    return context


@needs_openssl
def test_a_pod_needs_no_settings(account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca")
    (account / "ca.crt").write_text(Path(authority.file).read_text())

    async def check(server: StandIn) -> None:
        server.tokens = {"first"}
        server.put(stand_in.PODS, pod("a", "10.0.0.1"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        assert await names(Access()) == ["a"]
        assert [(each.namespace, each.token) for each in server.asked] == [(NAMESPACE, "first")]

    with_server(check, server_tls(authority, "server"))


def test_a_server_may_have_an_ipv6_address(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert ApiServer(Access())._url() == "https://[fd00::1]:6443"


@needs_openssl
def test_authorities_are_read_anew(account: Path, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    good = Path(new.file).read_text()
    file = tmp_path / "ca.crt"
    file.write_text(Path(old.file).read_text())

    async def check(server: StandIn) -> None:
        async with ApiServer(Access(server.url, ca_file=str(file), namespace=NAMESPACE)) as asked:
            with pytest.raises(Unanswered, match="its certificate cannot be trusted"):
                await asked.list(PODS, Pod, "")
            file.write_text("nonsense")
            with pytest.raises(Unasked, match="has no certificates that can be used"):
                await asked.list(PODS, Pod, "")
            file.write_text(good)
            assert (await asked.list(PODS, Pod, "")).items == []

    with_server(check, server_tls(new, "server"))


def test_a_token_is_read_anew_before_each_question(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has become too old is refused, and the next one heals that; what was found meanwhile stays."""
    monkeypatch.setattr(pauses_module, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(pauses_module, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(kubernetes_module, "LASTS_SECONDS", 0.05)
    token = account / "token"

    async def check(server: StandIn) -> None:
        server.tokens = {"first"}
        server.put(stand_in.PODS, pod("a", "10.0.0.1"))
        discovery = KubernetesDiscovery(selector="app=vllm", api_server=server.url, token_file=str(token))
        async with watching(discovery) as news:
            await until(news, ["http://10.0.0.1:8000"])
            await eventually(lambda: server.watching)
            server.tokens = {"second"}
            server.end_watches()
            told = await anext(news)
            while isinstance(told, Found):
                assert len(told.replicas) == 1
                told = await anext(news)
            assert told.reason.startswith(f"the API server does not accept the token of '{token}' (401: Unauthorized)")
            token.write_text("second\n")
            server.put(stand_in.PODS, pod("b", "10.0.0.2"))
            await until(news, ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
        assert {each.token for each in server.asked} == {"first", "second"}

    with_server(check)


def test_a_token_that_nobody_named_is_not_shown_without_encryption(account: Path) -> None:
    async def check(server: StandIn) -> None:
        assert await names(Access(server.url)) == []
        assert [each.token for each in server.asked] == [None]
        server.tokens = {"first"}
        with pytest.raises(Refused, match=r"a question without a token; give discovery\.token_file"):
            await names(Access(server.url))

    with_server(check)


def test_no_token_is_sent_to_wherever_an_answer_points(account: Path) -> None:
    async def check(server: StandIn) -> None:
        server.refusals["list", stand_in.PODS] = Refusal(307, "elsewhere", location=f"{server.url}/elsewhere")
        with pytest.raises(Refused, match="will not list pods in namespace llm"):
            await names(Access(server.url, token_file=str(account / "token")))
        assert len(server.asked) == 1

    with_server(check)


@pytest.mark.parametrize(
    ("gone", "access", "message"),
    [
        (
            "namespace",
            Access("http://127.0.0.1:9"),
            r"cannot read '.*namespace': No such file.*; give discovery.namespace",
        ),
        ("token", Access("http://127.0.0.1:9", token_file="/none"), "cannot read '/none'.*; give discovery.token_file"),
        ("token", Access(), r"this is no Pod \(KUBERNETES_SERVICE_HOST is not set\); give discovery.api_server"),
        ("ca.crt", Access("https://127.0.0.1:9", ca_file="/none"), "cannot read '/none'.*; give discovery.ca_file"),
    ],
)
def test_what_is_missing_here_is_named(
    account: Path, gone: str, access: Access, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (account / gone).unlink(missing_ok=True)
    with pytest.raises(Unasked, match=message):
        run(names(access))


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_namespace_that_is_empty_is_none(account: Path, content: str) -> None:
    (account / "namespace").write_text(content)
    with pytest.raises(Unasked, match=r"is empty; give discovery\.namespace"):
        run(names(Access("http://127.0.0.1:9")))


@pytest.mark.parametrize(
    ("content", "message"), [("a\r\nX-Evil: 1", "control characters"), ("a" * (2 << 20), "more than 1048576 bytes")]
)
def test_a_token_that_would_be_more_headers_or_no_header_is_none(account: Path, content: str, message: str) -> None:
    (account / "token").write_text(content)
    with pytest.raises(Unasked, match=message):
        run(names(Access("http://127.0.0.1:9", token_file=str(account / "token"))))


def test_what_a_server_says_is_told_in_one_line_and_not_at_length() -> None:
    async def check(server: StandIn) -> None:
        server.refuse("list", 500, "a\x1b[31m\nb" + "c" * 10_000)
        with pytest.raises(Refused) as told:
            await names(Access(server.url, namespace=NAMESPACE))
        assert str(told.value).isprintable()
        assert len(str(told.value)) < 500

    with_server(check)


def test_a_watch_notices_a_server_that_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's own questions: nothing is said on a quiet watch for minutes."""

    async def check(server: StandIn) -> None:
        kept: list[tuple[int, int]] = []

        def keep_alive(sock: socket.socket) -> None:
            real(sock)
            idle = getattr(socket, "TCP_KEEPIDLE", None)
            asks = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            kept.append((asks, 30 if idle is None else sock.getsockopt(socket.IPPROTO_TCP, idle)))

        real = module.keep_alive
        monkeypatch.setattr(module, "keep_alive", keep_alive)
        async with ApiServer(Access(server.url, namespace=NAMESPACE)) as asked:
            await asked.watch(PODS, "", "100", 60, server.end_watches, lambda line: None)
        assert kept == [(1, 30)]

    with_server(check)
