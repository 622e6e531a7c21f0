"""Stories for ``tests.support.world``: what happens next, drawn.

Knows which kinds of engines there are in a fleet, which prompts clients send, and what can go wrong, each with its weight.
Never judges: that is the world's part, which is asked after every step.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from hashing.recipes import Recipe
from indexer.index import ReplicaId
from tests.support.publisher import Ask, Kind, Start
from tests.support.world import World

PLAIN = Recipe(block_size=4)
SILENT = Recipe.for_version("0.28.0", block_size=4)
"""Of an engine that draws its root and tells nobody."""


def _variant(recipe: Recipe, **changes: Any) -> Recipe:
    return msgspec.structs.replace(recipe, **changes)


KINDS = (
    Kind("as declared", PLAIN, PLAIN),
    Kind("another seed than declared", _variant(PLAIN, seed="42"), PLAIN, num_gpu_blocks=20),
    Kind("a seed that nobody tries", _variant(PLAIN, seed="77"), PLAIN),
    Kind("a release that hashes extras in other forms", Recipe.for_version("0.22.0", block_size=4, seed="0"), PLAIN),
    Kind("random root", SILENT, SILENT, version="0.28.0", has_random_root=True),
    Kind("nothing declared", _variant(PLAIN, block_size=8), None),
    Kind("short buffer", _variant(PLAIN, block_size=8), _variant(PLAIN, block_size=8), buffer=6),
    Kind("no replay", PLAIN, PLAIN, buffer=None),
    Kind("async", _variant(PLAIN, algorithm="sha256_cbor"), PLAIN, async_scheduling=True),
    Kind(
        "arrays and hashes in bytes",
        Recipe.for_version("0.22.0", block_size=4, algorithm="xxhash", seed="0"),
        Recipe.for_version("0.22.0", block_size=4, algorithm="xxhash", seed="0"),
        version="0.22.0",
        has_int_hashes=False,
    ),
    Kind("offloads", PLAIN, PLAIN, offloads=12),
    Kind("offloads, random root", SILENT, SILENT, version="0.28.0", has_random_root=True, offloads=12),
)
DOCUMENTS = [[10 * document + at % 7 for at in range(48)] for document in range(3)]


class Story:
    """Draws what happens next; ``kinds`` are those that an engine may be replaced by."""

    def __init__(self, world: World, kinds: Sequence[Kind]) -> None:
        self.world = world
        self.kinds = kinds

    def replica(self, draw: Random) -> ReplicaId:
        return draw.choice(list(self.world.publishers))

    def ask(self, draw: Random) -> Ask:
        """Prompts that share beginnings, often end with a block, and are often sent again."""
        length = draw.choice((8, 16, 24, 32, 13, 21, 42))
        tail = [90 + draw.randrange(3) for _ in range(draw.choice((0, 0, 1, 3, 8)))]
        return Ask(
            tokens=(*draw.choice(DOCUMENTS)[:length], *tail),
            salt=draw.choice((None, None, None, "a", "b")),
            has_adapter=draw.random() < 0.15,
            max_tokens=draw.choice((1, 2, 6, 12)),
        )

    # Work

    def send(self, draw: Random) -> None:
        replica, ask = self.replica(draw), self.ask(draw)
        for _ in range(draw.choice((1, 1, 2))):
            self.world.send(replica, ask)

    def route(self, draw: Random) -> None:
        ask = self.ask(draw)
        for _ in range(draw.choice((1, 1, 1, 3))):
            self.world.route(ask)

    def work(self, draw: Random) -> None:
        for _ in range(draw.randint(1, 6)):
            self.world.work(self.replica(draw))

    def work_and_breathe(self, draw: Random) -> None:
        replica = self.replica(draw)
        for _ in range(draw.randint(1, 4)):
            self.world.work(replica)
            self.world.breathe(replica)
        self.world.drain(100)

    def breathe(self, draw: Random) -> None:
        self.world.breathe(self.replica(draw))

    def breathe_everywhere(self, draw: Random) -> None:
        for replica in self.world.publishers:
            self.world.breathe(replica)
        self.world.drain(1_000)

    # Faults of engines

    def reset(self, draw: Random) -> None:
        self.world.publishers[self.replica(draw)].life.process.reset(running=draw.random() < 0.5)

    def abort(self, draw: Random) -> None:
        self.world.abort(self.replica(draw), draw)

    def restart(self, draw: Random, replica: ReplicaId | None = None) -> None:
        """Often with as many batches unheard as the life before had sent: the numbers then go on without a gap."""
        replica = replica or self.replica(draw)
        before = self.world.publishers[replica].life
        asks = before.asks() or [self.ask(draw)]
        self.world.restart(replica, draw)
        life = self.world.publishers[replica].life
        unheard = draw.choice((0, 0, 3, before.sent, before.sent + 1))
        while life.sent < unheard:
            if not life.process.has_work:
                self.world.send(replica, draw.choice([draw.choice(asks), self.ask(draw)]))
            self.world.work(replica)

    def restart_at_once(self, draw: Random) -> None:
        """Nobody has looked before the next process is there, and has said nothing yet or just as much."""
        replica = self.replica(draw)
        self.world.work(replica)
        self.restart(draw, replica)
        if draw.random() < 0.5:
            self.world.read(replica)
        self.world.join(replica)
        self.world.read(replica)
        self.world.drain(100)

    def become_another(self, draw: Random) -> None:
        """The address is given to another engine; the gateway's probes notice sooner or later."""
        replica = self.replica(draw)
        has_replay = self.world.publishers[replica].kind.buffer is not None
        self.world.restart(
            replica, draw, draw.choice([each for each in self.kinds if (each.buffer is not None) == has_replay])
        )
        if draw.random() < 0.7 and replica in self.world.subscriptions:
            self.world.put(replica)

    def write_nonsense(self, draw: Random) -> None:
        replica = self.replica(draw)
        self.world.send(replica, self.ask(draw))
        self.world.work(replica, is_readable=False)

    # Faults of the network

    def lose_live(self, draw: Random) -> None:
        self.world.work(self.replica(draw), arrives=False)

    def lose_the_last(self, draw: Random) -> None:
        """Nothing follows that would leave a gap."""
        replica = self.replica(draw)
        self.world.send(replica, self.ask(draw))
        while self.world.publishers[replica].life.process.has_work:
            self.world.work(replica, arrives=draw.random() < 0.7)
            self.world.breathe(replica)
        self.world.settle()

    def lose_on_the_way(self, draw: Random) -> None:
        sub = self.world.sub(self.replica(draw))
        if sub is not None and sub.wire:
            del sub.wire[draw.randrange(len(sub.wire))]

    def repeat_or_swap(self, draw: Random) -> None:
        """No ZeroMQ does that; a publisher that is written anew might."""
        replica = self.replica(draw)
        sub = self.world.sub(replica)
        if sub is None or self.world.publishers[replica].kind.buffer is None:
            return
        if sub.wire and draw.random() < 0.5:
            sub.wire.append(draw.choice(sub.wire))
        elif len(sub.wire) > 1:
            at = draw.randrange(1, len(sub.wire))
            sub.wire[at - 1], sub.wire[at] = sub.wire[at], sub.wire[at - 1]

    def part(self, draw: Random) -> None:
        self.world.part(self.replica(draw), arrives=draw.choice((0, 1, 100)))

    def join(self, draw: Random) -> None:
        replica = self.replica(draw)
        self.world.join(replica)
        if draw.random() < 0.5:
            self.world.subscribe(replica)

    def carry(self, draw: Random) -> None:
        sub = self.world.sub(self.replica(draw))
        if sub is not None:
            sub.carry(draw.randint(1, 4))

    # Replays

    def serve(self, draw: Random) -> None:
        self.world.serve(self.replica(draw))

    def come_back_to_bad_answers(self, draw: Random) -> None:
        """A subscription begins anew, or goes on after some batches that it has missed."""
        replica = self.replica(draw)
        if draw.random() < 0.5:
            self.world.subscribe_anew(replica)
        else:
            self.world.part(replica)
            self.world.send(replica, self.ask(draw))
            for _ in range(draw.randint(0, 6)):
                self.world.work(replica)
        self.world.join(replica)
        self.world.subscribe(replica)
        self.world.read(replica)
        for _ in range(draw.randint(1, 3)):
            self.serve_badly(draw, replica)
            self.world.drain(100)

    def serve_badly(self, draw: Random, replica: ReplicaId | None = None) -> None:
        """A pipe that is full drops what comes next, be it the end; seldom one that lies about its beginning."""
        first = 0 if draw.random() < 0.05 else 1
        if draw.random() < 0.5:
            lost = [at for at in range(first, 30) if draw.random() < 0.3]
        else:
            lost = list(range(draw.randint(first, 6), 1_000))
        replica = replica or self.replica(draw)
        self.world.serve(replica, lost, has_end=draw.random() < 0.6)
        if draw.random() < 0.5:
            self.world.breathe(replica)

    def carry_answer(self, draw: Random) -> None:
        dealer = self.world.dealer(self.replica(draw))
        if dealer is not None:
            dealer.carry(draw.randint(1, 5))

    def lose_question(self, draw: Random) -> None:
        dealer = self.world.dealer(self.replica(draw))
        if dealer is not None:
            dealer.asked = None

    # The gateway

    def read(self, draw: Random) -> None:
        self.world.read(self.replica(draw))

    def read_while_it_changes(self, draw: Random) -> None:
        """The connection is renewed between the look at the messages and the look at the connection."""
        replica = self.replica(draw)
        sub = self.world.sub(replica)
        if sub is None:
            return

        def renew() -> None:
            if draw.random() < 0.5:
                self.world.restart(replica, draw)
            else:
                self.world.part(replica, arrives=draw.randint(0, 3))
            self.world.join(replica)
            self.world.subscribe(replica)
            self.world.send(replica, self.ask(draw))
            self.world.work(replica)
            sub.carry(draw.randint(0, 2))

        sub.monitor.surprise = renew
        self.world.read(replica)
        sub.monitor.surprise = None

    def drain(self, draw: Random) -> None:
        self.world.drain(draw.choice((1, 2, 5, 1_000)))

    def pass_time(self, draw: Random) -> None:
        self.world.pass_time(draw.choice((0.1, 0.1, 0.5, 1.1, 6.0, 31.0)))

    def remove(self, draw: Random) -> None:
        self.world.remove(self.replica(draw))

    def put(self, draw: Random) -> None:
        self.world.put(self.replica(draw))

    def save(self, draw: Random) -> None:
        self.world.save()

    def restart_gateway(self, draw: Random) -> None:
        if draw.random() < 0.6:
            self.world.save()
        self.world.start_gateway()

    def subscribe_anew(self, draw: Random) -> None:
        self.world.subscribe_anew(self.replica(draw))

    def settle(self, draw: Random) -> None:
        self.world.settle()


