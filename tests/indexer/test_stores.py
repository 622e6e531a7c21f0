"""``indexer/stores.py``: blocks of shared stores, one object each, whoever has put it there."""

from collections.abc import Sequence

from indexer.bound import Bound
from indexer.events import EMPTY, BlockStored
from indexer.index import CacheIndex, ReplicaId
from indexer.stores import MAX_NAMESPACES, Namespace, StoreIndex

HERE, THERE, ANY = Namespace("here", "m"), Namespace("there", "m"), Namespace("here")


class Chain:
    def __init__(self, *keys: int) -> None:
        self._keys = keys

    def keys(self, count: int, /) -> Sequence[int]:
        return self._keys[:count]


def test_what_is_added_is_there_until_it_is_said_to_be_gone() -> None:
    stores = StoreIndex(Bound())
    assert not stores
    assert stores.add(HERE, [1, 2, 3])
    assert stores
    assert stores.depth(HERE, Chain(1, 2, 3, 4), 10) == 3
    assert stores.depth(HERE, Chain(1, 2, 3, 4), 2) == 2
    assert (
        stores.depth(HERE, Chain(9, 1), 10) == stores.depth(THERE, Chain(1), 10) == stores.depth(ANY, Chain(1), 10) == 0
    )
    assert stores.discard(HERE, [2, 7]) == 1
    assert stores.depth(HERE, Chain(1, 2, 3), 10) == 1
    assert stores.holds(HERE, 3)
    assert not stores.holds(HERE, 2)
    assert not stores.holds(THERE, 3)
    stores.check()


def test_two_who_put_the_same_there_make_one_object_of_it() -> None:
    stores = StoreIndex(Bound())
    stores.add(HERE, [1, 1, 2])
    stores.add(HERE, [1, 2])
    assert stores.blocks("here") == 2
    stores.discard(HERE, [1])
    assert not stores.holds(HERE, 1)
    stores.check()


def test_a_store_that_is_cleared_is_empty_in_all_its_namespaces() -> None:
    stores = StoreIndex(Bound())
    for namespace in (HERE, THERE, ANY):
        stores.add(namespace, [1, 2])
    stores.clear("here")
    assert (stores.blocks("here"), stores.blocks("there")) == (0, 2)
    while stores.has_retired:
        stores.sweep()
    stores.add(ANY, [5])
    assert stores.namespaces("here") == [HERE, ANY]
    assert stores.depth(ANY, Chain(5), 1) == 1
    stores.check()


def test_groups_are_apart() -> None:
    stores = StoreIndex(Bound())
    stores.add(HERE, [1], group=1)
    assert stores.depth(HERE, Chain(1), 1) == 0
    assert stores.depth(HERE, Chain(1), 1, group=1) == 1


def test_names_are_bounded() -> None:
    stores = StoreIndex(Bound())
    assert all(stores.add(Namespace("s", str(at)), [1]) for at in range(MAX_NAMESPACES))
    assert not stores.add(Namespace("s", "one more"), [1])
    stores.check()


def test_stores_share_the_limit_of_the_index_and_outlive_replicas() -> None:
    index, replica = CacheIndex(max_blocks=1_000), ReplicaId("a")
    index.add(replica)
    index.apply(replica, [BlockStored([1, 2], None, EMPTY, 16)])
    index.stores.add(HERE, range(1, 801))
    index.forget(replica)
    assert index.stores.blocks("here") == 800
    index.stores.add(HERE, range(1_000, 1_600))
    assert index.size <= 1_000
    assert index.stores.holds(HERE, 1_599)
    assert not index.stores.holds(HERE, 1)
    index.check()
