"""A run of the detailed model whose prefill and decode replicas are apart.

Knows both legs of a split request, as the gateway sends them one after the other (vLLM's NixlConnector): the prompt is computed
on one replica, which keeps its blocks until they are fetched; then the other one, which the router has chosen before, loads
what it does not hold over its link, computes the last token and answers. Where a replica dies before a first token has come,
the request comes anew, and what was kept for it is let go. Never knows what a policy thinks.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from balancer.core import Candidate, Decision, Outcome, Truth
from balancer.disaggregation.choosing import Quicker, Threshold
from balancer.disaggregation.roles import Part, Role
from balancer.economics.economy import Economy
from balancer.economics.links import Link
from balancer.economics.settings import ModelSettings
from balancer.errors import RequestError
from balancer.policies.base import Policy
from balancer.router import Router
from simulations.detailed_fleet import DetailedFleet
from simulations.detailed_play import Play
from simulations.engine_values import EngineRequest
from simulations.played import MODEL, Held, PlayedReplica, Sent
from simulations.sequences import KeyPrompt
from simulations.shared_store import known_store, most_loaded, store_links

EVERY: Final = Threshold(0)
"""Splits every prompt."""


class _Prompt(msgspec.Struct):
    """A split request until its end.

    ``whole`` is its place at the decode replica, ``name`` that of its prompt at the other one, ``known`` how many leading
    tokens somebody had computed before, ``cached`` what the prefill replica had. It ``is_kept`` there until it was fetched.
    """

    gateway: int
    whole: Held
    decision: Decision
    name: str
    known: int
    forgotten: tuple[int, ...]
    cached: int = 0
    is_kept: bool = False


class SplitPlay(Play):
    """A run, until it is over; mutable."""

    def _prepare(self, fleet: DetailedFleet) -> None:
        assert fleet.disaggregation is not None, "it is asked for by that"
        self._split = fleet.disaggregation
        self._link = Link(self._split.gbits * 1e9 / 8, self._split.latency)
        self._prompts: dict[int, _Prompt] = {}

    # Requests

    def _send(self, now: float, gateway: int, held: Held) -> None:
        if held.part is Part.PREFILL:
            self._compute(now, held)
        elif held.decision.is_split:
            request = held.request
            try:
                decision = self._route(now, gateway, request, Part.PREFILL)
            except RequestError:  # all of them are gone since it was split: who answers computes it
                super()._send(now, gateway, held)
                return
            keys = self._keys.of(request)
            known = self._known(keys, self._trace.inputs[request])
            name = f"{request}/{held.attempt}/prompt"
            self._prompts[request] = _Prompt(gateway, held, decision, name, known, self._forgotten_of(keys, known))
            self._place(now, gateway, Held(request, held.attempt, held.came, decision, Part.PREFILL))
        else:
            super()._send(now, gateway, held)

    def _compute(self, now: float, held: Held) -> None:
        """The first leg."""
        prompt = self._prompts[held.request]
        replica, key_prompt = self._replica(prompt.decision), self._key_prompt(held.request)
        most = most_loaded(prompt.decision.hint)
        wanted = EngineRequest(prompt.name, key_prompt, 1, keeps_blocks=True, max_load_tokens=most)
        if not self._add(now, replica, wanted, held.request):
            self._begin_anew(now, held.request, prompt=Outcome.UNREACHABLE, whole=Outcome.CANCELLED)

    def _answer(self, now: float, request: int) -> None:
        """The second leg."""
        prompt, tokens, answer = self._prompts[request], self._trace.inputs[request], self._trace.outputs[request]
        self._open[request] = Sent(prompt.gateway, prompt.whole.decision, prompt.known, prompt.forgotten)
        wanted = EngineRequest(_name(prompt.whole), self._key_prompt(request), answer, remote_tokens=tokens)
        if not self._add(now, self._replica(prompt.whole.decision), wanted, request):
            self._begin_anew(now, request, prompt=None, whole=Outcome.UNREACHABLE)

    def _add(self, now: float, replica: PlayedReplica, wanted: EngineRequest, request: int) -> bool:
        """Whether the engine is there; if it is not, the router hears of it."""
        if replica.engine is None:
            self._tell_lost(replica)
            return False
        replica.sent[wanted.id] = request
        replica.engine.add(wanted)
        self._run(now, replica)
        return True

    # Faults

    def _begin_anew(self, now: float, request: int, *, prompt: Outcome | None, whole: Outcome) -> None:
        """Neither leg goes on, and the request comes once more. How their leases end; None: that is told already."""
        split = self._prompts.pop(request)
        self._open.pop(request, None)
        router = self._gateways[split.gateway]
        if prompt is not None:
            router.release(split.decision.lease, prompt, now)
        router.release(split.whole.decision.lease, whole, now)
        self._let_go(now, split)
        self._push(now, self._arrive, request, split.whole.attempt + 1, split.whole.came)

    def _strand(self, now: float, gateway: int, held: Held) -> None:
        if held.part is Part.PREFILL:
            self._begin_anew(now, held.request, prompt=Outcome.CANCELLED, whole=Outcome.CANCELLED)
        else:
            super()._strand(now, gateway, held)

    def _die(self, now: float, replica: PlayedReplica, down: float) -> None:
        super()._die(now, replica, down)
        kept = [request for request, each in self._prompts.items() if each.is_kept]
        for request in kept:
            split = self._prompts[request]
            if self._replica(split.decision) is replica:  # what was to be fetched is gone
                split.is_kept = False
                answering = self._replica(split.whole.decision)
                assert answering.engine is not None, "it would have begun anew"
                answering.engine.abort(_name(split.whole))
                del answering.sent[_name(split.whole)]
                self._begin_anew(now, request, prompt=None, whole=Outcome.CANCELLED)
                self._run(now, answering)

    def _lose(self, now: float, replica: PlayedReplica, request: int, attempt: int = 2) -> None:
        split = self._prompts.get(request)
        if split is None:
            super()._lose(now, replica, request, attempt)
        elif self._role(replica) is Role.PREFILL:
            self._begin_anew(now, request, prompt=Outcome.UNREACHABLE, whole=Outcome.CANCELLED)
        else:
            del self._prompts[request]
            self._let_go(now, split)
            super()._lose(now, replica, request, split.whole.attempt + 1)

    def _let_go(self, now: float, split: _Prompt) -> None:
        """Who has computed it keeps it no longer."""
        sender = self._replica(split.decision)
        if split.is_kept and sender.engine is not None:
            split.is_kept = False
            sender.engine.let_go(split.name)
            self._run(now, sender)

    # Engines

    def _load(self, now: float, replica: PlayedReplica, name: str, tokens: int) -> None:
        prompt = self._prompts.get(replica.sent[name])
        if self._role(replica) is Role.DECODE and prompt is not None and prompt.is_kept:
            done = replica.reader.load(now, self._link.seconds(tokens * self._split.token_bytes))
            self._push(done, self._loaded, replica, replica.life, name)
        else:
            super()._load(now, replica, name, tokens)

    def _loaded(self, now: float, replica: PlayedReplica, life: int, name: str) -> None:
        request = replica.sent.get(name) if replica.life == life else None
        prompt = None if request is None else self._prompts.get(request)
        super()._loaded(now, replica, life, name)
        if prompt is not None:
            self._let_go(now, prompt)

    def _began(self, now: float, replica: PlayedReplica, request: int, cached: int) -> None:
        prompt = self._prompts.get(request)
        if prompt is None:
            super()._began(now, replica, request, cached)
        elif self._role(replica) is Role.PREFILL:
            prompt.cached = cached
            self._gateways[prompt.gateway].started(prompt.decision.lease, now)
            self._look(now, prompt.gateway)
        else:
            super()._began(now, replica, request, prompt.cached)  # what had not to be computed

    def _ended(self, now: float, replica: PlayedReplica, request: int) -> None:
        if self._role(replica) is Role.DECODE:
            super()._ended(now, replica, request)
            self._prompts.pop(request, None)
            return
        prompt = self._prompts[request]
        truth = Truth(self._trace.inputs[request], prompt.cached, 1, "length", 200)
        self._gateways[prompt.gateway].release(prompt.decision.lease, Outcome.OK, now, truth)
        self._look(now, prompt.gateway)
        prompt.is_kept = True
        self._answer(now, request)

    # How

    def _gateway(self, policy: Policy, name: str) -> Router:
        split = self._split
        store = None if self._store is None else self._settings.store
        economy = Economy(
            models=[ModelSettings(name=MODEL, bytes_per_token=split.token_bytes)],
            stores={} if store is None else store_links(store),
            transfer=Link(split.gbits * 1e9 / 8, split.latency),
        )
        worth = EVERY if split.splits == "always" else Quicker(EVERY)
        stores = () if store is None else (known_store(),)
        return Router(policy, name, stores=stores, economy=economy, worth=worth, answer_weight=split.answer_weight)

    def _role(self, replica: PlayedReplica) -> Role:
        return Role.PREFILL if replica.number < self._split.prefill else Role.DECODE

    def _replica(self, decision: Decision) -> PlayedReplica:
        return self._replicas[int(decision.replica.id[1:])]

    def _key_prompt(self, request: int) -> KeyPrompt:
        return KeyPrompt(self._trace.inputs[request], self._keys.of(request))

    @property
    def _is_busy(self) -> bool:
        return bool(self._prompts) or super()._is_busy

    def _seen(self, request: int, sent: Sent) -> Iterable[Candidate]:
        prompt = self._prompts.get(request)
        yield from super()._seen(request, sent)
        yield from () if prompt is None else prompt.decision.candidates


def _name(whole: Held) -> str:
    """Of the second leg, at the engine that answers."""
    return f"{whole.request}/{whole.attempt}"
