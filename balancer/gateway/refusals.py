"""kvlb's own errors, as answers that an OpenAI client understands.

Knows the shape and the headers of an error, on the front and on the control plane. Never decides that there is one.
"""

from aiohttp import web

from balancer import dialects, openai
from balancer.errors import RequestError, Unauthorized
from balancer.http.messages import Response


def refuse(error: RequestError, *headers: tuple[str, str], path: str = "") -> Response:
    """The answer of the front, to a request for ``path`` in the form that its clients know."""
    return Response(dialects.error_answer(path, error), error.status, headers=(*_headers(error).items(), *headers))


def error_response(error: RequestError) -> web.Response:
    """The answer of the control plane."""
    return web.Response(
        status=error.status, body=openai.error_body(error), content_type="application/json", headers=_headers(error)
    )


def _headers(error: RequestError) -> dict[str, str]:
    told = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return {**told, "WWW-Authenticate": 'Bearer realm="kvlb"'} if isinstance(error, Unauthorized) else told
