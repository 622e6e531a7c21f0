"""The picker's own certificate for TLS, as gRPC takes it.

Knows files and how what they hold is changed under handshakes. Never knows who connects.
"""

from pathlib import Path

import grpc

from balancer.epp.settings import EppSettings
from balancer.tls import check_chain


class Certificate:
    """The server's own, for handshakes; ``reload`` changes what those after it are shown.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, settings: EppSettings) -> None:
        assert settings.cert_file is not None
        self.paths = [path for path in (settings.cert_file, settings.key_file) if path is not None]
        self._current = self._read()
        self.credentials = grpc.dynamic_ssl_server_credentials(self._current, self._fetch)

    def reload(self) -> None:
        """Read the files again.

        Raises:
            ConfigError: they cannot be used; those of before stay in use.
        """
        self._current = self._read()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        check_chain("epp", self.paths[0], self.paths[1] if len(self.paths) > 1 else None)
        chain, key = Path(self.paths[0]).read_bytes(), Path(self.paths[-1]).read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        """Asked before each handshake, in a thread of gRPC's own."""
        return self._current
