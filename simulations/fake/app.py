"""The HTTP side of a fake engine: which groups of paths it has, who may use them, and the two shapes of errors.

Knows vLLM's shape of an error and Anthropic's. Never knows what a path does.
"""

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from simulations.fake.asks import Refused, error_body
from simulations.fake.development import Development
from simulations.fake.generation import Generation
from simulations.fake.information import Information
from simulations.fake.paths import Current, Handler, respond
from simulations.fake.preparation import Preparation

MAX_BODY: Final = 64 * 1024 * 1024

GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
"""Prefixes of the paths for which ``--api-key`` asks for the key (vLLM 0.32.0)."""


def build_app(current: Current) -> web.Application:
    """The application in front of whichever engine process lives now."""
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_translate_errors, _guard(current)])
    for group in (Information, Generation, Preparation, Development):
        app.add_routes(group(current).routes())
    return app


def _guard(current: Current) -> Middleware:
    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = current().config.api_key
        if key is not None and request.path.startswith(GUARDED):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or given != key:
                return respond({"error": "Unauthorized"}, 401)
        return await handler(request)

    return check_key


@web.middleware
async def _translate_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return _refusal(request, error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(request, Refused("The body is too large", status=413))
    except web.HTTPNotFound:
        return respond({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed as error:
        return respond({"detail": "Method Not Allowed"}, 405, {"Allow": ", ".join(sorted(error.allowed_methods))})


def _refusal(request: web.Request, error: Refused) -> web.Response:
    if request.path.startswith("/v1/messages"):
        return respond({"type": "error", "error": {"type": error.kind, "message": error.message}}, error.status)
    return respond(error_body(error), error.status)
