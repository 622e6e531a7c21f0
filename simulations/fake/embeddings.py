"""``/v1/embeddings``: vectors that mean nothing, the same ones for the same input.

Knows the body and the answer as vLLM 0.32.0 has them for a pooling model. Never knows an engine: nothing is cached for them.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulations.fake.completions import read_prompts
from simulations.fake.tokenizer import Tokenizer

DIMENSIONS: Final = 64


class EmbeddingsBody(msgspec.Struct):
    input: msgspec.Raw
    model: str | None = None

    def answer(self, name: str, created: int, model: str, tokenizer: Tokenizer) -> dict[str, Any]:
        """The answer.

        Raises:
            Refused: the input is empty or of no shape that vLLM takes.
        """
        prompts = read_prompts(self.input, tokenizer)
        count = sum(len(prompt) for prompt in prompts)
        data = [
            {"index": number, "object": "embedding", "embedding": vector(prompt)}
            for number, prompt in enumerate(prompts)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0, "prompt_tokens_details": None}
        return {"id": name, "object": "list", "created": created, "model": model, "data": data, "usage": usage}


def vector(tokens: Sequence[int]) -> list[float]:
    """A vector of length 1 for the tokens."""
    seed = msgspec.msgpack.encode(tokens)
    raw = [byte - 127.5 for byte in hashlib.shake_128(seed).digest(DIMENSIONS)]
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]
