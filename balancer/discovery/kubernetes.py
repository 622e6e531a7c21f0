"""Endpoints from the API server of Kubernetes: Pods by a label selector, or those of a Service.

Knows when to list and when to watch. Each end of a watch, however it comes, is followed by a list, and it ends after
``resync_seconds`` at the latest: so nothing that gets lost on the way, a deletion included, is missed for longer. What the
objects stand for is said by ``balancer.discovery.pods``. While the server cannot be asked, what was found last is kept.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from balancer.discovery import selectors
from balancer.discovery.api_server import PODS, SLICES, Access, ApiServer, Refused, Resource, Unanswered, Unasked
from balancer.discovery.base import Failed, Found, check_shared, discovery, with_host
from balancer.discovery.kinds import SERVICE_LABEL, Pod, Slice
from balancer.discovery.objects import GONE, Ended, Object, Objects, Unreadable
from balancer.discovery.pauses import pause
from balancer.discovery.pods import Reckoned, Where, reckon
from balancer.settings import check_url
from balancer.words import counted

GATHER_SECONDS: Final = 0.02
"""After news, for more of it: what happens to many Pods at once is one change."""

GATHER_SHARE: Final = 9
"""At least so many times as long as it took to see what the objects stand for: a tenth of all time, however many there are."""

LASTS_SECONDS: Final = 5.0
"""A watch that has stood for so long works."""

TOLD_AFTER: Final = 3
"""Watches in a row that broke before; one that does is nothing to tell of."""

MAX_TOLD: Final = 5
"""Pods that are named in one problem."""

T = TypeVar("T", bound=Object)


@discovery("kubernetes")
class KubernetesDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pods that match ``selector``, those of the Service ``service``, or those that are both."""

    namespace: str | None = None
    """That of kvlb's own Pod without it."""
    selector: str | None = None
    """A label selector, such as ``app=vllm`` or ``app in (vllm, vllm-lora)``."""
    service: str | None = None
    port: int | str = 8000
    """The number, or the name of a port of the Service or of a container."""
    scheme: str = "http"
    api_server: str | None = None
    """Its URL; that of the cluster that this is a Pod of without it."""
    token_file: str | None = None
    ca_file: str | None = None
    resync_seconds: float = 300.0
    timeout_seconds: float = 10.0
    """For one page of a list, and for the beginning of a watch."""
    replica: dict[str, Any] = {}
    """Further settings of each endpoint, as in ``[[replicas]]``; ``{host}`` stands for its address."""

    def __post_init__(self) -> None:
        if self.selector is None and self.service is None:
            raise ValueError("give selector (of Pods), service, or both: not every Pod is an engine")
        if self.selector is not None and not (self.selector.strip() and self.selector.isprintable()):
            raise ValueError("selector: it is empty, or has control characters; give one like app=vllm")
        if self.selector is not None and (wrong := selectors.problem(self.selector)) is not None:
            raise ValueError(f"selector: {wrong}; give one like app=vllm or app in (vllm, vllm-lora)")
        for name in ("namespace", "service"):
            value = getattr(self, name)
            if value is not None and not (len(value) <= 63 and re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", value)):
                raise ValueError(f"{name}: {value!a} is no name in Kubernetes; give its name alone, like vllm")
        if isinstance(self.port, str) and re.fullmatch("[0-9]+", self.port):
            raise ValueError(f"port: {self.port!a} is text, and no name is all digits; give the number without quotes")
        if not (0 < self.port < 65536 if isinstance(self.port, int) else re.fullmatch("[A-Za-z0-9-]{1,63}", self.port)):
            raise ValueError(f"port: {self.port!a} is no port; give 1 to 65535, or the name of one")
        if self.scheme not in {"http", "https"}:
            raise ValueError(f"scheme: {self.scheme!a} is neither http nor https")
        if self.api_server is not None:
            check_url("discovery.api_server", self.api_server)
        for name in ("resync_seconds", "timeout_seconds"):
            if not 0 < getattr(self, name) < 86_400:
                raise ValueError(f"{name}: {getattr(self, name)} cannot be used; give a number of seconds above 0")
        if "url" in self.replica:
            raise ValueError("replica.url: it is what the Pods tell; leave it out")
        tried = [{**with_host(self.replica, host), "url": f"http://{host}:1"} for host in ("192.0.2.1", "192.0.2.2")]
        check_shared(tried)

    async def watch(self) -> AsyncIterator[Found | Failed]:
        changed = asyncio.Event()
        access = Access(self.api_server, self.token_file, self.ca_file, self.namespace, self.timeout_seconds)
        async with ApiServer(access) as server:
            pods = _Followed(server, PODS, Pod, self.selector or "", self.resync_seconds, changed.set)
            slices = None
            if self.service is not None:
                label = f"{SERVICE_LABEL}={self.service}"
                slices = _Followed(server, SLICES, Slice, label, self.resync_seconds, changed.set)
            followed: list[_Followed[Any]] = [pods] if slices is None else [pods, slices]
            tasks = [asyncio.create_task(each.run()) for each in followed]
            for task in tasks:
                task.add_done_callback(lambda _: changed.set())
            last: Found | None = None
            loop, spent = asyncio.get_running_loop(), 0.0
            try:
                while True:
                    await changed.wait()
                    await asyncio.sleep(max(GATHER_SECONDS, GATHER_SHARE * spent))
                    changed.clear()
                    for task in tasks:
                        if task.done():
                            task.result()  # which raises: it never ends by itself
                    is_stale = any(each.stale is not None for each in followed)
                    problems = [told for each in followed for told in (each.stale, each.deaf) if told is not None]
                    problem = "; ".join(problems)
                    if all(each.is_listed for each in followed):
                        began = loop.time()
                        made = reckon(pods.objects, None if slices is None else slices.objects, self._where)
                        spent = loop.time() - began
                        found = self._found(made, problems, len(pods.objects))
                        problem = found.problem or problem
                        if found != last:
                            last = found
                            yield found
                    if is_stale:
                        yield Failed(problem)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _where(self) -> Where:
        return Where(self.port, self.scheme, self.replica)

    @property
    def _whose(self) -> str:
        """What is looked for, in words."""
        of = [] if self.selector is None else [self.selector]
        of += [] if self.service is None else [f"Service {self.service}"]
        return " of ".join(of) + ("" if self.namespace is None else f" in namespace {self.namespace}")

    def _found(self, made: Reckoned, problems: Sequence[str], pods: int) -> Found:
        shown = [*problems, *made.problems[:MAX_TOLD]]
        if len(made.problems) > MAX_TOLD:
            shown.append(f"and {len(made.problems) - MAX_TOLD} more like these")
        unused = made.unused[:MAX_TOLD]
        if len(made.unused) > MAX_TOLD:
            unused += (f"and {len(made.unused) - MAX_TOLD:,} more",)
        told = f"{self._whose}: {counted(pods, 'Pod')} seen"
        return Found(made.replicas, told, made.lives, "; ".join(shown) or None, unused)


class _Followed(Generic[T]):
    """The objects of one kind, listed and watched for ever. ``changed`` is called when anything here has."""

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        kind: type[T],
        selector: str,
        resync_seconds: float,
        changed: Callable[[], None],
    ) -> None:
        self.objects = Objects(kind)
        self.is_listed = False
        self.stale: str | None = None
        """Why the last list could not be had, or None: what is known may be out of date."""
        self.deaf: str | None = None
        """Why no watch works, or None: what is known is no older than the pause between two lists."""
        self._server = server
        self._resource = resource
        self._kind = kind
        self._selector = selector
        self._resync_seconds = resync_seconds
        self._changed = changed
        self._failures = 0

    async def run(self) -> None:
        while True:
            wanted = None
            try:
                await self._list()
                if await self._watch():
                    self._lasts()
                    continue
            except (Unasked, Unanswered, Refused, Unreadable, Ended) as error:
                wanted = getattr(error, "retry_after", None)
            self._failures += 1
            await asyncio.sleep(pause(self._failures, random.random(), wanted))

    async def _list(self) -> None:
        try:
            listing = await self._server.list(self._resource, self._kind, self._selector)
        except (Unasked, Unanswered, Refused, Unreadable) as error:
            if not _is_only_old(error) or self._failures + 1 >= TOLD_AFTER:
                self.stale = f"{error}; what was found last is kept"
                self._changed()
            raise
        self.objects.listed(listing)
        self.is_listed, self.stale = True, None
        self._changed()

    async def _watch(self) -> bool:
        """Until it ends; whether it has stood as long as it was to."""
        loop = asyncio.get_running_loop()
        seconds = self._resync_seconds * (0.9 + 0.2 * random.random())  # so that several gateways do not list at once
        timers: list[asyncio.TimerHandle] = []
        try:
            return await self._server.watch(
                self._resource,
                self._selector,
                self.objects.version,
                seconds,
                lambda: timers.append(loop.call_later(LASTS_SECONDS, self._lasts)),
                self._heard,
            )
        except (Unasked, Unanswered, Refused, Unreadable, Ended) as error:
            is_refused = not timers and not _is_only_old(error)
            if is_refused or self._failures + 1 >= TOLD_AFTER:
                self.deaf = f"{self._resource.plural} are listed now and then, and cannot be watched: {error}"
                self._changed()
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _heard(self, line: bytes) -> None:
        if self.objects.told(line):
            self._changed()

    def _lasts(self) -> None:
        self._failures = 0
        if self.deaf is not None:
            self.deaf = None
            self._changed()


def _is_only_old(error: Exception) -> bool:
    """Whether nothing is wrong but that a newer list is needed."""
    return (isinstance(error, Refused) and error.status == GONE) or (isinstance(error, Ended) and error.is_expired)
