"""Certificates for tests, made by OpenSSL's own command: an authority, servers and clients of it.

Tests that need them are left out where there is no such command.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


class Authority:
    """Signs certificates; ``file`` is its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.file = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl("req", "-x509", *_new(name, self._key), "-days", "2", "-out", self.file)

    def signed(self, name: str) -> tuple[str, str]:
        """(certificate, key) of someone at 127.0.0.1, signed by this authority."""
        cert, key, request = (str(self._folder / f"{name}.{kind}") for kind in ("pem", "key", "csr"))
        names = self._folder / f"{name}.names"
        names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", *_new(name, key), "-out", request)
        sign = ["x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial"]
        _openssl(*sign, "-days", "2", "-extfile", str(names), "-out", cert)
        return cert, key


def _new(name: str, key: str) -> list[str]:
    algorithm = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    return [*algorithm, "-nodes", "-keyout", key, "-subj", f"/CN={name}"]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
