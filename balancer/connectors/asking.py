"""HTTP questions to a store's server.

Knows one client, its limits and what its failures mean. Never knows what is asked.
"""

from typing import Any, Final

import aiohttp
import msgspec

from balancer.connectors.base import StoreError

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of one answer: more than any prompt needs."""

SECONDS: Final = 10.0
"""For questions that no request waits for; a request has its own limit."""


class Server:
    """Asks one server. Begin it in a running event loop."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS))

    async def get(self, path: str, **query: str) -> bytes:
        """The body of the answer.

        Raises:
            StoreError: there is none, or it is an error.
        """
        return await self._exchange("GET", path, params=query)

    async def post(self, path: str, body: object) -> bytes:
        """The same for a body of JSON.

        Raises:
            StoreError: as ``get``.
        """
        return await self._exchange(
            "POST", path, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
        )

    async def close(self) -> None:
        await self._session.close()

    async def _exchange(self, method: str, path: str, **asked: Any) -> bytes:
        try:
            async with self._session.request(method, self._url + path, **asked) as response:
                if response.status != 200:
                    raise StoreError(f"{self._url}{path} answers {response.status}; is it the right server?")
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise StoreError(f"{self._url}{path} answers with more than {MAX_BYTES:,} bytes")
                return bytes(body)
        except aiohttp.ClientError as error:
            raise StoreError(f"{self._url} cannot be asked: {error}") from error
        except TimeoutError:
            raise StoreError(f"{self._url} has not answered within {SECONDS:g} s") from None


def decoded(answer: bytes, kind: Any, what: str) -> Any:
    """The answer as a value of this type.

    Raises:
        StoreError: it is none.
    """
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{what} says something that is not understood: {error}") from error
