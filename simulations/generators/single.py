"""Requests that stand alone, and begin like others: behind shared prompts, over documents, in bursts, in steps of training."""

from typing import ClassVar

from simulations.generators.base import DECODE_SECONDS, Settings, Workshop, generators
from simulations.traces.trace import Trace


@generators.register("shared_prompts")
class SharedPrompts(Settings, frozen=True, kw_only=True):
    """Applications that ask one question each time behind a long prompt of their own.

    Attributes:
        prompts: how many there are; the first one is the most popular.
        prompt_tokens, question_tokens, answer_tokens: medians.
    """

    rate: float = 5.0
    prompts: int = 20
    prompt_tokens: int = 2_000
    question_tokens: int = 100
    answer_tokens: int = 100

    def generate(self, seed: int) -> Trace:
        shop = Workshop("shared_prompts", self, seed)
        prompts = [shop.blank.then(shop.length(self.prompt_tokens)) for _ in range(self.prompts)]
        for at in shop.begins():
            prompt = prompts[shop.popular(self.prompts)]
            shop.ask(at, prompt.then(shop.length(self.question_tokens)), shop.length(self.answer_tokens))
        return shop.done()


@generators.register("rag")
class Rag(Settings, frozen=True, kw_only=True):
    """Questions behind the documents that were found for them, the best one first.

    Two prompts begin alike as far as the same documents come in the same order.

    Attributes:
        documents: how many there are; the first one is found most often.
        found: documents in a prompt.
        system_tokens, document_tokens, question_tokens, answer_tokens: medians.
    """

    rate: float = 2.0
    documents: int = 500
    found: int = 3
    system_tokens: int = 300
    document_tokens: int = 1_000
    question_tokens: int = 50
    answer_tokens: int = 200

    may_be_zero: ClassVar[frozenset[str]] = Settings.may_be_zero | {"system_tokens"}

    def generate(self, seed: int) -> Trace:
        shop = Workshop("rag", self, seed)
        system = shop.blank.then(shop.length(self.system_tokens, 0))
        lengths = [shop.length(self.document_tokens) for _ in range(self.documents)]
        for at in shop.begins():
            chosen: dict[int, None] = {}
            while len(chosen) < min(self.found, self.documents):
                chosen[shop.popular(self.documents)] = None
            prompt = system
            for document in chosen:
                prompt = prompt.then(lengths[document], document)
            shop.ask(at, prompt.then(shop.length(self.question_tokens)), shop.length(self.answer_tokens))
        return shop.done()


@generators.register("best_of")
class BestOf(Settings, frozen=True, kw_only=True):
    """Bursts of one prompt, sent several times at once.

    Attributes:
        samples: of each prompt.
        system_tokens, prompt_tokens, answer_tokens: medians; the system prompt is everybody's.
    """

    samples: int = 8
    system_tokens: int = 200
    prompt_tokens: int = 1_500
    answer_tokens: int = 300

    may_be_zero: ClassVar[frozenset[str]] = Settings.may_be_zero | {"system_tokens"}

    def generate(self, seed: int) -> Trace:
        shop = Workshop("best_of", self, seed)
        system = shop.blank.then(shop.length(self.system_tokens, 0))
        for at in shop.begins():
            prompt = system.then(shop.length(self.prompt_tokens))
            for _ in range(self.samples):
                shop.ask(at, prompt, shop.length(self.answer_tokens))
        return shop.done()


@generators.register("rollouts")
class Rollouts(Settings, frozen=True, kw_only=True):
    """Reinforcement learning: steps in which a batch of prompts is sampled, each prompt in a group.

    A step begins ``training`` seconds after its predecessor's longest answer would be there. Prompts are drawn from a set,
    none a second time before all have been. ``rate`` has no meaning here.

    Attributes:
        prompts: in the set.
        batch: prompts of one step.
        group: samples of each prompt.
        training: seconds between two steps.
        prompt_tokens, answer_tokens: medians.
    """

    prompts: int = 512
    batch: int = 32
    group: int = 8
    training: float = 30.0
    prompt_tokens: int = 500
    answer_tokens: int = 1_000

    may_be_zero: ClassVar[frozenset[str]] = Settings.may_be_zero | {"training"}

    def generate(self, seed: int) -> Trace:
        shop = Workshop("rollouts", self, seed)
        texts = [shop.blank.then(shop.length(self.prompt_tokens)) for _ in range(self.prompts)]
        at, left = 0.0, list[int]()
        while at < self.seconds:
            longest = 0
            for _ in range(self.batch):
                if not left:
                    left = shop.random.sample(range(self.prompts), self.prompts)
                text = texts[left.pop()]
                for _ in range(self.group):
                    answer = shop.length(self.answer_tokens)
                    longest = max(longest, answer)
                    shop.ask(at, text, answer)
            at += longest * DECODE_SECONDS + self.training
        return shop.done()
