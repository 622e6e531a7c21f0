"""``next_best.py``: who comes next is whoever would have computed the prompt next."""

import msgspec

from balancer.next_best import ranked
from tests.support.routing import candidate, decision


def test_others_are_named_by_how_soon_they_would_have_been_done() -> None:
    made = msgspec.structs.replace(
        decision(),
        candidates=(
            candidate("idle", prompt=1000),
            candidate("h:1", prompt=1000, cached=1000),
            candidate("holds", prompt=1000, cached=900),
            candidate("busy", prompt=1000, cached=900, wait=60.0),
            candidate("loads", prompt=1000, load_tokens=950, load_seconds=1e-6),
            candidate("new", prompt=1000, cached=900, share=0.01),
        ),
    )
    assert ranked(made) == ["loads", "holds", "idle", "new", "busy"]
    assert ranked(decision()) == []
