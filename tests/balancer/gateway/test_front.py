"""``balancer/gateway/front.py``: what has nobody to answer it is told so."""

import socket
from pathlib import Path
from typing import Any, cast

import pytest

from balancer.errors import NoBrain
from balancer.gateway.access import Access
from balancer.gateway.front import Front
from balancer.http.client import UNIX, HttpClient
from balancer.http.messages import Request
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
        answer = front(Request("GET", "/metrics"), cast(Any, None))
        assert answer is not None
        with pytest.raises(NoBrain, match="ask again") as told:
            await answer
        assert (told.value.status, told.value.retry_after) == (503, 1)
        await client.close()

    run(check())
