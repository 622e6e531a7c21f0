"""``kvlb serve``: the gateway in front of a fleet.

Knows flags, files, signals and the listening socket. What is wrong with any of them is one line and exit code 2.
"""

import argparse
import asyncio
import contextlib
import logging
import math
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from balancer import line_file, settings_file, snapshot_file
from balancer import settings as settings_module
from balancer.arms import in_words
from balancer.commands import Command
from balancer.commands.descriptors import raise_limit
from balancer.commands.listening import add_log_flags, bind, bind_many, url_of
from balancer.commands.loop import StopSignals, run_loop
from balancer.disaggregation import flags
from balancer.epp.opening import NotForwarding, open_picker
from balancer.epp.settings import check_beside
from balancer.errors import ConfigError
from balancer.gateway.access import Access
from balancer.gateway.app import control_runner
from balancer.gateway.serving import FrontServer, sources
from balancer.http.client import UNIX
from balancer.key_source import kept_fresh, read_keys, read_salts
from balancer.logs import begin_logging
from balancer.metrics import Metrics
from balancer.observer import Observer
from balancer.policies.base import names
from balancer.processes.supervisor import Logging, Supervisor, check
from balancer.service import RouterService
from balancer.settings import DiscoverySettings, LogSettings, Settings, SnapshotSettings
from balancer.tls import replica_context, server_tls
from balancer.words import counted

log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL",
        help="a vLLM server, like http://10.0.0.1:8000; repeat it",
    )
    parser.add_argument("--config", metavar="FILE", help="settings in TOML; flags overrule it")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080)")
    parser.add_argument("--processes", type=int, metavar="N", help="gateways, each a process (default 1)")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="routing policy (default predicted_ttft); module:Class for one of your own, importable from here",
    )
    parser.add_argument("--max-body-bytes", type=int, metavar="N", help="largest request body (default 64 MiB)")
    parser.add_argument("--max-blocks", type=int, metavar="N", help="most blocks in the index (default 25 million)")
    parser.add_argument(
        "--expose-decisions", action="store_true", default=None, help="tell clients the replica and its cached tokens"
    )
    parser.add_argument(
        "--startup-timeout",
        "--worker-startup-timeout-secs",
        type=float,
        metavar="S",
        help="exit with an error if no replica answers within S seconds",
    )
    parser.add_argument("--snapshot", metavar="FILE", help="keep the index in this file, and begin with what it has")
    parser.add_argument(
        "--sibling",
        action="append",
        default=[],
        metavar="URL",
        help="another gateway, whose index is taken over at the start; repeat it",
    )
    flags.add_flags(parser)
    add_log_flags(parser)


def run(args: argparse.Namespace, *, picks: bool = False) -> int:
    """Serve until it is asked to stop; with ``picks`` as an endpoint picker, which forwards nothing."""
    if args.startup_timeout is not None and not 0 < args.startup_timeout < math.inf:
        raise ConfigError(
            f"--startup-timeout: {args.startup_timeout:g} cannot be used; give a number of seconds above 0"
        )
    begin_logging(args.log_level, args.log_format)
    raise_limit()
    sys.path.append("")  # a policy of one's own may lie in the folder that kvlb is started from
    settings = read_settings(args)
    if picks:
        check_beside(settings.epp, settings.server.host, settings.server.port)
    check_snapshot(settings.snapshot)
    check_lines(settings.log)
    if settings.server.processes > 1:
        return _supervise(settings, args, picks=picks)
    run_loop(_serve(settings, args.startup_timeout, picks=picks))
    return 0


def _supervise(settings: Settings, args: argparse.Namespace, *, picks: bool) -> int:
    """Keep a brain and gateways, which are processes of their own; the exit code."""
    check(settings)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(each) for each in bind_many(settings.server, settings.server.processes)]
        logs = Logging(args.log_level, args.log_format)
        supervisor = Supervisor(
            settings, lambda: read_settings(args), listeners, logs, args.startup_timeout, picks=picks
        )

        def served() -> None:
            log.info("%s", _listens(url_of(listeners[0], is_secure=settings.tls.cert_file is not None), settings))

        return run_loop(supervisor.run(served))


