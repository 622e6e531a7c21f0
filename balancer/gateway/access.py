"""The first stage of every request: who sends it, whether it may, and what of its body goes on.

Knows keys, models, the fields that are not for every client, and the salts that keep tenants apart. Never knows connections or
replicas. Everything it refuses is refused before a replica has been chosen, let alone asked.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from balancer import openai, references, strip
from balancer.errors import BadRequest, Forbidden, RequestError, UnknownModel
from balancer.http.fields import Fields
from balancer.isolation import Salts
from balancer.openai import Inbound
from balancer.settings import Settings
from balancer.tenants import ANYBODY, Caller, KeyRing, key_of
from balancer.wishes import KV_TRANSFER, SALT, check_priority, unwanted, whole
from balancer.wishes import PRIORITY as PRIORITY_FIELD

PRIORITY: Final = b"x-vllm-priority"
"""The header that goes before a body's ``priority`` (vLLM >= 0.28)."""

AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"

CREDENTIALS: Final = frozenset({AUTHORIZATION, API_KEY})
"""Headers that end here where keys are ours."""

MODELS: Final = "/v1/models"
"""The one path of kvlb's own, with those below it, that every key may read."""

NOT_SERVED: Final = "this model is not served here, or not for this key; GET /v1/models lists those that are"

UNSALTED: Final = openai.FORMS
"""Paths whose requests are computed by engines, and cannot bring a salt."""

NOT_COMPUTED: Final = frozenset(
    path for path in openai.PATHS if path.endswith(("/render", "/derender", "tokenize", "/count_tokens"))
)
"""Paths that touch no cache: a salt would only be read back from the answer."""


_OF_INTEREST: Final = CREDENTIALS | {PRIORITY}
_NONE: Final[frozenset[bytes]] = frozenset()
_NO_PRIORITIES: Final[tuple[str, ...]] = ()
_QUESTIONS: Final = {"Content-Type": "application/json"}


class Visit(msgspec.Struct, frozen=True):
    """One request's sender, and what its headers say.

    ``priorities`` are the values of the header from which engines read one (``X-Vllm-Priority``). Of all headers those of
    ``kept_back`` go no further, and ``key`` is the ``Authorization`` for replicas in their place. ``questions`` are the headers
    with which a replica is asked something on the sender's behalf.
    """

    caller: Caller = ANYBODY
    priorities: tuple[str, ...] = ()
    kept_back: frozenset[bytes] = frozenset()
    key: bytes | None = None
    questions: Mapping[str, str] = {}


STRANGER: Final = Visit(questions=_QUESTIONS)
"""Of most requests, where nobody is asked for a key."""


class Admitted(msgspec.Struct, frozen=True):
    """A body as it goes on, the salt in it, and the priority that it asks for (vLLM: lower is earlier).

    ``has_params``: the client says itself, in that body, what the engine is to fetch.
    """

    body: bytes
    salt: str | None
    priority: int | None
    has_params: bool = False


