"""A fleet in which all is well, and changes to it."""

from typing import Any

import msgspec

from balancer.checks.facts import Cache, Endpoint, Facts, Sample, Source, Stream

HEALTHY_STREAM = Stream(is_connected=True, is_complete=True, batches=3)

HEALTHY_SOURCE = Source(
    events="tcp://h:5557", replay="tcp://h:5657", buffer_steps=10_000, hwm=100_000, max_queue_size=100_000
)

HEALTHY = Cache(
    replica="h:8000",
    endpoint="http://h:8000",
    models=("m",),
    version="0.32.0",
    has_prefix_caching=True,
    block_size=16,
    algorithm="sha256",
    has_known_root=True,
    num_gpu_blocks=1_000,
    source=HEALTHY_SOURCE,
    stream=HEALTHY_STREAM,
    keys="proven",
    keys_reason="its hashes agree",
    knowledge="exact",
    reason="proven",
    copies=999,
    reports=1,
)

ENDPOINT = Endpoint(url="http://h:8000", version="0.32.0", models=("m",), clock_skew=0.3)


def cache(**changes: Any) -> Cache:
    """The healthy replica with changes; ``source`` and ``stream`` may be given as changes of their own."""
    for name, healthy in (("source", HEALTHY_SOURCE), ("stream", HEALTHY_STREAM)):
        if isinstance(changes.get(name), dict):
            changes[name] = msgspec.structs.replace(healthy, **changes[name])
    return msgspec.structs.replace(HEALTHY, **changes)


def endpoint(**changes: Any) -> Endpoint:
    return msgspec.structs.replace(ENDPOINT, **changes)


def sample(endpoint: str, *tokens: int, **changes: Any) -> Sample:
    made = Sample(endpoint=endpoint, model="m", sample="text", way="render", tokens=tokens)
    return msgspec.structs.replace(made, **changes)


def facts(*caches: Cache, **changes: Any) -> Facts:
    """The healthy fleet with these replicas, or with the healthy one."""
    made = Facts(
        kvlb="1.0",
        doctor="1.0",
        endpoints=(ENDPOINT,),
        caches=caches or (HEALTHY,),
        max_blocks=1_000_000,
        snapshot="/var/lib/kvlb/index",
        requests=100,
        samples=(sample("http://h:8000", 1, 2),),
    )
    return msgspec.structs.replace(made, **changes)
