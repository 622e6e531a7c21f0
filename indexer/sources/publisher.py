"""A publisher as it is configured, and how following it goes, in plain values.

Knows addresses, time-outs and counts. Never knows sockets or what batches mean.
"""

from typing import Final

import msgspec

from indexer.index import ReplicaId

COUNTED: Final = (
    "batches",
    "connections",
    "events_skipped",
    "foreign_topics",
    "malformed_messages",
    "messages_of_two_connections",
    "replays_unanswered",
)
"""What a subscription counts; its stream counts the rest."""

COUNTED_BY_STREAM: Final = ("gaps", "replays", "lost_batches", "duplicates")


class Publisher(msgspec.Struct, frozen=True):
    """Where one replica publishes its KV events.

    ``replay`` is the publisher's replay endpoint, or None when it has none (vLLM's default). ``topic`` is the prefix to
    subscribe to; empty means everything. ``is_dialling``: it connects to ``events``, an address of ours, instead of
    listening there (vLLM 0.11 - 0.32: an ``endpoint`` without a wildcard); nobody else may use that address. ``told_topic`` is
    the topic that the engine says it publishes under; None where it does not say. ``senders`` are the addresses and networks
    that may connect to ``events``; None for all. ``ranks`` are the data-parallel ranks that its batches may name; None for any.
    """

    replica: ReplicaId
    events: str
    replay: str | None = None
    topic: str = ""
    is_dialling: bool = False
    told_topic: str | None = None
    senders: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None


class ReaderSettings(msgspec.Struct, frozen=True):
    """Time-outs of the reader, in seconds."""

    replay_timeout: float = 5.0
    """Silence after which a replay is taken for unanswered; an idle vLLM answers after at most 0.1 s."""
    replay_limit: float = 60.0
    """A replay that lasts longer is given up, whatever it brings: meanwhile no live batch behind the gap is applied."""
    recheck_first: float = 1.0
    """After a connection was made: long enough that the subscription has certainly reached the publisher."""
    recheck_idle: float = 30.0
    """A publisher silent for this long is asked whether we have its last batch."""
    heartbeat: float = 5.0
    """ZMTP ping interval; a peer silent for twice as long is a broken connection, even if TCP has not noticed."""


class PublisherStatus(msgspec.Struct, frozen=True):
    """What an operator wants to know of one subscription."""

    is_connected: bool
    is_complete: bool
    is_replaying: bool
    incarnation: int
    next_sequence: int | None
    last_event_age: float | None
    """Seconds since the last live batch; None before the first."""
    counters: dict[str, int]
    problem: str = ""
    """Why nothing comes though it is connected, or why it begins anew; in words for an operator."""


def not_subscribed(problem: str) -> PublisherStatus:
    """The status of a publisher that is left alone for a while."""
    counters = dict.fromkeys((*COUNTED, *COUNTED_BY_STREAM), 0)
    return PublisherStatus(False, False, False, 0, None, None, counters, problem)
