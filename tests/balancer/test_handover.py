"""``balancer/handover.py``: what is taken out of a router, and what another one believes of it."""

import msgspec
import pytest

from balancer.core import Replica
from balancer.facts import Described, EventSource
from balancer.handover import Handover, identity
from balancer.knowledge import Knowledge
from balancer.router import Router
from hashing.extras import Lora
from indexer.errors import SnapshotError
from indexer.events import EMPTY, BlockRemoved, BlockStored
from indexer.index import ReplicaId, Tier
from indexer.recognition import KeyState
from indexer.slices import at_once
from indexer.snapshot import Image, write
from indexer.stream import Apply, Forget, Lost, Position, Standing
from indexer.wire import Batch
from tests.support.handovers import TOKENS, URLS, A, B, fed, member, router, taken_over
from tests.support.routing import RANDOM, RECIPE, request, told


def described(each: Replica, *, replay: str | None = "tcp://a:5558") -> Described:
    return Described(each, EventSource(0, "tcp://a:5557", replay, ""), ())


def join(to: Router, handover: Handover, each: Described) -> tuple[Position | None, str | None]:
    to.put(each.replica)
    return handover.adopt(each)


def test_a_replica_goes_on_where_it_was() -> None:
    image = at_once(Handover(fed(member(A)), URLS).take(now=5.0))
    made, handover = taken_over(image)
    assert made.caches.index.gpu.blocks(A) == 2
    assert join(made, handover, described(member(A))) == (Position(1, 75), None)
    assert made.caches.positions[A] == Position(1, 75)
    assert made.caches.recognitions[A].export() == image.replicas[0].recognition
    assert made.caches.recognitions[A].state is KeyState.PROVEN
    assert not handover.waiting
    assert join(made, handover, described(member(B))) == (None, "no snapshot has it")
    assert join(made, handover, described(member(B))) == (None, None)


def test_learned_keys_go_on_where_they_were() -> None:
    engine = member(A)
    before = router(engine)
    before.caches.observe(A, [Apply([Batch(7.5, [told(TOKENS, RANDOM)], digest=75)])])
    made, handover = taken_over(at_once(Handover(before, URLS).take(now=5.0)))
    join(made, handover, described(engine))
    assert made.caches.recognitions[A].state is KeyState.LEARNED
    for each in (before, made):
        each.caches.observe(A, [Apply([Batch(8.0, [BlockRemoved(told(TOKENS, RANDOM).block_hashes[1:])])])])
        assert each.consider(request([*TOKENS, 1]), 1.0, 0.5).cached_tokens == 4


def test_what_is_missing_or_in_doubt_is_told_on() -> None:
    engine = member(A, num_gpu_blocks=2)
    before = fed(engine)
    before.caches.observe(A, [Lost(1, 3), Apply([Batch(8.0, [], skipped=("nonsense",), digest=80)])])
    before.tick(1.0)  # more blocks than it has: the events are not what they seem
    made, handover = taken_over(at_once(Handover(before, URLS).take(5.0)))
    assert join(made, handover, described(engine))[0] == Position(5, 80, 4)
    assert made.caches.losses[A] == before.caches.losses[A]
    assert (made.caches.losses[A].batches, made.caches.losses[A].events, made.caches.losses[A].overfull) == (
        3,
        1,
        2,
    )
    assert made.caches.index.removal_means_gone == {A}


def test_until_its_publisher_confirms_it_a_replica_is_partial() -> None:
    made, handover = taken_over(at_once(Handover(fed(member(A)), URLS).take(5.0)))
    join(made, handover, described(member(A)))
    made.caches.observe(A, [Standing(is_connected=True, is_restored=True)])
    assert made.caches.view(A, 1.0).state is Knowledge.PARTIAL
    made.caches.observe(A, [Standing(is_connected=True, is_complete=True)])
    assert made.caches.view(A, 1.0).state is Knowledge.EXACT


