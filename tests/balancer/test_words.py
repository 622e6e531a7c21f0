"""``balancer/words.py``: one of a thing is not several."""

from balancer.words import counted


def test_one_is_no_plural() -> None:
    assert [counted(count, "replica") for count in (0, 1, 2_000)] == ["0 replicas", "1 replica", "2,000 replicas"]
    assert (counted(1, "batch", "batches"), counted(2, "batch", "batches")) == ("1 batch", "2 batches")
