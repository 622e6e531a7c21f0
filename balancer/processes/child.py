"""A process that is a brain or a gateway, as its supervisor says.

Knows what each of the two consists of, and when it ends: when it is asked to, when another one has taken over, and when the
supervisor is not there any more. What the user has to mend is one line, and told to the supervisor: it would fail again.
"""

import asyncio
import logging
import math
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from balancer.commands.descriptors import raise_limit
from balancer.commands.loop import StopSignals, run_loop
from balancer.epp.opening import NotForwarding, open_picker
from balancer.errors import BalancerError
from balancer.gateway.access import Access
from balancer.gateway.app import control_runner
from balancer.gateway.serving import FrontServer, sources
from balancer.http.client import UNIX
from balancer.key_source import kept_fresh, read_keys, read_salts
from balancer.logs import begin_logging
from balancer.metrics import Metrics
from balancer.observer import Observer
from balancer.processes import channel
from balancer.processes.brain_server import BrainServer
from balancer.processes.channel import Begin, GivesUp, Message, Ping, Ready, Restarts, Retire
from balancer.processes.link import Link
from balancer.processes.own_paths import OwnPaths
from balancer.processes.remote import RemoteBrain
from balancer.processes.supervisor import first
from balancer.request_counts import RequestCounts
from balancer.retries import Retries, RetrySettings
from balancer.service import RouterService
from balancer.settings import Settings, TracingSettings
from balancer.tls import replica_context, server_tls
from balancer.words import printable

log = logging.getLogger(__name__)

BRAIN: Final = "brain"
CONTROL: Final = "control"
"""Names of sockets in the folder that all processes have in common."""


def main(words: Sequence[str]) -> int:
    """Be what the supervisor says at the other end of this descriptor; returns the exit code."""
    end = socket.socket(fileno=int(words[0]))
    begin = channel.read_begin(end)
    begin_logging(
        begin.log_level, begin.log_format, f"{begin.role} {begin.number}" if begin.role == "gateway" else "brain"
    )
    raise_limit()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until something is there to be read again
    try:
        run_loop(_run(begin, end))
    except BalancerError as error:
        print(f"kvlb: {printable(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


async def _run(begin: Begin, end: socket.socket) -> None:
    child = _Child(begin)
    child.link = await channel.open_channel(end, child.receive, child.orphaned)
    try:
        await (child.be_brain() if begin.role == "brain" else child.be_gateway())
    except BalancerError as error:
        child.tell(GivesUp(error.exit_code))
        raise
    finally:
        child.link.close()


class _Child:
    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._settings = begin.settings
        self._stop = StopSignals()
        self._retired = asyncio.Event()
        self._restarts: dict[str, int] = {"brain": 0, "gateway": 0}
        self._service: RouterService | None = None
        self.link: Link

    def tell(self, message: Message) -> None:
        self.link.send(channel.encode(message))

    def receive(self, message: Message) -> None:
        match message:
            case Ping():
                self.tell(message)
            case Retire():
                self._retired.set()
            case Restarts():
                self._restarts = message.counts
                if self._service is not None:
                    self._service.census.restarts = Counter(message.counts)

    def orphaned(self) -> None:
        """The supervisor has gone."""
        self._stop.receive(signal.SIGINT)

    async def be_brain(self) -> None:
        settings = self._settings
        access = Access(settings, read_keys(settings.auth), read_salts(settings.tenants))
        upstream_tls = replica_context(settings.upstream)
        self._service = service = RouterService(settings, upstream_tls)
        service.census.restarts = Counter(self._restarts)
        observer = Observer(_without_files(settings))
        metrics = Metrics(service, observer)
        runner = control_runner(service, metrics, access)
        server = BrainServer(service, metrics.counts, observer)
        await service.start()
        try:
            await runner.setup()
            await web.UnixSite(runner, f"{self._begin.folder}/{CONTROL}").start()
            await server.start(f"{self._begin.folder}/{BRAIN}")
            async with kept_fresh(sources(settings, access, None, upstream_tls)):
                self.tell(Ready())
                if self._begin.startup_timeout is not None:
                    await service.wait_usable(self._begin.startup_timeout, self._stop.asked)
                await self._stop.asked.wait()
        finally:
            service.is_draining = True
            await server.stop()
            await runner.cleanup()
            await service.stop()

    async def be_gateway(self) -> None:
        begin, settings = self._begin, self._settings
        assert begin.listener is not None
        listener = socket.socket(fileno=begin.listener)
        access = Access(settings, read_keys(settings.auth), read_salts(settings.tenants))
        tls, upstream_tls = server_tls(settings.tls), replica_context(settings.upstream)
        observer, counts = Observer(settings), RequestCounts()
        retries = Retries(_share(settings.retries, settings.server.processes))
        path = f"{begin.folder}/{BRAIN}"
        brain = RemoteBrain(
            settings, path, begin.number, counts, observer, upstream_tls, retries, waits_for_all=not begin.is_first
        )
        await brain.start()
        observer.start()
        control = f"{UNIX}{begin.folder}/{CONTROL}"
        picker = open_picker(brain, counts, access, observer) if begin.picks else None
        around = NotForwarding if begin.picks else lambda app: app
        front = FrontServer(
            brain, counts, observer, access, control, upstream_tls, lambda app: OwnPaths(around(app), brain, access)
        )
        try:
            await first(brain.is_known, self._stop.asked)
            if not self._stop.asked.is_set():
                await front.server.start(listener, tls.context if tls else None)
                watched = sources(settings, access, tls, upstream_tls)
                if picker is not None:
                    await picker.start()
                    watched += picker.watched()
                async with kept_fresh(watched):
                    self.tell(Ready())
                    await first(self._retired, self._stop.asked)
        finally:
            ending = front.retire(self._stop) if self._retired.is_set() else front.drain(self._stop)
            await asyncio.gather(ending, *([picker.drain(self._stop)] if picker is not None else []))
            await front.close()
            await observer.stop()
            await brain.stop()
            listener.close()


def _share(settings: RetrySettings, processes: int) -> RetrySettings:
    """One gateway's part of the budget: its ratio is of its own requests, and the rest is divided."""
    return msgspec.structs.replace(settings, budget_minimum=math.ceil(settings.budget_minimum / processes))


def _without_files(settings: Settings) -> Settings:
    """Those of a brain's observer: who answers requests writes of them."""
    return msgspec.structs.replace(
        settings, log=msgspec.structs.replace(settings.log, access=None), tracing=TracingSettings()
    )
