"""``balancer/gateway/front.py``: what has nobody to answer it is told so."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from balancer.gateway.access import Access
from balancer.gateway.front import Front
from balancer.http.client import UNIX, HttpClient
from balancer.http.messages import Request, Response
from balancer.security import CorsSettings
from balancer.settings import Settings
from tests.support.waiting import run


@pytest.mark.parametrize("is_left", [False, True], ids=["never there", "gone"])
def test_a_control_plane_that_is_away_is_unavailable_and_no_fault(tmp_path: Path, is_left: bool) -> None:
    """With several processes it is being replaced."""
    path = tmp_path / "control"
    if is_left:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))

    async def check() -> None:
        client = HttpClient(1.0)
        settings = Settings()
        front = Front(cast(Any, None), client, f"{UNIX}{path}", Access(settings), CorsSettings())
        sent: list[Response] = []
        answer = front(Request("GET", "/metrics"), cast(Any, SimpleNamespace(send=sent.append)))
        assert answer is not None
        await answer
        (told,) = sent
        assert (told.status, dict(told.headers)["Retry-After"]) == (503, "1")
        assert b"ask again" in cast(bytes, told.body)
        await client.close()

    run(check())
