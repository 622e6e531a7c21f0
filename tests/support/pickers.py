"""An endpoint picker in this process, a real Envoy before it, fake engines behind both, and a client that sees what comes back.

Knows the settings that make a test quick. ``is_idle`` says whether nothing is left of any request.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from balancer import settings as settings_module
from balancer.commands.serve import running
from balancer.service import RouterService
from simulations.demo import free_ports
from simulations.fake_engine import FakeConfig, FakeEngine
from simulations.fake_engine import running as engine_running
from tests.support.engines import MODEL, config
from tests.support.envoy import Envoy, Wiring, envoy
from tests.support.gateways import Gateway
from tests.support.waiting import eventually

COMPLETIONS: Final = "/v1/completions"
STAYS: Final = {"name": "cache_aware"}
"""The policy by which who asks the same again is sent there again, whatever any clock says."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def cached_tokens(self) -> int:
        """As the engine counts them."""
        return int(self.json["usage"]["prompt_tokens_details"]["cached_tokens"])


class Picked(Gateway):
    """A picker with its proxy and its engines; ``url`` is that of its control plane."""

    def __init__(
        self, service: RouterService, url: str, epp_port: int, replicas: Sequence[str], session: aiohttp.ClientSession
    ) -> None:
        """``replicas`` are the URLs of what it chooses from."""
        super().__init__(service, url)
        self.epp_port = epp_port
        self.endpoints = [each.partition("://")[2] for each in replicas]
        """``host:port`` of each."""
        self.session = session
        self.engines: Sequence[FakeEngine] = ()
        self.proxy: Envoy

    async def ask(
        self, body: dict[str, Any] | bytes | None, path: str = COMPLETIONS, method: str = "POST", **headers: str
    ) -> Answer:
        """What the client gets by way of the proxy."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = msgspec.json.encode({"model": MODEL, **body}) if isinstance(body, dict) else body
        if data is not None:
            named.setdefault("content-type", "application/json")
        sent = None if data is None else io.BytesIO(data)
        async with self.session.request(method, self.proxy.url + path, data=sent, headers=named) as response:
            told = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, told, await response.read())

    async def complete(self, prompt: Any, **fields: Any) -> Answer:
        """A completion, which must be a good one."""
        answer = await self.ask({"prompt": prompt, "max_tokens": 2, **fields})
        assert answer.status == 200, answer
        return answer

    async def settled(self) -> None:
        """Return once nothing is left of any request."""
        await eventually(self.is_idle)


@contextlib.asynccontextmanager
async def picker(
    configs: Sequence[FakeConfig] = (config(), config()), *, urls: Sequence[str] = (), **sections: Any
) -> AsyncIterator[Picked]:
    """A picker before these engines, or before what is at ``urls``, that is ready, without a proxy yet."""
    (port,) = free_ports(1)
    async with contextlib.AsyncExitStack() as stack:
        engines = [] if urls else [await stack.enter_async_context(engine_running(each)) for each in configs]
        listed = list(urls) or [engine.url for engine in engines]
        more = sections.pop("replicas", [{} for _ in listed])
        tree: dict[str, Any] = {
            "replicas": [{"url": url, **each} for url, each in zip(listed, more, strict=True)],
            "health": {"interval_seconds": 0.1},
            "policy": STAYS,
            **sections,
            "server": {"port": 0, "expose_decisions": True, "drain_grace_seconds": 0, **sections.get("server", {})},
            "epp": {"host": "127.0.0.1", "port": port, **sections.get("epp", {})},
        }
        service, url = await stack.enter_async_context(running(settings_module.convert(tree), picks=True))
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        made = Picked(service, url, port, listed, session)
        made.engines = engines
        await eventually(lambda: all(not watcher.problem for watcher in service.watchers.values()))
        yield made


@contextlib.asynccontextmanager
async def proxied(made: Picked, folder: Path, **changes: Any) -> AsyncIterator[Picked]:
    """The same with a proxy before it."""
    wiring = msgspec.structs.replace(Wiring(made.epp_port, made.endpoints), **changes)
    loop = asyncio.get_running_loop()
    manager = envoy(wiring, folder)
    made.proxy = await loop.run_in_executor(None, manager.__enter__)
    try:
        yield made
    finally:
        await loop.run_in_executor(None, manager.__exit__, None, None, None)
