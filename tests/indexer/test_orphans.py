"""``indexer/orphans.py``: what waits is found under its parent and under its own name, and never grows without bound."""

from collections import Counter

import pytest

from hashing.own import follow
from indexer import orphans as limits
from indexer.orphans import Orphans


def test_what_waits_gets_its_key_by_its_links() -> None:
    orphans: Orphans[str] = Orphans()
    orphans.wait(3, "gpu", 2, (b"c", b"d"))
    orphans.wait(2, "gpu", 1, (b"b",))
    orphans.wait(2, "cpu")
    assert (3 in orphans, len(orphans)) == (True, 2)
    two = follow(7, [b"b"])[0]
    three = follow(two, [b"c", b"d"])[1]
    placed = list(orphans.place([(9, 5), (1, 7)]))
    assert placed == [(2, two, Counter({"gpu": 1, "cpu": 1})), (3, three, Counter({"gpu": 1}))]
    assert (len(orphans), orphans.placed) == (0, 2)


def test_what_is_told_first_is_what_leads_to_a_block() -> None:
    """A name is a whole prefix: another way to it is a mistake or a lie, and a placeholder tells none."""
    orphans: Orphans[str] = Orphans()
    orphans.wait(2, "cpu")
    orphans.wait(2, "gpu", 1, (b"b",))
    orphans.wait(2, "gpu", 5, (b"x",))
    assert list(orphans.place([(5, 7)])) == []
    assert list(orphans.place([(1, 7)])) == [(2, follow(7, [b"b"])[0], Counter({"gpu": 2, "cpu": 1}))]


def test_the_least_recently_stored_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 3)
    orphans: Orphans[str] = Orphans()
    for name in (1, 2, 3, 1):
        assert not orphans.wait(name, "gpu", name + 100, (b"x",))
    assert orphans.wait(4, "gpu", 104, (b"x",)) == Counter({"gpu": 1})
    assert [name in orphans for name in (1, 2, 3, 4)] == [True, False, True, True]
    assert list(orphans.place([(102, 5)])) == [], "nor does its parent remember it"
    orphans.wait(5, "gpu")
    assert orphans.wait(6, "cpu") == Counter({"gpu": 2}), "with all its copies"


def test_copies_are_taken_one_by_one_or_counted_down() -> None:
    orphans: Orphans[str] = Orphans()
    for place in ("gpu", "gpu", "gpu", "cpu"):
        orphans.wait(1, place)
    orphans.take(1, "gpu", 9)
    orphans.take(1, "disk")
    orphans.take(1, "gpu", 1)
    assert 1 in orphans
    orphans.take(1, "gpu")
    orphans.drop(["gpu"])
    assert 1 in orphans
    orphans.drop(["cpu"])
    assert len(orphans) == 0
    assert repr(orphans) == "<Orphans 0 waiting, 0 placed>"
