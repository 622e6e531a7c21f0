"""Who comes next, if the replica that was chosen does not answer.

Knows what the policy saw of each. Draws nothing and changes nothing: it is no decision, and no lease.
"""

from balancer.core import Candidate, Decision
from indexer.index import ReplicaId


def ranked(decision: Decision) -> list[ReplicaId]:
    """The other candidates, by how soon each would have computed the prompt; of equals those with less under way first."""
    others = [each for each in decision.candidates if each.replica != decision.replica.id]
    return [each.replica for each in sorted(others, key=_cost)]


def _cost(candidate: Candidate) -> tuple[float, int, ReplicaId]:
    seconds = candidate.wait + candidate.load_seconds + candidate.computed_tokens / candidate.speed
    return seconds / candidate.share, candidate.in_flight, candidate.replica
