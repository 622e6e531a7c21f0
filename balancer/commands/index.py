"""``kvlb index``: the index alone, as a service for other routers.

Knows flags, signals and the listening socket. Proxies nothing and asks engines nothing over HTTP: their event publishers are
all it needs.
"""

import argparse
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator

from balancer import settings as settings_module
from balancer.commands import Command
from balancer.commands.descriptors import publishers_within, raise_limit
from balancer.commands.listening import add_log_flags, bind, url_of
from balancer.commands.loop import run_loop, stop_signal
from balancer.http.routes import RouteTable, Served
from balancer.http.server import HttpServer, ServerLimits
from balancer.index_service.paths import IndexPaths, refuse
from balancer.index_service.service import IndexService
from balancer.logs import begin_logging
from balancer.settings import Settings

log = logging.getLogger(__name__)

PORT = 8190


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on (default {PORT})")
    parser.add_argument("--max-body-bytes", type=int, metavar="N", help="largest request body (default 64 MiB)")
    parser.add_argument("--max-blocks", type=int, metavar="N", help="most blocks in the index (default 25 million)")
    add_log_flags(parser)


def run(args: argparse.Namespace) -> int:
    begin_logging(args.log_level, args.log_format)
    run_loop(_serve(read_settings(args)))
    return 0


def read_settings(args: argparse.Namespace) -> Settings:
    """What the flags say.

    Raises:
        ConfigError: a value that cannot be used.
    """
    server = {"host": args.host, "port": args.port, "max_body_bytes": args.max_body_bytes}
    index = {"max_blocks": args.max_blocks}
    sections = {"server": server, "index": index}
    given = {name: {key: value for key, value in each.items() if value is not None} for name, each in sections.items()}
    return settings_module.convert(given)


async def _serve(settings: Settings) -> None:
    stop = stop_signal()
    async with running(settings) as (_, address):
        log.info("the index listens on %s; POST /register the engines' publishers", address)
        await stop.wait()
        log.info("stopping")


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[IndexService, str]]:
    """An index service that listens, as (service, address); everything is closed at the end.

    Raises:
        ConfigError: the address cannot be bound.
    """
    with bind(settings.server) as listener:
        service = IndexService(settings, publishers_within(raise_limit()))
        served: Served = Counter()
        limits = ServerLimits(max_body_bytes=settings.server.max_body_bytes)
        table = RouteTable(IndexPaths(service, served).routes(), refuse, served)
        server = HttpServer(table, refuse, limits)
        await service.start()
        try:
            await server.start(listener)
            yield service, url_of(listener)
        finally:
            await server.stop()
            await service.stop()


command = Command(
    name="index",
    help="Tell other routers which engine holds how much of a prompt (the API of Dynamo's standalone indexer).",
    configure=configure,
    run=run,
)
