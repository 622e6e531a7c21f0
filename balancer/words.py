"""Figures and other people's words in sentences.

Knows English plurals, and what a terminal would take for an order. Never knows what is counted or quoted.
"""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 batch``, ``2,000 batches``; ``plural`` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """One line that shows what is in it: line breaks, control and other invisible characters are written as escapes."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
