"""Two replicas with two blocks each, and routers that hand them over."""

from typing import Final

from balancer.core import Replica
from balancer.handover import Handover
from balancer.policies.least_load import LeastLoad
from balancer.router import Router
from indexer.index import ReplicaId
from indexer.snapshot import Image, write
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.routing import replica, told

A, B = (ReplicaId(name) for name in ("a:8000", "b:8000"))
TOKENS: Final = list(range(8))
URLS: Final = ["http://a:8000", "http://b:8000"]


def member(name: ReplicaId, **changes: object) -> Replica:
    return replica(name.partition(":")[0], id=name, **changes)


def router(*replicas: Replica) -> Router:
    made = Router(LeastLoad(), "least_load")
    for each in replicas:
        made.put(each)
    return made


def fed(*replicas: Replica) -> Router:
    """Each replica has published one batch, with two blocks."""
    made = router(*replicas)
    for each in replicas:
        made.caches.observe(each.id, [Apply([Batch(7.5, [told(TOKENS)], digest=75)])])
    return made


def taken_over(image: Image, urls: list[str] = URLS) -> tuple[Router, Handover]:
    made = router()
    handover = Handover(made, urls)
    restoration = handover.restoration(oldest=0)
    for piece in write(image):
        restoration.feed(piece)
    handover.accept(restoration.finish())
    return made, handover
