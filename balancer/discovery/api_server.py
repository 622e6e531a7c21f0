"""Questions to the API server of Kubernetes: a list page by page, and a watch line by line.

Knows HTTP, the files of a service account and what refusals mean for whoever runs kvlb. Token and authorities are read anew
before each question: both are replaced while Pods run. Never knows what the objects say, and keeps nothing of them.
"""

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec

from balancer.discovery.objects import GONE, Lines, Listing, Object, Status, read_status
from balancer.discovery.pauses import retry_after
from balancer.http.reasons import reason
from balancer.upstream import whole
from balancer.words import printable

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds what its service account may show: ``token``, ``ca.crt`` and ``namespace``."""

PAGE: Final = 500
"""Objects in one page of a list, as kubectl and client-go ask for them."""

GRACE_SECONDS: Final = 5.0
"""For a watch beyond its time, which the server ends by itself; one that does not is not heard any more."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between questions, and how many: a server that has vanished is noticed within a minute."""

MAX_FILE: Final = 1024 * 1024

MAX_WORDS: Final = 300
"""Letters of what the server says that are told."""

A = TypeVar("A")
T = TypeVar("T", bound=Object)


class Resource(msgspec.Struct, frozen=True):
    """One kind of objects, as it is addressed and as a Role names it."""

    group: str
    version: str
    plural: str

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


PODS: Final = Resource("", "v1", "pods")
SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices")


class Unasked(Exception):
    """Nothing can be asked as things are here: a file or an address is missing."""


class Unanswered(Exception):
    """Nobody has answered, or not to the end."""


