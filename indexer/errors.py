"""Errors of the index: what came in that cannot be used."""


class IndexerError(Exception):
    """Base of all errors raised by this package."""


class WireError(IndexerError):
    """A payload of which not even the list of events can be read."""


class SnapshotError(IndexerError):
    """Bytes that are no snapshot, or one that must not be used."""
