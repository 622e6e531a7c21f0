"""What it costs to wait and to be counted: ``python -m tests.bench.bench_admission``, one JSON line a case.

CPU time of the process in microseconds. admission: one request enters a queue of so many, one is taken and charged. limits:
one request enters, spends and leaves under limits of its key and its tenant. nesting: one look at a chat of so many messages.
"""

import json
import time
from collections.abc import Callable

from balancer.admission import Admission, AdmissionSettings, Claim, Pool, Urgency
from balancer.limits import NO_RATES, Limiter, LimitSettings, Rates
from balancer.nesting import is_deeper
from tests.bench.report import report

REPEATS = 20_000
PLENTY = Rates(requests_per_minute=1e9, tokens_per_minute=1e12, concurrent_requests=10**9)


def measure(name: str, case: dict[str, object], once: Callable[[int], object], repeats: int = REPEATS) -> None:
    started = time.process_time()
    for at in range(repeats):
        once(at)
    report(name, case, {"cpu_us": round((time.process_time() - started) / repeats * 1e6, 2)})


def waiting(requests: int, tenants: int, closed: int) -> None:
    """``closed``: so many of them wait for replicas that have no place."""
    queue = Admission(AdmissionSettings(max_in_flight=1, max_waiting=10 * requests))
    urgencies = list(Urgency)

    def enter(at: int, model: str = "m") -> None:
        queue.enter(Claim(f"tenant-{at % tenants}", urgencies[at % 3]), Pool(model), float(at))

    def once(at: int) -> None:
        enter(at)
        ticket = queue.take(lambda pool: pool.model == "m", float(at))
        assert ticket is not None
        queue.charge(ticket.claim, 1_000 + at % 100)

    for at in range(requests):
        enter(at, "m" if at >= closed else "other")
    measure("admission", {"waiting": requests, "tenants": tenants, "closed": closed}, once)


def limits(keys: int) -> None:
    limiter = Limiter(LimitSettings(key=PLENTY, tenant=PLENTY))

    def once(at: int) -> None:
        permit = limiter.enter(f"key-{at % keys}", "tenant", NO_RATES, float(at))
        permit.spend(1_000, float(at))
        permit.charge(10)
        permit.leave()

    measure("limits", {"keys": keys}, once)


def nesting(messages: int) -> None:
    text = "def f(x):\n    return {x: [1, 2]}\n" * 8
    body = json.dumps({"messages": [{"role": "user", "content": text} for _ in range(messages)]}).encode()
    measure("nesting", {"messages": messages, "bytes": len(body)}, lambda at: is_deeper(body, 128), 200)


if __name__ == "__main__":
    for requests, tenants, closed in ((10, 1, 0), (1_000, 1, 0), (1_000, 100, 0), (1_000, 100, 900)):
        waiting(requests, tenants, closed)
    limits(1_000)
    for messages in (1, 10, 100):
        nesting(messages)