def read_settings(args: argparse.Namespace) -> Settings:
    """The file's settings, overruled by flags.

    Raises:
        ConfigError: a file that cannot be read, or a setting that cannot be used.
    """
    tree = settings_file.read(args.config) if args.config else {}
    server = tree.setdefault("server", {})
    overruled = {
        "host": args.host,
        "port": args.port,
        "processes": args.processes,
        "max_body_bytes": args.max_body_bytes,
        "expose_decisions": args.expose_decisions,
    }
    if isinstance(server, dict):
        server.update({name: value for name, value in overruled.items() if value is not None})
    index = tree.setdefault("index", {})
    if isinstance(index, dict) and args.max_blocks is not None:
        index["max_blocks"] = args.max_blocks
    snapshot = tree.setdefault("snapshot", {})
    if isinstance(snapshot, dict):
        snapshot.update({"path": args.snapshot} if args.snapshot else {})
        snapshot.update({"siblings": args.sibling} if args.sibling else {})
    if args.policy is not None:
        tree["policy"] = {"name": args.policy}
    if args.replica:
        tree["replicas"] = [{"url": url.rstrip("/")} for url in args.replica]
    flags.apply(args, tree)
    settings = settings_module.convert(tree)
    if not settings.replicas and settings.discovery == DiscoverySettings():
        raise ConfigError(
            "replicas: none given; name at least one with --replica http://HOST:PORT or in --config FILE, or a [discovery]"
        )
    return settings


def check_snapshot(settings: SnapshotSettings) -> None:
    """Refuse a file that could not be saved, or is somebody else's.

    Raises:
        ConfigError: it is such a file.
    """
    problem = None if settings.path is None else snapshot_file.problem(Path(settings.path))
    if problem is not None:
        raise ConfigError(f"snapshot.path: '{settings.path}': {problem}; name another file with --snapshot")


def check_lines(settings: LogSettings) -> None:
    """Refuse files of lines that are no files.

    Raises:
        ConfigError: one is none.
    """
    for setting, path in (("log.decisions", settings.decisions), ("log.access", settings.access)):
        problem = None if path is None else line_file.problem(path)
        if problem is not None:
            raise ConfigError(f"{setting}: '{path}': {problem}; name another file")


async def _serve(settings: Settings, startup_timeout: float | None, *, picks: bool) -> None:
    stop = StopSignals()
    async with running(settings, stop, picks=picks) as (service, address):
        log.info("%s", _listens(address, settings))
        if startup_timeout is not None:
            await service.wait_usable(startup_timeout, stop.asked)
        await stop.asked.wait()


def _listens(address: str, settings: Settings) -> str:
    processes = settings.server.processes
    told = [in_words(settings.policy), counted(len(settings.replicas), "endpoint")]
    if processes > 1:
        told.append(f"{processes} processes")
    return f"listening on {address} with policy {', '.join(told)}"


@contextlib.asynccontextmanager
async def running(
    settings: Settings, stop: StopSignals | None = None, *, picks: bool = False
) -> AsyncIterator[tuple[RouterService, str]]:
    """A gateway that listens, as (service, address); everything is closed at the end, as fast as ``stop`` says.

    With ``picks`` it is an endpoint picker, and the address that of its control plane.

    Raises:
        ConfigError: the address cannot be bound.
    """
    with bind(settings.server) as listener, tempfile.TemporaryDirectory(prefix="kvlb-") as private:
        access = Access(settings, read_keys(settings.auth), read_salts(settings.tenants))
        tls, upstream_tls = server_tls(settings.tls), replica_context(settings.upstream)
        service = RouterService(settings, upstream_tls)
        observer = Observer(settings)
        metrics = Metrics(service, observer)
        control = f"{UNIX}{private}/control"
        runner = control_runner(service, metrics, access)
        await service.start()
        observer.start()
        picker = open_picker(service, metrics.counts, access, observer) if picks else None
        around = NotForwarding if picks else lambda app: app
        front = FrontServer(service, metrics.counts, observer, access, control, upstream_tls, around)
        try:
            await runner.setup()
            await web.UnixSite(runner, control.removeprefix(UNIX)).start()
            await front.server.start(listener, tls.context if tls else None)
            watched = sources(settings, access, tls, upstream_tls)
            if picker is not None:
                await picker.start()
                watched += picker.watched()
            async with kept_fresh(watched):
                yield service, url_of(listener, is_secure=tls is not None)
        finally:
            await asyncio.gather(front.drain(stop), *([picker.drain(stop)] if picker is not None else []))
            await runner.cleanup()
            await front.close()
            await observer.stop()
            await service.stop()


command = Command(
    name="serve",
    help=(
        "Route OpenAI requests to the replica that holds most of their prompt. "
        f"Policies: {', '.join(names())}, or module:Class."
    ),
    configure=configure,
    run=run,
)
