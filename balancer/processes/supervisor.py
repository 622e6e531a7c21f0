"""Keeps one brain and its gateways: starts them, replaces them, and starts those again that end unasked.

Knows processes, sockets that listen, and signals. Never knows a request. A gateway is replaced by one that serves already; each
place among the gateways has a socket of its own, which whoever has the place inherits: what clients have begun to say to it is
said to the next one. Between calls: for each place there is one process that serves, or one is about to.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from balancer.arms import chosen
from balancer.commands.loop import StopSignals
from balancer.errors import ConfigError
from balancer.key_source import read_keys, read_salts
from balancer.processes import channel
from balancer.processes.backoff import BackOff
from balancer.processes.channel import Begin, GivesUp, Message, Ping, Ready, Restarts, Retire, Role
from balancer.processes.link import Link
from balancer.settings import Settings
from balancer.tls import replica_context, server_tls

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
"""How long a new gateway may take until it serves, before the old one is kept."""

SAVE_SECONDS: Final = 60.0
"""How long a brain may take to end: it saves its snapshot."""

SPARE_SECONDS: Final = 10.0
"""How long a gateway may take to end beyond what its settings allow."""


PING_SECONDS: Final = 5.0
"""Between two questions to each process whether it is there."""

STILL_SECONDS: Final = 30.0
"""How long a process may not answer while it is asked again and again; nothing that it does takes half a second.

