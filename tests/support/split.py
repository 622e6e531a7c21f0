"""A brain and a gateway that speak over their socket, in one loop: for tests that must see both.

Knows how the two are put together. What is a process in ``kvlb serve --processes`` is a few objects here.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from aiohttp import web

from balancer.commands.listening import bind, url_of
from balancer.gateway.access import Access
from balancer.gateway.app import control_runner
from balancer.gateway.serving import FrontServer, sources
from balancer.http.client import UNIX
from balancer.http.messages import Request
from balancer.http.reply import Reply
from balancer.http.server import App
from balancer.key_source import kept_fresh, read_keys, read_salts
from balancer.metrics import Metrics
from balancer.observer import Observer
from balancer.processes.brain_server import BrainServer
from balancer.processes.child import _without_files
from balancer.processes.own_paths import OwnPaths
from balancer.processes.permits import BrainAway
from balancer.processes.protocol import Spend
from balancer.processes.remote import RemoteBrain
from balancer.request_counts import RequestCounts
from balancer.service import RouterService
from balancer.settings import Settings
from balancer.tls import replica_context, server_tls


class Settled:
    """An ``App`` before which both ends know what there is to know: what takes half a second to be told takes none here."""

    def __init__(self, app: App, server: BrainServer, remote: RemoteBrain) -> None:
        self._app = app
        self._server = server
        self._remote = remote

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None]:
        return self._answer(request, reply)

    async def _answer(self, request: Request, reply: Reply) -> None:
        await settle(self._server, self._remote)
        coming = self._app(request, reply)
        if coming is not None:
            await coming


async def settle(server: BrainServer, remote: RemoteBrain) -> None:
    """Return once the brain has been told all, and the gateway has heard of it."""
    server.look()
    server.beat()
    if remote.is_asked:
        remote._report()
        number = remote._next_call()
        with contextlib.suppress(BrainAway):
            await remote._call(number, Spend(number, 0, 0, 0.0))


class Split:
    """Both ends."""

    def __init__(self, service: RouterService, server: BrainServer, remote: RemoteBrain, path: str) -> None:
        self.service = service
        self.server = server
        self.remote = remote
        self.path = path


@contextlib.asynccontextmanager
async def running_split(settings: Settings) -> AsyncIterator[tuple[RouterService, str]]:
    """As ``balancer.commands.serve.running``."""
    async with split_gateway(settings) as (split, url):
        yield split.service, url


@contextlib.asynccontextmanager
async def split_gateway(settings: Settings) -> AsyncIterator[tuple[Split, str]]:
    """Both ends, and where the gateway listens."""
    with bind(settings.server) as listener, tempfile.TemporaryDirectory(prefix="kvlb-") as folder:
        access = Access(settings, read_keys(settings.auth), read_salts(settings.tenants))
        tls, upstream_tls = server_tls(settings.tls), replica_context(settings.upstream)
        service = RouterService(settings, upstream_tls)
        brains_observer = Observer(_without_files(settings))
        metrics = Metrics(service, brains_observer)
        server = BrainServer(service, metrics.counts, brains_observer)
        runner = control_runner(service, metrics, access)
        await service.start()
        await runner.setup()
        await web.UnixSite(runner, f"{folder}/control").start()
        await server.start(f"{folder}/brain")
        observer, counts = Observer(settings), RequestCounts()
        remote = RemoteBrain(settings, f"{folder}/brain", 1, counts, observer, upstream_tls)
        await remote.start()
        observer.start()
        control = f"{UNIX}{folder}/control"
        front = FrontServer(
            remote,
            counts,
            observer,
            access,
            control,
            upstream_tls,
            lambda app: Settled(OwnPaths(app, remote, access), server, remote),
        )
        try:
            await remote.is_known.wait()
            await front.server.start(listener, tls.context if tls else None)
            async with kept_fresh(sources(settings, access, tls, upstream_tls)):
                made = Split(service, server, remote, f"{folder}/brain")
                yield made, url_of(listener, is_secure=tls is not None)
                server = made.server  # perhaps another one by now
        finally:
            await front.drain(None)
            await front.close()
            await observer.stop()
            await remote.stop()
            await server.stop()
            await runner.cleanup()
            await service.stop()
