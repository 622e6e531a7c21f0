"""``hashing/store.py``: the bound holds whatever is put, and the least recently used goes first."""

from hypothesis import given
from hypothesis import strategies as st

from hashing.store import ByteStore

names = st.binary(min_size=1, max_size=2)


@given(st.lists(st.tuples(names, st.binary(max_size=300))), st.integers(0, 3_000))
def test_the_bound_holds_and_the_last_ones_are_kept(items: list[tuple[bytes, bytes]], most: int) -> None:
    store, model = ByteStore(most), dict[bytes, bytes]()
    for name, value in items:
        store.put(name, value)
        model.setdefault(name, value)
        assert store.bytes_held <= most
    for name, _ in items:
        assert store.get(name) in {None, model[name]} or len({v for n, v in items if n == name}) > 1
    assert (len(store) == 0) == (store.bytes_held == 0)


def test_the_least_recently_used_goes_first() -> None:
    store = ByteStore(750)
    for name in (b"a", b"b", b"c"):
        store.put(name, bytes(10))
    assert len(store) == 2
    assert store.get(b"b") is not None
    store.put(b"d", bytes(10))
    assert [name for name in (b"a", b"b", b"c", b"d") if store.get(name) is not None] == [b"b", b"d"]


def test_what_is_there_already_stays_as_it_was() -> None:
    store = ByteStore(10_000)
    store.put(b"a", b"first")
    held = store.bytes_held
    store.put(b"a", b"second, and longer")
    assert (store.get(b"a"), store.bytes_held) == (b"first", held)
