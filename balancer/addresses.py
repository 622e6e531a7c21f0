"""One spelling for each address, as far as no name server has to be asked.

Knows URLs of endpoints that have been checked (``balancer.settings.check_url``), and which of their spellings are one address.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

HERE: Final = frozenset({"localhost", "::1"})
"""This machine, which is asked at the same port by either family of addresses."""


def place(url: str) -> tuple[str, int]:
    """(host, port) of a URL: the same for all spellings; the scheme makes no difference, as one port speaks one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        host = str(getattr(ip, "ipv4_mapped", None) or ip)
    return ("127.0.0.1" if host in HERE else host), parts.port or DEFAULT_PORTS[parts.scheme]


def shown(host: str, port: int) -> str:
    """As it is written in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
