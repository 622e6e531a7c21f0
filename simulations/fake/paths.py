"""What the handlers of a fake engine's paths share: who is asked, how an answer is written, what is refused to everyone.

Knows aiohttp's requests and responses. Never keeps anything between requests.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import web

from simulations.fake.asks import Refused
from simulations.fake.server import EngineProcess

Current: TypeAlias = Callable[[], EngineProcess]
"""The engine process that lives now."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

NO_SCALE_OUT: Final = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."

_encode = msgspec.json.Encoder().encode


def respond(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """The content as JSON."""
    return web.Response(body=_encode(content), status=status, headers=headers, content_type="application/json")


def request_id(request: web.Request, named: str | None) -> str:
    """What the request is called: by its header, else by its body, else at random."""
    return request.headers.get("X-Request-Id") or named or uuid.uuid4().hex[:16]


def check_model(engine: EngineProcess, model: str | None) -> str:
    """The name of the model that is meant.

    Raises:
        Refused: it is not served.
    """
    if model is not None and model != engine.config.model and engine.config.lora(model) is None:
        raise engine.unknown_model(model)
    return model or engine.config.model


def check_scale_out(engine: EngineProcess, *, is_there: bool) -> None:
    """Pass, or end the request as a server does that has these paths switched off.

    Raises:
        Refused: the release has them, and they were not enabled.
        web.HTTPNotFound: the release does not have them.
    """
    if not is_there:
        raise web.HTTPNotFound
    if engine.config.release.needs_scale_out and not engine.config.has_scale_out:
        raise Refused(NO_SCALE_OUT, status=403, kind="PermissionDeniedError")