class Refused(Exception):
    """The server answers that it will not; ``retry_after`` is how many seconds it wants to be left alone."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Access(msgspec.Struct, frozen=True):
    """Whom to ask, and with what; None is what a Pod of the cluster finds in its own file system and environment."""

    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    namespace: str | None = None
    timeout_seconds: float = 10.0


class ApiServer:
    """One API server. ``async with``, in the running loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._tls: tuple[bytes, ssl.SSLContext] | None = None
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "ApiServer":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._access.timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def namespace(self) -> str:
        """The one whose objects are asked for.

        Raises:
            Unasked: none is given, and this is no Pod.
        """
        if self._access.namespace is not None:
            return self._access.namespace
        found = (await _read(ACCOUNT / "namespace", "give discovery.namespace")).decode(errors="replace").strip()
        if not found:
            raise Unasked(f"'{ACCOUNT / 'namespace'}' is empty; give discovery.namespace")
        return found

    async def list(self, resource: Resource, kind: type[T], selector: str) -> Listing[T]:
        """All objects there are, asked for page by page.

        Raises:
            Unasked, Unanswered, Refused.
            Unreadable: a page is no list.
        """
        try:
            return await self._pages(resource, kind, selector, PAGE)
        except Refused as error:
            if error.status != GONE:
                raise
        return await self._pages(resource, kind, selector, 0)  # in one piece: that cannot become too old

    async def _pages(self, resource: Resource, kind: type[T], selector: str, limit: int) -> Listing[T]:
        listing = Listing(kind)
        while True:
            params = {"limit": str(limit)} | ({"labelSelector": selector} if selector else {})
            if listing.more:
                params["continue"] = listing.more
            listing.add(await self._within(self._page(resource, params)))
            if not listing.more:
                return listing

    async def _page(self, resource: Resource, params: dict[str, str]) -> bytes:
        async with await self._open("list", resource, params) as response:
            return await whole(response)

    async def watch(
        self,
        resource: Resource,
        selector: str,
        version: str,
        seconds: float,
        began: Callable[[], None],
        heard: Callable[[bytes], None],
    ) -> bool:
        """Follow what happens after ``version``, for so long at most; whether it has taken that long.

        ``began`` is called when the server has agreed, ``heard`` with each line. A server that says nothing any
        more, and does not end what it was asked to end, is left a little later.

        Raises:
            Unasked, Unanswered, Refused: ``Refused`` with ``GONE`` when the version is too old.
            Whatever ``heard`` raises.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",  # a line a minute: no middlebox closes what is not idle
            "timeoutSeconds": str(math.ceil(seconds)),
        } | ({"labelSelector": selector} if selector else {})
        response = await self._within(self._open("watch", resource, params))
        async with response:
            if response.connection is not None and response.connection.transport is not None:
                keep_alive(response.connection.transport.get_extra_info("socket"))
            began()
            lines = Lines()
            left_at = ends_at + GRACE_SECONDS
            while True:
                try:
                    async with asyncio.timeout_at(left_at):
                        piece = await response.content.readany()
                except TimeoutError:
                    return True
                except (aiohttp.ClientError, OSError) as error:
                    raise Unanswered(f"the watch was broken off: {reason(error)}") from error
                for line in lines.cut(piece):
                    heard(line)
                if not piece:
                    return loop.time() >= ends_at

    async def _within(self, answer: Awaitable[A]) -> A:
        """The answer, if it comes in time and is not broken off."""
        try:
            async with asyncio.timeout(self._access.timeout_seconds):
                return await answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unanswered(f"{self._url()}: {reason(error)}") from error

    async def _open(self, verb: str, resource: Resource, params: dict[str, str]) -> aiohttp.ClientResponse:
        namespace = await self.namespace()
        url = self._url()
        headers = {"Accept": "application/json"}
        token, token_file = await self._token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        response = await self._session.get(
            f"{url}{resource.root}/namespaces/{namespace}/{resource.plural}",
            params=params,
            headers=headers,
            ssl=await self._context(),
            allow_redirects=False,
        )
        if response.status == 200:
            return response
        async with response:
            status = read_status(await whole(response))
            said = _said(response.status, status)
            wanted = retry_after(response.headers.get("Retry-After"))
            raise Refused(_told(said, response.status, verb, resource, namespace, token_file), response.status, wanted)

    def _url(self) -> str:
        if self._access.url is not None:
            return self._access.url.rstrip("/")
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Unasked("this is no Pod (KUBERNETES_SERVICE_HOST is not set); give discovery.api_server")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    async def _token(self) -> tuple[str | None, str]:
        """The token as it is now, and its file. Without encryption only one that the settings name is shown."""
        named = self._access.token_file
        path = ACCOUNT / "token" if named is None else Path(named)
        if (
            named is None
            and self._access.url is not None
            and not (self._is_encrypted and await asyncio.to_thread(path.exists))
        ):
            return None, ""
        token = (await _read(path, "give discovery.token_file, or the Pod its service account's token")).decode(
            errors="replace"
        )
        if not token.strip().isprintable():
            raise Unasked(f"'{path}' is no token: it has control characters in it")
        return token.strip(), str(path)

    @property
    def _is_encrypted(self) -> bool:
        return self._url().startswith("https:")

    async def _context(self) -> ssl.SSLContext | bool:
        """Whom to believe who the server is."""
        if not self._is_encrypted:
            return True
        named = self._access.ca_file
        path = ACCOUNT / "ca.crt" if named is None else Path(named)
        if named is None and self._access.url is not None and not await asyncio.to_thread(path.exists):
            return True
        content = await _read(path, "give discovery.ca_file")
        if self._tls is None or self._tls[0] != content:
            try:
                context = ssl.create_default_context(cadata=content.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise Unasked(f"'{path}' has no certificates that can be used: {error}") from error
            self._tls = content, context
        return self._tls[1]


def keep_alive(sock: socket.socket) -> None:
    """Have the system ask now and then whether the other side is still there: nothing else tells of one that has vanished."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _said(code: int, status: Status) -> str:
    words = printable(" ".join((status.message or status.reason).split()))[:MAX_WORDS]
    return f"{code}: {words}" if words else str(code)


def _told(said: str, code: int, verb: str, resource: Resource, namespace: str, token_file: str) -> str:
    """A refusal in words for whoever can do something about it."""
    what = f"{resource.plural} in namespace {namespace}"
    match code:
        case 401:
            shown = (
                f"the token of '{token_file}'"
                if token_file
                else "a question without a token; give discovery.token_file"
            )
            return f"the API server does not accept {shown} ({said}); it is read anew before each question"
        case 403:
            return (
                f"not allowed to {verb} {what} ({said}); the Role of kvlb's service account there needs the rule "
                f'apiGroups: ["{resource.group}"], resources: ["{resource.plural}"], verbs: ["get", "list", "watch"]'
            )
        case 404:
            return f"the API server knows no {what} ({said}); look at discovery.api_server and the cluster's version"
        case _ if code == GONE:
            return f"the {verb} of {what} has become too old ({said})"
    return f"the API server will not {verb} {what} ({said})"


async def _read(path: Path, remedy: str) -> bytes:
    try:
        return await asyncio.to_thread(_content, path)
    except OSError as error:
        raise Unasked(f"cannot read '{path}': {error.strerror or error}; {remedy}") from error


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise OSError(f"it has more than {MAX_FILE} bytes")
    return content