class Access:
    """``keys`` may be replaced at any time: each request is judged by those of the moment when it came."""

    def __init__(self, settings: Settings, keys: KeyRing | None = None, salts: Salts | None = None) -> None:
        """Without ``keys`` nobody is asked for one; without ``salts`` no tenant is kept from another."""
        self.keys = keys
        self._salts = salts
        self._settings = settings
        key = settings.upstream.api_key
        self._replicas_key = f"Bearer {key}".encode() if key else None

    def visit(self, fields: Fields) -> Visit:
        """Who sends a request with these headers, and what they say.

        Raises:
            Unauthorized: nobody who is known.
        """
        found = _found(fields)
        if not found and self.keys is None and self._settings.clients.priority != "strip":
            return STRANGER
        keys, key, kept_back = self.keys, None, _NONE
        if keys is None:
            caller, told = ANYBODY, found.get(AUTHORIZATION)
        else:
            caller, told, key, kept_back = keys.caller(_key(found)), self._replicas_key, self._replicas_key, CREDENTIALS
        if self._settings.clients.priority == "strip" and not caller.is_trusted:
            kept_back |= {PRIORITY}
        priorities = _NO_PRIORITIES
        if PRIORITY in found:
            priorities = tuple(value.decode("latin-1") for name, value in fields if name.lower() == PRIORITY)
        return Visit(caller, priorities, kept_back, key, _questions(told))

    def caller(self, fields: Fields) -> Caller:
        """Whose key is in these headers.

        Raises:
            Unauthorized: nobody's.
        """
        return ANYBODY if self.keys is None else self.keys.caller(_key(_found(fields)))

    def is_open(self, path: str) -> bool:
        """Whether this path of kvlb's own needs no key."""
        return self.keys is None or path in self._settings.auth.open_paths

    def check_path(self, caller: Caller, path: str) -> None:
        """Raise ``Forbidden`` unless this path, one that is not forwarded, is for the caller."""
        # A dot segment is resolved by some readers of a path and not by others.
        below_models = path.startswith(MODELS + "/") and "/." not in unquote(path)
        if not (caller.is_admin or path == MODELS or below_models):
            raise Forbidden("this path shows the whole fleet; it needs a key with admin = true")

    def told(self, caller: Caller, error: RequestError) -> RequestError:
        """The error as the caller may know it: without the names of replicas, and of models that are not for him."""
        if isinstance(error, UnknownModel) and caller.models:
            return UnknownModel(NOT_SERVED, param="model")
        return error if self._settings.server.expose_decisions else error.without_names()

    def check_model(self, caller: Caller, model: str) -> None:
        """Raise ``UnknownModel``, as for one that is not there, unless the model is for the caller."""
        if not caller.may_use(model):
            raise UnknownModel(NOT_SERVED, param="model")

    def admit(self, visit: Visit, path: str, inbound: Inbound, body: bytes) -> Admitted:
        """What goes on of a body for ``path``.

        Raises:
            Forbidden: it asks for something that is not for the caller.
            BadRequest: its salt is none.
        """
        caller, rules = visit.caller, self._settings.clients
        dropped = () if caller.is_trusted else unwanted(inbound.wishes, rules, caller.priority)
        asked = [value for value in map(whole, visit.priorities) if value is not None]
        if asked and not caller.is_trusted:
            if rules.priority == "refuse":
                raise Forbidden("X-Vllm-Priority: not taken from clients here; leave it out")
            if rules.priority == "check":
                check_priority(min(asked), caller.priority)
        priority = asked[0] if asked else inbound.wishes.priority
        if rules.priority == "strip" and not caller.is_trusted:
            priority = None
        if dropped:
            body = strip.without(body, dropped)
        if priority is None and caller.priority > 0 and path not in UNSALTED:  # engines would take it for 0
            priority = caller.priority
            body = strip.with_field(body, PRIORITY_FIELD, priority)
        has_params = any(place[-1] == KV_TRANSFER and place not in dropped for place in inbound.wishes.places)
        if self._salts is None or path in NOT_COMPUTED:
            return Admitted(body, inbound.salt, priority, has_params)
        return Admitted(*self._salted(self._salts, caller, path, inbound, body), priority, has_params)

    def _salted(
        self, salts: Salts, caller: Caller, path: str, inbound: Inbound, body: bytes
    ) -> tuple[bytes, str | None]:
        """The body with the salt that keeps the caller's tenant apart, and that salt."""
        tenants = self._settings.tenants
        if tenants.unsalted == "refuse":
            self._check_unsalted(path, body)
        if path in UNSALTED:
            return body, None
        if inbound.wishes.has_salt:
            if tenants.client_salt == "refuse":
                raise Forbidden(f"{SALT}: not taken from clients here; leave it out", param=SALT)
            if inbound.salt is None:
                raise BadRequest(f"{SALT}: expected a text that is not empty", param=SALT)
            body = strip.without(body, ((SALT,),))
        salt = salts.salt(caller.tenant, inbound.salt)
        return strip.with_field(body, SALT, salt), salt

    def _check_unsalted(self, path: str, body: bytes) -> None:
        if path in UNSALTED:
            raise Forbidden(f"{path}: engines cannot keep its cache apart for each tenant; see tenants.unsalted")
        named = references.named(path, body)
        if named is not None:
            raise Forbidden(
                f"{named}: names what an engine keeps, perhaps of another tenant; send it in full", param=named
            )


def _found(fields: Fields) -> dict[bytes, bytes]:
    """The first value of each header that is of interest here."""
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        lowered = name.lower()
        if lowered in _OF_INTEREST:
            found.setdefault(lowered, value)
    return found


def _key(found: dict[bytes, bytes]) -> str | None:
    return key_of(*(_text(found.get(name)) for name in (AUTHORIZATION, API_KEY)))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _questions(authorization: bytes | None) -> Mapping[str, str]:
    if authorization is None:
        return _QUESTIONS
    return {"Authorization": authorization.decode(errors="replace"), **_QUESTIONS}