WEIGHTS: dict[Callable[[Story, Random], None], float] = {
    Story.send: 8,
    Story.route: 8,
    Story.work: 8,
    Story.work_and_breathe: 14,
    Story.breathe: 8,
    Story.breathe_everywhere: 3,
    Story.reset: 1,
    Story.abort: 2,
    Story.restart: 1,
    Story.restart_at_once: 0.5,
    Story.become_another: 0.4,
    Story.write_nonsense: 0.1,
    Story.lose_live: 2,
    Story.lose_the_last: 0.2,
    Story.lose_on_the_way: 2,
    Story.repeat_or_swap: 0.5,
    Story.part: 1,
    Story.join: 3,
    Story.carry: 4,
    Story.serve: 4,
    Story.serve_badly: 3,
    Story.come_back_to_bad_answers: 1,
    Story.carry_answer: 4,
    Story.lose_question: 0.5,
    Story.read: 6,
    Story.read_while_it_changes: 0.5,
    Story.drain: 8,
    Story.pass_time: 4,
    Story.remove: 0.3,
    Story.put: 2,
    Story.save: 0.3,
    Story.restart_gateway: 0.3,
    Story.subscribe_anew: 0.2,
    Story.settle: 0.3,
}


def walk(seed: int, steps: int, kinds: Sequence[Kind], start: Start) -> Counter[str]:
    """A story from a seed, judged after every step; returns what was seen on the way."""
    draw = Random(seed)
    world = World(draw.sample(kinds, min(4, len(kinds))), start, draw)
    story = Story(world, kinds)
    told: list[str] = []
    happenings, weights = list(WEIGHTS), list(WEIGHTS.values())
    for at in range(steps):
        [happening] = draw.choices(happenings, weights)
        told.append(happening.__name__)
        try:
            happening(story, draw)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {at}, after {told[-12:]}: {error}") from error
    world.settle()
    world.router.caches.index.check()
    return world.seen
