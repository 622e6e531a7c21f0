"""The configuration of Envoy in docs/epp.md is run as it stands there, but for where things listen."""

import asyncio
import re
from pathlib import Path

from tests.support.envoy import DESTINATION, Envoy, configured
from tests.support.pickers import Picked, picker
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run

DOC = Path(__file__).parents[2] / "docs" / "epp.md"
PROMPT = list(range(300, 500))


def documented(made: Picked, port: int, admin: int) -> str:
    """The file for this picker and these ports."""
    found = re.search(r"```yaml\n(.*?)```", DOC.read_text(), re.S)
    assert found is not None
    text = found[1]
    for old, new in (
        ("address: 0.0.0.0, port_value: 10000", f"address: 127.0.0.1, port_value: {port}"),
        ("address: kvlb-epp, port_value: 9002", f"address: 127.0.0.1, port_value: {made.epp_port}"),
    ):
        assert old in text
        text = text.replace(old, new)
    return f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n{text}"


def test_the_documented_configuration_serves(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, upstream() as inner:
            manager = configured(lambda port, admin: documented(made, port, admin), tmp_path, "yaml")
            made.proxy = await asyncio.to_thread(manager.__enter__)
            try:
                await serves(made, made.proxy)
                own: dict[str, str] = {DESTINATION: inner.url.partition("://")[2]}
                assert (await made.ask({"prompt": PROMPT, "max_tokens": 1}, **own)).status == 200
                assert not inner.received
            finally:
                await asyncio.to_thread(manager.__exit__, None, None, None)

    async def serves(made: Picked, proxy: Envoy) -> None:
        assert proxy.process.poll() is None
        first = await made.complete(PROMPT)
        again = await made.complete(PROMPT)
        assert (first.cached_tokens, again.cached_tokens) == (0, 192)
        assert "x-gateway-destination-endpoint-served" not in again.headers
        streamed = await made.ask({"prompt": PROMPT, "max_tokens": 5, "stream": True})
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        await eventually(made.is_idle)
        assert await made.outcomes() == {"ok": 3}

    run(check())
