"""Figures in sentences.

Knows English plurals. Never knows what is counted.
"""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 batch``, ``2,000 batches``; ``plural`` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
