"""``balancer/words.py``: one of a thing is not several, and no quotation gives orders to a terminal."""

from balancer.words import counted, printable


def test_one_is_no_plural() -> None:
    assert [counted(count, "replica") for count in (0, 1, 2_000)] == ["0 replicas", "1 replica", "2,000 replicas"]
    assert (counted(1, "batch", "batches"), counted(2, "batch", "batches")) == ("1 batch", "2 batches")


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert printable("Grüße, 北京 🙂") == "Grüße, 北京 🙂"
    assert printable("a\x1b[31mb\r\nc\u202ed\x9b\udc80") == "a\\x1b[31mb\\r\\nc\\u202ed\\x9b\\udc80"