OTHERS = {
    "another model": (described(member(A, models=("other",))), "another model"),
    "another block size": (described(member(A, recipe=msgspec.structs.replace(RECIPE, block_size=8))), "recipe"),
    "another root": (described(member(A, recipe=RANDOM)), "recipe"),
    "no replay": (described(member(A), replay=None), "without a replay socket"),
    "no events": (Described(member(A), None, ()), "without a replay socket"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_replica_that_is_another_one_now_begins_anew(name: str) -> None:
    now, problem = OTHERS[name]
    made, handover = taken_over(at_once(Handover(fed(member(A), member(B)), URLS).take(5.0)))
    position, why = join(made, handover, now)
    assert position is None
    assert problem in str(why)
    assert A in made.caches.index.replicas
    assert (made.caches.index.gpu.blocks(A), made.caches.index.gpu.blocks(B)) == (0, 2)
    assert made.caches.positions.get(A, Position()) == Position()


def test_who_begins_cold_is_told_why_and_only_beside_those_who_do_not() -> None:
    image = at_once(Handover(fed(member(A)), URLS).take(now=5.0))
    made, handover = taken_over(image)
    assert join(made, handover, described(member(B), replay=None)) == (None, "it has no replay socket")
    nothing = router()
    assert join(nothing, Handover(nothing, URLS), described(member(A))) == (None, None)


def test_adapters_may_come_and_go() -> None:
    lora = Lora("tuned", "/adapters/tuned")
    assert identity(member(A)) == identity(member(A, models=("m", "tuned"), adapters=(lora,)))


def test_who_cannot_be_asked_later_on_is_left_out() -> None:
    lately_lost, silent, unproven = (member(ReplicaId(f"{name}:8000")) for name in ("lost", "silent", "unproven"))
    made = fed(member(A), lately_lost)
    made.put(silent)
    made.put(unproven)
    made.caches.observe(unproven.id, [Apply([Batch(1.0, [BlockStored([7], 6, EMPTY, 4)])])])
    made.caches.observe(lately_lost.id, [Lost(1, 2)])
    assert [each.replica for each in at_once(Handover(made, URLS).take(5.0)).replicas] == [A]
    made.caches.observe(A, [Forget("a restart")])
    assert at_once(Handover(made, URLS).take(5.0)).replicas == []


def test_what_waits_is_handed_on_too() -> None:
    made, handover = taken_over(at_once(Handover(fed(member(A), member(B)), URLS).take(5.0)))
    join(made, handover, described(member(A)))
    again = at_once(handover.take(6.0))
    assert {each.replica: each.position for each in again.replicas} == {A: Position(1, 75), B: Position(1, 75)}
    once_more, _ = taken_over(again)
    assert (once_more.caches.index.gpu.blocks(A), once_more.caches.index.gpu.blocks(B)) == (2, 2)


def test_ranks_that_are_gone_are_dropped_with_their_endpoint() -> None:
    ranks = [member(ReplicaId(f"a:8000#{rank}"), rank=rank, ranks=2) for rank in range(2)]
    made, handover = taken_over(at_once(Handover(fed(*ranks, member(B)), URLS).take(5.0)))
    join(made, handover, described(ranks[0]))
    assert handover.drop("http://a:8000") == ["a:8000#1"]
    assert made.caches.index.replicas == {"a:8000#0", B}
    assert handover.drop_all() == [B]
    assert made.caches.index.replicas == {"a:8000#0"}
    assert handover.drop_all() == []


def test_other_fleets_are_passed_over() -> None:
    image = at_once(Handover(fed(member(A), member(B)), URLS).take(5.0))
    made, _ = taken_over(image, URLS[1:])
    assert made.caches.index.replicas == {B}
    with pytest.raises(SnapshotError, match="no replica of this fleet"):
        taken_over(image, ["http://c:8000"])


def test_notes_that_cannot_be_read_are_refused_with_all_the_rest() -> None:
    image = at_once(Handover(fed(member(A)), URLS).take(5.0))
    foreign = msgspec.structs.replace(image.replicas[0], notes=msgspec.msgpack.encode({"losses": {}}))
    with pytest.raises(SnapshotError, match="it is of another kvlb: "):
        taken_over(msgspec.structs.replace(image, replicas=[foreign]))


def test_what_cannot_be_trusted_leaves_nothing_behind() -> None:
    pieces = list(write(at_once(Handover(fed(member(A), member(B)), URLS).take(5.0))))
    made = router()
    handover = Handover(made, URLS)
    restoration = handover.restoration(oldest=0)
    for piece in pieces[:-1]:
        restoration.feed(piece)
    assert made.caches.index.replicas == {A, B}
    handover.abandon()
    assert not made.caches.index.replicas
    assert made.caches.index.size == 0
    made.caches.index.check()
    again = handover.restoration(oldest=0)
    for piece in pieces:
        again.feed(piece)
    assert handover.accept(again.finish()) == 4


def test_a_replica_that_goes_while_a_copy_is_made_is_not_in_it() -> None:
    made = fed(member(A), member(B))
    taking = Handover(made, URLS).take(5.0)
    next(taking)
    made.remove(B)
    assert [each.replica for each in at_once(taking).replicas] == [A]


def test_what_is_no_longer_held_is_swept_out_before_a_copy_is_made() -> None:
    made = fed(member(A), member(B))
    made.caches.index.gpu.store(B, 0, range(50_000))
    made.caches.observe(B, [Forget("a restart")])
    before, image, after = (
        made.caches.index.has_retired,
        at_once(Handover(made, URLS).take(5.0)),
        made.caches.index.has_retired,
    )
    assert (before, after) == (True, False)
    assert sum(len(piece.keys) for pieces in image.tiers[Tier()].groups.values() for piece in pieces) == 2


def test_ranks_that_no_engine_has_are_passed_over() -> None:
    handover = Handover(router(), URLS)
    [known] = at_once(Handover(fed(member(A)), URLS).take(now=5.0)).replicas
    ranks = ["#0", "#1023", "#1024", "#01", "#-1", "#x", ""]
    images = [msgspec.structs.replace(known, replica=ReplicaId(A + rank)) for rank in ranks]
    restoration = handover.restoration(oldest=0)
    for piece in write(Image(5.0, images, {}, {})):
        restoration.feed(piece)
    assert [each.image.replica for each in restoration.finish()] == [f"{A}#0", f"{A}#1023", A]
