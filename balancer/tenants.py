"""Who may ask for what: API keys -> callers, and their models.

Knows the shape of keys and of the file that lists them. Never knows where a file lies, when it changes or how a key came here.
Of a key only its SHA-256 is kept, and no message says more of one than its place in the list.
"""

import hashlib
import hmac
import re
import string
import tomllib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError, Unauthorized
from balancer.limits import NO_RATES, Rates

MIN_KEY: Final = 16
"""Shortest key in plain, in characters: shorter ones can be guessed."""

MAX_KEY: Final = 512
"""Longest key that is looked at, in characters."""

LIMITS: Final = Rates.__struct_fields__

DEFAULT_TENANT: Final = "default"
"""Whose a key is that comes without a tenant's name (in an environment variable)."""

_KEY_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation) - {","}


class Caller(msgspec.Struct, frozen=True):
    """Who sends a request: what is known of its key.

    ``name`` is the key's, for logs; ``tenant`` whose it is. ``models`` are names, or beginnings of names with a ``*`` behind;
    empty for all. ``is_admin``: may see the whole fleet's state. ``is_trusted``: may ask of engines what ``[clients]``
    keeps from others. ``priority`` is the most urgent one that it may ask for (vLLM: lower is earlier).
    ``rates`` are the key's own limits.
    """

    name: str = ""
    tenant: str = ""
    models: tuple[str, ...] = ()
    is_admin: bool = False
    is_trusted: bool = False
    priority: int = 0
    rates: Rates = NO_RATES

    def may_use(self, model: str) -> bool:
        return not self.models or any(
            model.startswith(each[:-1]) if each.endswith("*") else model == each for each in self.models
        )


ANYBODY: Final = Caller(is_admin=True)
"""Every caller, where no keys are asked for."""


class KeyRing:
    """Callers by the digests of their keys."""

    def __init__(self, callers: Iterable[tuple[bytes, Caller]]) -> None:
        self._callers = {digest: (digest, caller) for digest, caller in callers}

    @classmethod
    def together(cls, rings: Iterable["KeyRing"]) -> "KeyRing":
        """The keys of all of them.

        Raises:
            ConfigError: two of them have the same key.
        """
        entries = [entry for ring in rings for entry in ring._callers.values()]
        if len({digest for digest, _ in entries}) < len(entries):
            raise ConfigError("auth: a key of the environment variable is in the file, too; each has one tenant")
        return cls(entries)

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, key: str | None) -> Caller:
        """Whose key it is, in a time that says nothing of the other keys.

        Raises:
            Unauthorized: nobody's, or there is none.
        """
        if not key:
            raise Unauthorized("no API key: send one as 'Authorization: Bearer KEY'")
        asked = hashlib.sha256(key[:MAX_KEY].encode(errors="surrogateescape")).digest()
        digest, caller = self._callers.get(asked, (b"", None))
        if not hmac.compare_digest(digest, asked) or caller is None or len(key) > MAX_KEY:
            raise Unauthorized("the API key is not known here")
        return caller


def key_of(authorization: str | None, api_key: str | None) -> str | None:
    """The key in a request's ``Authorization``, or else in its ``x-api-key`` (what Anthropic's clients send)."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else api_key


class _Key(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tenant: str
    key: str | None = None
    sha256: str | None = None
    name: str | None = None
    models: tuple[str, ...] = ()
    admin: bool = False
    trusted: bool = False
    priority: int = 0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrent_requests: int | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: tuple[_Key, ...] = ()


def read_file(text: str) -> KeyRing:
    """The keys of a TOML file: one ``[[keys]]`` for each.

    Raises:
        ConfigError: it is no TOML, names something unknown, or a key that cannot be used.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its message may quote a line, and a key with it
        place = re.search(r"\(at .*\)$", str(error))
        raise ConfigError(f"not valid TOML {place[0] if place else ''}".rstrip()) from None
    try:
        keys = msgspec.convert(tree, _File).keys
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise ConfigError(f"{where.strip('`.') or 'keys'}: {what[:1].lower()}{what[1:]}") from None
    if not keys:
        raise ConfigError("keys: none given; write a [[keys]] for each, with key or sha256, and tenant")
    return _ring([(f"keys[{at}]", each) for at, each in enumerate(keys)])


def read_variable(text: str) -> KeyRing:
    """The keys of an environment variable: ``KEY`` or ``TENANT:KEY``, separated by commas or blanks.

    Raises:
        ConfigError: it has none, or one that cannot be used.
    """
    keys = []
    for at, part in enumerate(re.split(r"[,\s]+", text.strip(", \t\r\n"))):
        tenant, colon, key = part.partition(":")
        keys.append((f"key {at + 1}", _Key(tenant=tenant, key=key) if colon else _Key(tenant=DEFAULT_TENANT, key=part)))
    return _ring(keys)


def _ring(keys: list[tuple[str, _Key]]) -> KeyRing:
    callers: dict[bytes, Caller] = {}
    for where, key in keys:
        digest = _digest(where, key)
        if digest in callers:
            raise ConfigError(f"{where}: the same key is given twice; each has one tenant")
        callers[digest] = _caller(where, key, digest)
    return KeyRing(callers.items())


def _digest(where: str, key: _Key) -> bytes:
    if (key.key is None) == (key.sha256 is None):
        raise ConfigError(f"{where}: give one of key (in plain) and sha256 (64 hexadecimal digits)")
    if key.sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", key.sha256):
            raise ConfigError(f"{where}.sha256: not 64 hexadecimal digits; printf %s KEY | sha256sum prints them")
        return bytes.fromhex(key.sha256)
    plain = key.key or ""
    if not MIN_KEY <= len(plain) <= MAX_KEY:
        raise ConfigError(f"{where}.key: has {len(plain)} characters; give {MIN_KEY} to {MAX_KEY}")
    if not _KEY_CHARACTERS.issuperset(plain):
        raise ConfigError(f"{where}.key: has a blank, a comma or a character beyond ASCII; clients could not send it")
    return hashlib.sha256(plain.encode()).digest()


def _caller(where: str, key: _Key, digest: bytes) -> Caller:
    for field, value in (("tenant", key.tenant), ("name", key.name)):
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
            raise ConfigError(f"{where}.{field}: use 1 to 64 letters, digits and _ . -")
    if "" in key.models or "*" in "".join(model[:-1] for model in key.models):
        raise ConfigError(f"{where}.models: give names of models, or beginnings of names with a * behind")
    for limit in LIMITS:
        value = getattr(key, limit)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{where}.{limit}: {value} cannot be used; give a number above 0, or leave it out")
    return Caller(
        name=key.name or f"{key.tenant}-{digest.hex()[:6]}",
        tenant=key.tenant,
        models=key.models,
        is_admin=key.admin,
        is_trusted=key.trusted,
        priority=key.priority,
        rates=Rates(**{limit: getattr(key, limit) for limit in LIMITS}),
    )