Questions are counted, no time is taken: if this process stood still itself, or the machine did, nobody else is to blame for it.
"""

PING: Final = Ping()

LOOK_SECONDS: Final = 0.2
"""Between two looks at whether all have started, besides what they tell."""

Place: TypeAlias = tuple[Role, int]


class Logging(msgspec.Struct, frozen=True):
    level: str
    format: str


class Child:
    """One process. ``ready`` is set once it serves, or has ended."""

    def __init__(self, role: Role, number: int, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self.number = number
        self.process = process
        self.link: Link
        self.since = time.monotonic()
        self.unanswered = 0
        """Questions since it was heard last."""
        self.ready = asyncio.Event()
        self.gave_up: int | None = None
        """The exit code of one that the user has to mend something for."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.process.pid}>"

    @property
    def place(self) -> "Place":
        return self.role, self.number

    @property
    def name(self) -> str:
        return "brain" if self.role == "brain" else f"gateway {self.number}"

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    def receive(self, message: Message) -> None:
        self.unanswered = 0
        match message:
            case Ready():
                self.ready.set()
            case GivesUp():
                self.gave_up = message.code

    def signal(self, number: int) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def tell(self, message: Message) -> None:
        self.link.send(channel.encode(message))

    async def ended(self, seconds: float) -> None:
        """Return when it has ended, by force after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            log.warning("%s (%d) does not end, and is killed", self.name, self.process.pid)
            self.signal(signal.SIGKILL)
            await self.process.wait()


class Supervisor:
    """``run`` it in a loop, with the sockets that its gateways listen at."""

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        listeners: Sequence[socket.socket],
        logs: Logging,
        startup_timeout: float | None = None,
        *,
        picks: bool = False,
    ) -> None:
        """``reread`` gives the settings anew; a ``ConfigError`` of it leaves those that are.

        With ``picks`` gateways are endpoint pickers.
        """
        self._settings = settings
        self._reread = reread
        self._listeners = listeners
        self._logs = logs
        self._startup_timeout = startup_timeout
        self._picks = picks
        self._folder = ""
        self._places: dict[Place, Child] = {}
        self._backoffs: defaultdict[Place, BackOff] = defaultdict(BackOff)
        self._children: dict[Child, asyncio.Task[None]] = {}
        """All that live, with who watches each of them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts: Counter[str] = Counter({"brain": 0, "gateway": 0})
        self._has_started = self._is_stopping = False
        self._is_replacing = self._is_asked_again = False
        self._code = 0
        self._stop: StopSignals

    async def run(self, served: Callable[[], None]) -> int:
        """Start all, keep them until it is asked to stop, end all; the exit code. ``served`` is called once all serve."""
        self._stop = StopSignals()
        with tempfile.TemporaryDirectory(prefix="kvlb-") as self._folder:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked_to_replace)
            try:
                if await self._start("brain", [0]) and await self._start("gateway", self._numbers()):
                    self._has_started = True
                    self._do(self._look())
                    served()
                    await self._stop.asked.wait()
            finally:
                await self._end_all()
        return self._code

    def _numbers(self) -> list[int]:
        return list(range(1, len(self._listeners) + 1))

    async def _start(self, role: Role, numbers: list[int]) -> bool:
        """Whether all of them serve, and nobody has asked to stop meanwhile."""
        for number in numbers:
            child = await self._spawn(role, number)
            self._places[child.place] = child
        while not self._stop.asked.is_set():
            waited = [child for number in numbers if not (child := self._places[role, number]).ready.is_set()]
            if not waited and all(self._places[role, number].is_alive for number in numbers):
                return True
            await first(self._stop.asked, *[child.ready for child in waited], seconds=LOOK_SECONDS)
        return False

    # One process

    async def _spawn(self, role: Role, number: int) -> Child:
        ours, theirs = socket.socketpair()
        listener = self._listeners[number - 1].fileno() if role == "gateway" else None
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "balancer.processes",
                str(theirs.fileno()),
                pass_fds=[fd for fd in (theirs.fileno(), listener) if fd is not None],
                start_new_session=True,  # what a terminal sends is for the supervisor, who knows the order of things
            )
        child = Child(role, number, process)
        child.link = await channel.open_channel(ours, child.receive)
        begin = Begin(
            role,
            number,
            self._settings_of(role),
            self._folder,
            listener,
            self._logs.level,
            self._logs.format,
            None if self._has_started else self._startup_timeout,
            is_first=not self._has_started,
            picks=self._picks,
        )
        child.tell(begin)
        child.tell(Restarts(dict(self._restarts)))
        self._children[child] = asyncio.create_task(self._watch(child, is_first=not self._has_started))
        return child

    def _settings_of(self, role: Role) -> Settings:
        """A brain that ends has to find again what it knew: without a file of the user's, in one of ours."""
        settings = self._settings
        if role == "gateway" or settings.snapshot.path is not None:
            return settings
        snapshot = msgspec.structs.replace(settings.snapshot, path=str(Path(self._folder) / "index"))
        return msgspec.structs.replace(settings, snapshot=snapshot)

    async def _watch(self, child: Child, *, is_first: bool) -> None:
        code = await child.process.wait()
        child.ready.set()
        child.link.close()
        del self._children[child]
        if self._is_stopping or self._places.get(child.place) is not child:
            return
        if is_first and child.gave_up is not None:
            self._code = child.gave_up
            self._stop.receive(signal.SIGINT)
            return
        wait = self._backoffs[child.place].ended(time.monotonic() - child.since)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log.warning("%s (%d) has ended with %s; another one begins in %g s", child.name, child.process.pid, how, wait)
        self._restarts[child.role] += 1
        self._tell_restarts()
        self._do(self._start_again(child, wait))

    async def _start_again(self, child: Child, wait: float) -> None:
        while True:
            await asyncio.sleep(wait)
            if self._is_stopping or self._places.get(child.place) is not child:
                return
            try:
                self._places[child.place] = await self._spawn(*child.place)
            except OSError as error:  # no memory, or no more processes
                wait = self._backoffs[child.place].ended(0.0)
                log.warning("%s cannot be started: %s; it is tried again in %g s", child.name, error.strerror, wait)
            else:
                return

    async def _look(self) -> None:
        """End whoever stands still: his requests do, too."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            for child in self._children:
                if not child.ready.is_set():
                    continue
                if child.unanswered * PING_SECONDS >= STILL_SECONDS:
                    log.warning("%s (%d) has said nothing for %g s", child.name, child.process.pid, STILL_SECONDS)
                    child.signal(signal.SIGKILL)
                child.unanswered += 1
                child.tell(PING)

    def _tell_restarts(self) -> None:
        brain = self._places.get(("brain", 0))
        if brain is not None and brain.is_alive:
            brain.tell(Restarts(dict(self._restarts)))

    def _do(self, coming: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coming)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # All of them, one after the other

    def _asked_to_replace(self) -> None:
        if not self._has_started or self._is_stopping:
            return
        if self._is_replacing:
            self._is_asked_again = True
            return
        self._is_replacing = True
        self._do(self._replace_all())

    async def _replace_all(self) -> None:
        try:
            self._is_asked_again = True
            while self._is_asked_again and not self._is_stopping:
                self._is_asked_again = False
                if self._read_again():
                    await self._replace_brain()
                    for number in [] if self._is_stopping else self._numbers():
                        await self._replace_gateway(number)
        finally:
            self._is_replacing = False

    def _read_again(self) -> bool:
        """Whether there are settings that can be used."""
        try:
            settings = self._reread()
            check(settings)
        except ConfigError as error:
            log.warning("nothing is replaced, and the settings stay as they were: %s", error)
            return False
        fixed = {name: getattr(self._settings.server, name) for name in ("host", "port", "processes")}
        if any(getattr(settings.server, name) != value for name, value in fixed.items()):
            log.warning("server.host, server.port and server.processes stay as they were until kvlb is started anew")
        server = msgspec.structs.replace(settings.server, **fixed)
        self._settings = msgspec.structs.replace(settings, server=server)
        log.info("the brain and %d gateways are replaced", len(self._listeners))
        return True

    async def _replace_brain(self) -> None:
        """The old one first saves what it knows, for the new one to begin with."""
        old = self._places.pop(("brain", 0))
        old.signal(signal.SIGTERM)
        await old.ended(SAVE_SECONDS)
        if self._is_stopping:
            return
        new = self._places["brain", 0] = await self._spawn("brain", 0)
        await first(new.ready, self._stop.asked, seconds=START_SECONDS)

    async def _replace_gateway(self, number: int) -> None:
        """The new one first serves, and only then the old one ends."""
        new = await self._spawn("gateway", number)
        await first(new.ready, self._stop.asked, seconds=START_SECONDS)
        if self._is_stopping:
            return
        if not (new.ready.is_set() and new.is_alive):
            log.warning("%s is not replaced: the new one does not serve", new.name)
            new.signal(signal.SIGKILL)
            return
        old, self._places[new.place] = self._places[new.place], new
        log.info("%s: %d has taken over from %d", new.name, new.process.pid, old.process.pid)
        if old.is_alive:
            old.tell(Retire())
            self._do(old.ended(self._drain_seconds()))

    def _drain_seconds(self) -> float:
        server = self._settings.server
        return server.drain_grace_seconds + server.drain_timeout_seconds + SPARE_SECONDS

    async def _end_all(self) -> None:
        """First the gateways, each signal as it comes; the brain once nobody asks it any more."""
        self._is_stopping = True
        stop = self._stop
        gateways = [child for child in self._children if child.role == "gateway"]
        for child in gateways:
            # One that has only just begun knows no signals, and would say of SIGINT where it has met it.
            child.signal(signal.SIGINT if stop.soon.is_set() and child.ready.is_set() else signal.SIGTERM)
        pressing = asyncio.create_task(self._press(gateways, was_soon=stop.soon.is_set()))
        await asyncio.gather(*[child.ended(self._drain_seconds()) for child in gateways])
        pressing.cancel()
        rest = list(self._children)  # a gateway that has only just begun among them
        for child in rest:
            child.signal(signal.SIGTERM)
        await asyncio.gather(*[child.ended(SAVE_SECONDS) for child in rest])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(pressing, *self._tasks, *self._children.values(), return_exceptions=True)

    async def _press(self, gateways: Sequence[Child], *, was_soon: bool) -> None:
        """Whoever asked to stop cannot wait."""
        for event in (self._stop.soon, self._stop.now)[was_soon:]:
            await event.wait()
            for child in gateways:
                child.signal(signal.SIGINT)


def check(settings: Settings) -> None:
    """Read what settings name, as each process will.

    Raises:
        ConfigError: something cannot be used.
    """
    read_keys(settings.auth)
    read_salts(settings.tenants)
    server_tls(settings.tls)
    replica_context(settings.upstream)
    chosen(settings.policy)


async def first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Return as soon as one of them is set, or after so many seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
