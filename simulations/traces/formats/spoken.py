"""What all formats with texts have in common: texts become ids, and requests without times get some.

Knows the encoder of one file and the chance by which requests come. Never keeps a text.
"""

from random import Random

from balancer.words import counted
from simulations.traces.formats.base import Desk
from simulations.traces.texts import BLOCK_SIZE, CHAT_LAYOUT, STAND_IN, Encoder, block_ids
from simulations.traces.times import kind_of
from simulations.traces.trace import TraceError

DECODE_SECONDS = 0.02
"""A token of an answer takes so long, where the time of the next question has to be guessed."""


class Scribe:
    """Makes of one file's texts what a trace has of them. Remembers time and what there is to be told."""

    def __init__(self, desk: Desk) -> None:
        options = desk.options
        self.builder = desk.builder(BLOCK_SIZE, is_chained=False)
        self._block_size = options.block_size or BLOCK_SIZE
        self._encoder = Encoder(options.tokenizer)
        self._chance = Random(0)
        self._rate = options.rate
        self._last = 0.0
        self.has_chats = False
        self.undated = 0
        self.unanswered = 0

    def tokens(self, text: str) -> int:
        """How long it is."""
        return len(self._encoder.tokens(text))

    def prompt(self, prompt: object) -> tuple[int, list[int]]:
        """Tokens and block ids of a prompt that is a text, or a list of token ids.

        Raises:
            TraceError: it is neither, or it is empty.
        """
        if isinstance(prompt, str):
            tokens = self._encoder.tokens(prompt)
        elif isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
            tokens = prompt
        else:
            raise TraceError("prompt", f"must be a text or a list of token ids, got {kind_of(prompt)}")
        if not tokens:
            raise TraceError("prompt", "is empty")
        return len(tokens), block_ids(tokens, self._block_size)

    def next_arrival(self) -> float:
        """When somebody comes whose time nobody says: by chance, at the rate of the options."""
        self.undated += 1
        self._last += self._chance.expovariate(self._rate)
        return self._last

    def tell(self, desk: Desk) -> None:
        """What was assumed."""
        if self._encoder.is_stand_in:
            desk.note(STAND_IN)
        if self.has_chats:
            desk.note(CHAT_LAYOUT)
        if self.undated:
            desk.note(
                f"{counted(self.undated, 'request')} had no time; they come by chance, {self._rate:g} a second (--trace-rate)"
            )
        if self.unanswered:
            desk.note(
                f"{counted(self.unanswered, 'request')} did not say how long the answer was; one token is taken for each"
            )
