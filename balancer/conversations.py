"""Which conversation a request belongs to, by what its client says.

Knows the headers and the fields of bodies that name one, and makes a number of it: the same in every process and after every
restart, another one for each tenant. Never keeps a name, and never knows where a conversation lies (``balancer.sessions``).
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from balancer.errors import ConfigError
from balancer.words import printable

FIELDS: Final = ("session_id", "prompt_cache_key")
"""Fields at the top of a body that name a conversation: vLLM's own, and OpenAI's."""

HEADERS: Final = (
    "x-session-id",
    "x-session-affinity",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
)
"""What agents send unasked: OpenCode the first two, clients of NVIDIA Dynamo, Claude Code, and Codex the last two."""

MAX_NAME: Final = 1024
"""Longest name of a conversation in a body, as JSON in bytes."""


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What names the conversation that a request belongs to: the first of these that is there and not empty."""

    headers: tuple[str, ...] = HEADERS
    """Names of headers, looked at before the body; none for none."""
    fields: tuple[str, ...] = FIELDS
    """Those of ``FIELDS`` that count."""


def check(settings: SessionSettings) -> None:
    """Raise ``ConfigError`` unless these can be headers and fields."""
    for at, name in enumerate(settings.headers):
        if not re.fullmatch(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+", name):
            raise ConfigError(
                f"sessions.headers[{at}]: '{printable(name)}' cannot be the name of a header; give one like x-session-id"
            )
    for at, name in enumerate(settings.fields):
        if name not in FIELDS:
            raise ConfigError(
                f"sessions.fields[{at}]: '{printable(name)}' is not read from bodies; use {' or '.join(FIELDS)}"
            )


class Conversations:
    """Makes numbers of names. Changes with nothing."""

    def __init__(self, settings: SessionSettings) -> None:
        self._headers = tuple([name.lower().encode() for name in settings.headers])
        self._fields = settings.fields

    def number(self, headers: Mapping[bytes, bytes], told: Mapping[str, str], tenant: str) -> int:
        """The number of the request's conversation, 1 to 2**64 - 1; 0 where nobody says.

        ``headers`` are by their names in lower case, ``told`` are the fields of ``FIELDS`` that its body has.
        """
        for header in self._headers:
            name = headers.get(header)
            if name:
                return numbered(name, tenant)
        if told:
            for field in self._fields:
                if text := told.get(field):
                    return numbered(text.encode(errors="surrogatepass"), tenant)
        return 0


def numbered(name: bytes, tenant: str) -> int:
    """A number of this tenant's conversation, of 64 bits and never 0.

    Nobody can choose a name with the number of another's conversation, which a plain hash would allow.
    """
    owner = tenant.encode(errors="surrogatepass")
    whole = b"%d:%b%b" % (len(owner), owner, name)  # the length keeps "a" + "bc" from "ab" + "c"
    return int.from_bytes(blake2b(whole, digest_size=8).digest(), "little") or 1
