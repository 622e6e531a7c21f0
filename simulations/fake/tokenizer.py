"""Text <-> token ids, without a trained vocabulary.

Knows pieces of one to three small letters, with or without a space before them, and single bytes for everything else. Never
remembers a text: every engine gives the same ids for the same text, and ``decode(encode(text))`` is the text.

Generated tokens are all pieces of a space and three letters. Such a text is cut at the same places when it comes back in
the next turn, so the blocks that it filled are found again.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from string import ascii_lowercase
from typing import Final

SPECIAL: Final = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
VOCABULARY: Final = 128_256
"""Ids from 0 up to here are valid; those past the last piece stand for nothing, as reserved ids do elsewhere."""

_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"
_CUT: Final = re.compile("|".join([*map(re.escape, SPECIAL), " ?[a-z]{1,3}", r"[\s\S]"]))


class Tokenizer:
    """Immutable once made; making it takes some ten milliseconds."""

    def __init__(self) -> None:
        letters = ["".join(each) for size in (1, 2, 3) for each in product(ascii_lowercase, repeat=size)]
        texts = [*SPECIAL, *(space + each for space in ("", " ") for each in letters)]
        # The bytes first; a single letter is a byte and has no second id.
        self._bytes: list[bytes] = [bytes([value]) for value in range(256)]
        self._bytes += [text.encode() for text in texts if len(text) > 1]
        self._ids = {piece.decode(): number for number, piece in enumerate(self._bytes) if number >= 256}
        self._ids |= {chr(value): value for value in range(128)}
        self.start_of_turn = self._ids["<|im_start|>"]
        self.end_of_turn = self._ids["<|im_end|>"]
        self.end_of_text = self._ids["</s>"]
        words = ("".join(each) for each in product(_CONSONANTS, _VOWELS, _CONSONANTS))
        self.words: Final = tuple(self._ids[" " + word] for word in words)
        """What a model without weights says."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; special tokens that are spelt out in it are recognised."""
        ids = self._ids
        pieces = _CUT.findall(text)
        try:
            return [ids[piece] for piece in pieces]
        except KeyError:
            return [number for piece in pieces for number in self._encode_piece(piece)]

    def _encode_piece(self, piece: str) -> Sequence[int]:
        known = self._ids.get(piece)
        return piece.encode(errors="replace") if known is None else (known,)

    def decode(self, tokens: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of ``tokens``; bytes that are no UTF-8 give U+FFFD."""
        last = len(self._bytes)
        first_word = 256 + len(SPECIAL)
        return b"".join(
            self._bytes[token] for token in tokens if token < last and not (skip_special and 256 <= token < first_word)
        ).decode(errors="replace")

    def render_chat(self, messages: Sequence[tuple[str, str]], *, is_open: bool = True) -> list[int]:
        """A conversation of (role, text) as ids, in the ChatML layout; ``is_open`` invites the assistant's turn."""
        ids: list[int] = []
        for role, text in messages:
            ids.append(self.start_of_turn)
            ids += self.encode(f"{role}\n{text}")
            ids.append(self.end_of_turn)
            ids += self.encode("\n")
        if is_open:
            ids.append(self.start_of_turn)
            ids += self.encode("assistant\n")
        return ids
