"""``balancer/tls.py``: who is spoken to is who the files say, also after the files have changed."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from balancer.errors import ConfigError
from balancer.security import TlsSettings
from balancer.settings import UpstreamSettings
from balancer.tls import ServerTls, replica_context, server_tls
from tests.support.certificates import Authority, needs_openssl
from tests.support.waiting import run

pytestmark = needs_openssl


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def hear(port: int, context: ssl.SSLContext) -> str:
    """The name in the certificate that is shown, once the whole answer has come.

    Raises:
        ssl.SSLError, ConnectionError: one of the two does not trust the other.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        if await reader.read() != b"hello":  # TLS 1.3 tells a client only now that it is not heard
            raise ConnectionError
        shown = writer.get_extra_info("peercert")
        return str(dict(pair for part in shown["subject"] for pair in part)["commonName"])
    finally:
        writer.close()


def client(ca_file: str, cert: tuple[str, str] | None = None) -> ssl.SSLContext:
    own_cert, own_key = cert or (None, None)
    return replica_context(UpstreamSettings(ca_file=ca_file, cert_file=own_cert, key_file=own_key))


def test_a_new_certificate_is_shown_once_it_is_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("one")
    other = authority.signed("two")
    tls = ServerTls(TlsSettings(cert_file=cert, key_file=key))
    assert tls.paths() == [cert, key]

    async def check() -> None:
        async with serving(tls) as port:
            assert await hear(port, client(authority.file)) == "one"
            shutil.copy(other[0], cert)
            with pytest.raises(ConfigError, match=r"tls\.cert_file"):
                tls.reload()  # its key is still that of the other one
            assert await hear(port, client(authority.file)) == "one"
            shutil.copy(other[1], key)
            tls.reload()
            assert await hear(port, client(authority.file)) == "two"

    run(check())


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_clients_without_a_certificate_of_the_authority_are_not_heard(tmp_path: Path, version: str) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    cert, key = ours.signed("server")
    trusted = tmp_path / "clients.pem"
    shutil.copy(ours.file, trusted)
    tls = ServerTls(TlsSettings(cert_file=cert, key_file=key, client_ca_file=str(trusted)))
    known, stranger = client(ours.file, ours.signed("known")), client(ours.file, theirs.signed("stranger"))
    nobody = client(ours.file)
    for context in (known, stranger, nobody):
        context.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]

    async def check() -> None:
        async with serving(tls) as port:
            assert await hear(port, known) == "server"
            for context in (stranger, nobody):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await hear(port, context)
            shutil.copy(theirs.file, trusted)
            tls.reload()
            assert await hear(port, stranger) == "server"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await hear(port, known)  # who is no longer of the authority

    run(check())


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("server")
    tls = ServerTls(TlsSettings(cert_file=cert, key_file=key, minimum_version="1.3"))
    old = ssl.create_default_context(cafile=authority.file)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def check() -> None:
        async with serving(tls) as port:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await hear(port, old)

    run(check())


def test_replicas_of_another_authority_are_not_spoken_to(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    cert, key = theirs.signed("server")

    async def check() -> None:
        async with serving(ServerTls(TlsSettings(cert_file=cert, key_file=key))) as port:
            assert await hear(port, client(theirs.file)) == "server"
            for context in (client(ours.file), replica_context(UpstreamSettings())):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await hear(port, context)

    run(check())


def test_files_that_cannot_be_used_are_named_with_the_setting(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("server")
    nothing, empty = str(tmp_path / "nothing"), tmp_path / "empty"
    empty.write_text("")
    for settings, said in (
        (TlsSettings(cert_file=nothing), r"tls\.cert_file: cannot read"),
        (TlsSettings(cert_file="\0"), r"tls\.cert_file: cannot read"),
        (TlsSettings(cert_file=cert, key_file=nothing), r"tls\.key_file: cannot read"),
        (TlsSettings(cert_file=str(empty), key_file=key), r"tls\.cert_file: .* PEM"),
        (TlsSettings(cert_file=cert), r"tls\.cert_file: .* PEM"),
        (TlsSettings(cert_file=cert, key_file=authority.signed("x")[1]), r"tls\.cert_file: .* its own key"),
        (TlsSettings(cert_file=cert, key_file=key, client_ca_file=str(empty)), r"tls\.client_ca_file: .* no cert"),
    ):
        with pytest.raises(ConfigError, match=said):
            server_tls(settings)
    with pytest.raises(ConfigError, match=r"upstream\.ca_file"):
        replica_context(UpstreamSettings(ca_file=nothing))
    with pytest.raises(ConfigError, match=r"upstream\.cert_file"):
        replica_context(UpstreamSettings(cert_file=cert))
    assert server_tls(TlsSettings()) is None


def test_what_replicas_are_asked_with_is_read_again(tmp_path: Path) -> None:
    """A certificate of ours is replaced, and the authority of replicas: contexts that were given away are as new ones."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    one, other = old.signed("kvlb"), new.signed("kvlb")
    mine = {name: str(tmp_path / name) for name in ("ca_file", "cert_file", "key_file")}
    for path, file in zip(mine.values(), (old.file, *one), strict=True):
        shutil.copy(file, path)
    context = replica_context(UpstreamSettings(**mine))
    assert context.paths() == list(mine.values())

    def asked(authority: Authority) -> ServerTls:
        cert, key = authority.signed("replica")
        return ServerTls(TlsSettings(cert_file=cert, key_file=key, client_ca_file=authority.file))

    async def check() -> None:
        async with serving(asked(old)) as before, serving(asked(new)) as after:
            assert await hear(before, context) == "replica"
            with pytest.raises(ssl.SSLCertVerificationError):
                await hear(after, context)
            shutil.copy(new.file, mine["ca_file"])
            shutil.copy(other[0], mine["cert_file"])
            with pytest.raises(ConfigError, match=r"upstream\.cert_file: .* its own key"):
                context.reload()
            assert await hear(before, context) == "replica", "half of it changes nothing"
            shutil.copy(other[1], mine["key_file"])
            context.reload()
            assert await hear(after, context) == "replica"
            with pytest.raises(ssl.SSLCertVerificationError):
                await hear(before, context)

    run(check())
