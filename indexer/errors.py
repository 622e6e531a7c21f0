"""Errors of the index: what a publisher sent that cannot be used."""


class IndexerError(Exception):
    """Base of all errors raised by this package."""


class WireError(IndexerError):
    """A payload of which not even the list of events can be read."""
