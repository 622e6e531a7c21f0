"""TLS contexts, made of the files that settings name.

Knows certificates, keys and authorities as files, and how one context takes the place of another under a socket that listens.
Never knows who speaks over them.
"""

import ssl
from pathlib import Path
from typing import Any, Final

from balancer.errors import ConfigError
from balancer.security import TlsSettings
from balancer.settings import UpstreamSettings

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class ServerTls:
    """The context of a socket that listens; ``reload`` changes what the connections after it are shown.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._current = _server_context(settings)
        self.context = _server_context(settings)
        """Give this one to the socket. Each handshake moves on to the current one, so that it is never half changed."""
        self.context.sni_callback = self._move_on

    def paths(self) -> list[str]:
        """The files that it is made of."""
        settings = self._settings
        return [path for path in (settings.cert_file, settings.key_file, settings.client_ca_file) if path is not None]

    def reload(self) -> None:
        """Read the files again.

        Raises:
            ConfigError: they cannot be used; those of before stay in use.
        """
        self._current = _server_context(self._settings)

    def _move_on(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def server_tls(settings: TlsSettings) -> ServerTls | None:
    """What to listen with; None for plain HTTP.

    Raises:
        ConfigError: a file cannot be used.
    """
    return None if settings.cert_file is None else ServerTls(settings)


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.minimum_version]
    context.set_alpn_protocols(["http/1.1"])
    assert settings.cert_file is not None
    _load_chain(context, "tls", settings.cert_file, settings.key_file)
    if settings.client_ca_file is not None:
        _load_authorities(context, "tls.client_ca_file", settings.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ReplicaTls(ssl.SSLContext):
    """The context of connections to replicas, whose names are checked; ``reload`` changes what those after it are made with.

    Whoever connects may keep it: each connection is made with the current one. Authorities cannot be taken out of a context, so
    that there has to be another one.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __new__(cls, settings: UpstreamSettings) -> "ReplicaTls":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._current = _client_context(settings)

    def paths(self) -> list[str]:
        """The files that it is made of; none where the system's authorities are all."""
        settings = self._settings
        return [path for path in (settings.ca_file, settings.cert_file, settings.key_file) if path is not None]

    def reload(self) -> None:
        """Read the files again.

        Raises:
            ConfigError: they cannot be used; those of before stay in use.
        """
        self._current = _client_context(self._settings)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """What asyncio and uvloop make connections with."""
        return self._current.wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return self._current.wrap_socket(*arguments, **named)


def replica_context(settings: UpstreamSettings) -> ReplicaTls:
    """What to speak to replicas with https.

    Raises:
        ConfigError: a file cannot be used.
    """
    return ReplicaTls(settings)


def _client_context(settings: UpstreamSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.ca_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, "upstream.ca_file", settings.ca_file)
    if settings.cert_file is not None:
        _load_chain(context, "upstream", settings.cert_file, settings.key_file)
    return context


def check_chain(section: str, cert_file: str, key_file: str | None) -> None:
    """See whether they can be shown to clients, for whoever makes no context of Python's own.

    Raises:
        ConfigError: they cannot.
    """
    _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), section, cert_file, key_file)


def _load_chain(context: ssl.SSLContext, section: str, cert_file: str, key_file: str | None) -> None:
    for name, path in (("cert_file", cert_file), ("key_file", key_file)):
        if path is not None:
            _check_readable(f"{section}.{name}", path)
    try:
        # Without a password given, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        what = f"{cert_file!a} and {key_file!a}" if key_file else f"{cert_file!a}"
        raise ConfigError(
            f"{section}.cert_file: {what} cannot be used: {_reason(error)}; give a certificate and its own key, "
            "both PEM, the key without a password"
        ) from None


def _load_authorities(context: ssl.SSLContext, setting: str, path: str) -> None:
    _check_readable(setting, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{setting}: {path!a} has no certificates: {_reason(error)}; give them as PEM") from None


def _check_readable(setting: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ConfigError(f"{setting}: cannot read {path!a}: {reason}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
