"""``/tokenize`` and ``/detokenize`` as vLLM 0.32.0 reads and answers them.

Knows both forms of the first: a prompt, or the messages of a chat. Never knows an engine.
"""

from typing import Any

import msgspec

from simulations.fake.asks import Refused
from simulations.fake.chat import Message, render
from simulations.fake.tokenizer import Tokenizer


class Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False

    def answer(self, tokenizer: Tokenizer, max_model_len: int) -> dict[str, Any]:
        """The answer's fields.

        Raises:
            Refused: there is neither a prompt nor a message, or a message is not text.
        """
        if self.messages is not None:
            tokens = render(self.messages, tokenizer, is_open=self.add_generation_prompt)
        elif self.prompt is not None:
            tokens = tokenizer.encode(self.prompt)
        else:
            raise Refused(
                "1 validation error:\n  Field required at body.prompt", param="body.prompt", kind="Bad Request"
            )
        texts = [tokenizer.decode([token]) for token in tokens] if self.return_token_strs else None
        return {"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens, "token_strs": texts}


class Detokenize(msgspec.Struct):
    tokens: list[int]
    model: str | None = None
