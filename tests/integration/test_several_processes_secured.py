"""``kvlb serve --processes 2`` as it is exposed: TLS, certificates of clients, API keys with tenants and limits, all of them of
both gateways together.
"""

import http.client
import json
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulations.demo import free_ports
from tests.support.certificates import Authority, needs_openssl
from tests.support.processes import SECONDS, started
from tests.support.several import MODEL, PATH, engines, until

pytestmark = needs_openssl

KEY, FRESH, OPS, WRONG = (f"sk-{letter * 16}" for letter in "abcd")
AT_A_TIME = 12


class Secured:
    """A kvlb of two gateways before one slow engine, and clients with certificates."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, keys: Path, authority: Authority) -> None:
        self.process = process
        self.keys = keys
        self._port = port
        self.stranger = ssl.create_default_context(cafile=authority.file)
        self.known = ssl.create_default_context(cafile=authority.file)
        self.known.load_cert_chain(*authority.signed("client"))

    def ask(self, key: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        """The head of an answer, on a connection of its own."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=SECONDS, context=self.known)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Connection": "close"}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers)
        return connection.getresponse()

    def status(self, key: str, path: str = "/v1/models", body: dict[str, Any] | None = None) -> int:
        with self.ask(key, path, body) as answer:
            answer.read()
            return answer.status

    def gateways(self) -> list[dict[str, Any]]:
        with self.ask(OPS, "/kvlb/status") as answer:
            told = json.loads(answer.read())
        return list(told["processes"]["gateways"]) if answer.status == 200 else []

    def cannot_connect(self, context: ssl.SSLContext) -> bool:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=SECONDS, context=context)
        try:
            connection.request("GET", "/health")
            connection.getresponse()
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return True
        finally:
            connection.close()
        return False


def write_keys(file: Path, *keys: str) -> None:
    lines = [
        f'[[keys]]\nkey = "{key}"\ntenant = "{"ops" if key == OPS else "a"}"\nadmin = {str(key == OPS).lower()}\n'
        + (f"concurrent_requests = {AT_A_TIME}\n" if key != OPS else "")
        for key in keys
    ]
    fresh = file.with_suffix(".new")
    fresh.write_text("".join(lines))
    fresh.rename(file)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Secured]:
    authority = Authority(tmp_path)
    cert, key = authority.signed("gateway")
    (port,) = free_ports(1)
    keys, config = tmp_path / "keys.toml", tmp_path / "kvlb.toml"
    write_keys(keys, KEY, OPS)
    with engines(1, "--decode-ms", "60") as (engine,):
        config.write_text(
            f"[server]\nport = {port}\nprocesses = 2\ndrain_grace_seconds = 0.3\n[health]\ninterval_seconds = 0.2\n"
            f'[tls]\ncert_file = "{cert}"\nkey_file = "{key}"\nclient_ca_file = "{authority.file}"\n'
            f"[auth]\nkeys_file = \"{keys}\"\n[[replicas]]\nurl = '{engine}'\n"
        )
        with started("serve", "--config", str(config)) as process:
            made = Secured(process, port, keys, authority)
            until(lambda: made.status(OPS, "/ready") == 200 and len(made.gateways()) == 2)
            yield made


def test_who_has_no_certificate_or_no_key_is_not_heard_by_either_gateway(front: Secured, tmp_path: Path) -> None:
    others = Authority(tmp_path / "others")
    theirs = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    theirs.load_cert_chain(*others.signed("client"))
    body = {"model": MODEL, "prompt": [300, 301], "max_tokens": 1}
    for _ in range(8):  # connections of their own: the system divides them among both
        assert front.cannot_connect(front.stranger)
        assert front.cannot_connect(theirs)
        assert front.status(WRONG, PATH, body) == 401
        assert front.status(KEY, "/kvlb/status") == 403
        assert front.status(KEY, PATH, body) == 200


def test_the_limits_of_a_key_hold_over_both_gateways_together(front: Secured) -> None:
    body = {"model": MODEL, "prompt": [300] * 20, "max_tokens": 2_000, "stream": True, "ignore_eos": True}
    answers = [front.ask(KEY, PATH, body) for _ in range(AT_A_TIME + 6)]
    assert [answer.status for answer in answers] == [200] * AT_A_TIME + [429] * 6
    assert b"concurrent_requests" in answers[-1].read()
    until(lambda: sum(each["requests"] for each in front.gateways()) == AT_A_TIME)
    assert all(each["requests"] for each in front.gateways()), "each gateway has some of them"
    for answer in answers:
        answer.close()
    until(lambda: not any(each["requests"] for each in front.gateways()))
    assert front.status(KEY, PATH, {**body, "max_tokens": 1}) == 200


def test_keys_and_certificates_are_read_again_on_sighup_by_both_gateways(front: Secured, tmp_path: Path) -> None:
    pids = {each["pid"] for each in front.gateways()}
    new = Authority(tmp_path / "new")
    write_keys(front.keys, FRESH, OPS)
    shutil.copy(new.file, tmp_path / "authority.pem")  # that of clients
    for file, path in zip(new.signed("gateway"), ("gateway.pem", "gateway.key"), strict=True):
        shutil.copy(file, tmp_path / path)
    before = front.known
    front.known = ssl.create_default_context(cafile=new.file)
    front.known.load_cert_chain(*new.signed("client"))
    front.process.send_signal(signal.SIGHUP)
    until(lambda: not pids & {each["pid"] for each in front.gateways()})
    until(lambda: len(front.gateways()) == 2)
    for _ in range(8):
        assert front.status(FRESH) == 200
        assert front.status(KEY) == 401
        assert front.cannot_connect(before)
    front.process.send_signal(signal.SIGTERM)
    _, told = front.process.communicate(timeout=2 * SECONDS)
    assert front.process.returncode == 0
    assert not any(key in told for key in (KEY, FRESH, OPS, WRONG))
