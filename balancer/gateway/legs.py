"""A split request: one replica computes its prompt, another one answers.

Knows the order of the two legs, what becomes of one when the other fails, and how long what was computed may be used. What an
engine has to be told is the connector's to say (``balancer.disaggregation``). Every lease is released exactly once; a prompt
that nobody will fetch is given back, as far as the connector can.
"""

import random
from collections.abc import Coroutine
from typing import Any

import msgspec

from balancer.core import Decision, Failure, Outcome, RouteRequest
from balancer.disaggregation import bodies, plan
from balancer.disaggregation.answers import AnswerFilter
from balancer.disaggregation.counts import Alone
from balancer.disaggregation.plan import Answered, Pair, Side
from balancer.disaggregation.roles import PREFILL_SESSION, Part
from balancer.errors import Contended, NoReplica, Saturated, UnknownModel
from balancer.gateway import headers
from balancer.gateway.asking import Asking, DecodeLeg, Means, too_late
from balancer.gateway.at_once import NotPrefilled, Result, both
from balancer.gateway.attempt import Attempt
from balancer.gateway.bootstrap import EngineIds
from balancer.gateway.leg_ledger import LegLedger
from balancer.gateway.placing import Again, attempted, place
from balancer.gateway.prefill import PrefillLeg, Refused
from balancer.gateway.releasing import Releases
from balancer.http.reply import Reply
from balancer.stages import Stage
from balancer.strip import members


class Computed(msgspec.Struct, frozen=True):
    """A prompt that has been computed; ``at`` is when, on the loop's clock."""

    decision: Decision
    pair: Pair
    leg: plan.Leg
    answered: Answered
    at: float


class Computing(msgspec.Struct):
    """What is known of the prompt of one request while it is being sent; ``computed`` is one that nobody has fetched yet."""

    fields: dict[str, msgspec.Raw] | None = None
    computed: Computed | None = None


class _Alone(Exception):
    """The decode replica has to compute the prompt."""

    def __init__(self, reason: Alone) -> None:
        super().__init__(reason)
        self.reason = reason


class _RefusedPrompt(Exception):
    def __init__(self, refused: Refused, decision: Decision, leg_id: str | None) -> None:
        super().__init__("refused")
        self.refused = refused
        self.decision = decision
        self.leg_id = leg_id


class Legs:
    """Sends split requests. Make it in a running loop."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._settings = means.service.settings.disaggregation
        self.connector = plan.make(self._settings.name, self._settings.settings)
        self._engines = EngineIds(means.client)
        self._releases = Releases(means, self.connector)
        self._ledger = LegLedger(
            means.counts.legs,
            tells_loaded=self.connector.tells_loaded,
            chunk_tokens=self.connector.chunk_tokens,
        )

    async def run(
        self,
        asking: Asking,
        wanted: RouteRequest,
        decision: Decision,
        number: int,
        reply: Reply,
        state: Computing,
    ) -> None:
        """Send both legs of a request that ``decision`` has given its decode replica, and give the client its answer.

        Raises:
            Again: the request has to be sent again, whole or alone.
            RequestError: it has failed for good.
        """
        try:
            await self._both(asking, wanted, decision, number, reply, state)
        except _Alone as alone:
            self._means.counts.legs.alone[alone.reason] += 1
            raise Again(msgspec.structs.replace(wanted, part=Part.ALONE)) from None
        except _RefusedPrompt as refused:
            self._refuse(asking, refused, reply)

    async def _both(
        self,
        asking: Asking,
        wanted: RouteRequest,
        decision: Decision,
        number: int,
        reply: Reply,
        state: Computing,
    ) -> None:
        try:
            if state.fields is None:
                state.fields = members(asking.asked.body)
            if not bodies.can_split(asking.origin.path, state.fields, shares=self.connector.shares):
                raise _Alone(Alone.BODY)
            if self.connector.is_concurrent:
                running = await self._begin(asking, wanted, decision, number, reply, state.fields)
            else:
                computed = await self._compute(asking, wanted, decision, state)
                made = self._decode_leg(asking, decision, state, computed)
                attempt = Attempt(self._means, asking, wanted, decision, number, reply, made)
                attempt.prefilled(computed.answered.cached_tokens)
        except BaseException:
            self._means.service.release_at_once(decision.lease, Outcome.CANCELLED)
            raise
        if self.connector.is_concurrent:
            await running
        else:
            await self._answer(asking, attempt, decision, computed, state)

    # One after the other

    async def _compute(self, asking: Asking, wanted: RouteRequest, decision: Decision, state: Computing) -> Computed:
        """A prompt that has been computed for this decode replica, or could be: no other one was named."""
        fields, known = state.fields or {}, state.computed
        if known is not None:
            pair = msgspec.structs.replace(known.pair, decode=_side(decision, None))
            if (
                msgspec.structs.replace(self.connector.prefill(pair), returns_tokens=known.leg.returns_tokens)
                == known.leg
            ):
                return msgspec.structs.replace(known, pair=pair)
            self._let_go(asking, known, decision)
            state.computed = None
        excluded: frozenset[str] = frozenset()
        reason = Alone.NOBODY
        for _ in range(self._settings.prefill_attempts):
            chosen = await self._prefill_place(asking, wanted, excluded, reason)
            try:
                pair = Pair(_side(chosen, None), _side(decision, None), random.getrandbits(128))
                leg = self.connector.prefill(pair)
                if self._passes_tokens(asking):
                    leg = msgspec.structs.replace(leg, returns_tokens=True)
                sender = self._sender(asking, wanted, chosen)
                body = bodies.prefill_body(asking.origin.path, fields, plan.with_hint(leg, chosen.hint))
            except BaseException:
                self._means.service.release_at_once(chosen.lease, Outcome.CANCELLED)
                raise
            result = await sender.run(body, leg)
            asking.record.stages.passed(Stage.PREFILL)
            match result:
                case Answered():
                    state.computed = Computed(chosen, pair, leg, result, self._means.loop.time())
                    return state.computed
                case Refused():
                    raise _RefusedPrompt(result, chosen, leg.request_id)
                case Failure():
                    excluded |= self._gone(chosen, result)
                    reason = Alone.FAILED
        raise _Alone(reason)

    async def _prefill_place(
        self, asking: Asking, wanted: RouteRequest, excluded: frozenset[str], reason: Alone
    ) -> Decision:
        request = for_prefill(wanted, excluded)
        try:
            return await place(self._means.service, request, asking)
        except (NoReplica, Contended, Saturated, UnknownModel):
            raise _Alone(reason) from None

    def _passes_tokens(self, asking: Asking) -> bool:
        return self._settings.pass_tokens and asking.origin.path == bodies.CHAT

    def _sender(self, asking: Asking, wanted: RouteRequest, chosen: Decision) -> PrefillLeg:
        return PrefillLeg(self._means, asking, wanted, chosen, self._settings.prefill_seconds)

    def _gone(self, decision: Decision, failure: Failure) -> frozenset[str]:
        replica = decision.replica
        gone = frozenset({replica.id})
        return gone | self._means.service.behind(replica.endpoint) if failure.fault.is_of_endpoint else gone

    def _decode_leg(self, asking: Asking, decision: Decision, state: Computing, computed: Computed) -> DecodeLeg:
        """What the second leg carries, if what has been computed can still be fetched."""
        now = self._means.loop.time()
        leg = self.connector.decode(computed.pair, computed.answered)
        if leg is None:
            told = "has answered a prefill without what it takes to fetch the blocks: is its connector the one of the settings?"
            self._ledger.warn(computed.decision, told)
            state.computed = None
            raise _Alone(Alone.NO_PARAMS)
        if self._passes_tokens(asking):
            leg = plan.with_tokens(leg, computed.answered)
        is_too_late = now >= asking.deadline
        if is_too_late or now - computed.at > self._settings.dispatch_seconds:
            state.computed = None
            self._let_go(asking, computed, decision)
            raise too_late(asking.timeouts) if is_too_late else _Alone(Alone.EXPIRED)
        return _made(asking, state.fields or {}, leg, computed.decision)

    async def _answer(
        self, asking: Asking, attempt: Attempt, decision: Decision, computed: Computed, state: Computing
    ) -> None:
        state.computed = None
        try:
            await attempted(attempt)
        except Again:
            if attempt.sent_at is None:
                state.computed = computed  # nobody has been told of it yet
            raise
        except BaseException:
            if attempt.sent_at is None:
                self._let_go(asking, computed, decision)
            raise
        finally:
            self._ended(attempt, decision, computed.decision, computed.answered)

    # Both at once

    async def _begin(
        self,
        asking: Asking,
        wanted: RouteRequest,
        decision: Decision,
        number: int,
        reply: Reply,
        fields: dict[str, msgspec.Raw],
    ) -> Coroutine[Any, Any, None]:
        """Find who computes the prompt; what comes back sends both legs, and has the leases."""
        chosen, engine_id = await self._named_place(asking, wanted)
        try:
            pair = Pair(_side(chosen, engine_id), _side(decision, None), random.getrandbits(128))
            leg, second = self.connector.prefill(pair), self.connector.decode(pair, None)
            if second is None:
                raise _Alone(Alone.NO_PARAMS)
            sender = self._sender(asking, wanted, chosen)
            body = bodies.prefill_body(asking.origin.path, fields, plan.with_hint(leg, chosen.hint))
            made = _made(asking, fields, second, chosen)
        except BaseException:
            self._means.service.release_at_once(chosen.lease, Outcome.CANCELLED)
            raise
        attempt = Attempt(self._means, asking, wanted, decision, number, reply, made)
        return self._at_once(sender.run(body, leg), attempt, chosen, decision, leg, reply)

    async def _named_place(self, asking: Asking, wanted: RouteRequest) -> tuple[Decision, str | None]:
        """Who computes the prompt, and what its engine is called, where that has to be known and is told."""
        excluded: frozenset[str] = frozenset()
        reason = Alone.NOBODY
        for _ in range(self._settings.prefill_attempts):
            chosen = await self._prefill_place(asking, wanted, excluded, reason)
            if not self.connector.has_bootstrap:
                return chosen, None
            replica, engine_id = chosen.replica, None
            try:
                if replica.transfer.bootstrap is not None:
                    engine_id = await self._engines.of(replica.transfer.bootstrap, replica.rank)
            finally:
                if engine_id is None:
                    self._means.service.release_at_once(chosen.lease, Outcome.CANCELLED)
            if engine_id is not None:
                return chosen, engine_id
            self._ledger.warn(chosen, "its engine's id is not known: is its transfer.bootstrap right?")
            excluded |= {replica.id} | self._means.service.behind(replica.endpoint)
            reason = Alone.NO_ENGINE
        raise _Alone(reason)

    async def _at_once(
        self,
        first: Coroutine[Any, Any, Result],
        attempt: Attempt,
        chosen: Decision,
        decision: Decision,
        leg: plan.Leg,
        reply: Reply,
    ) -> None:
        try:
            await both(
                first,
                attempt,
                reply,
                self._releases.keep,
                lambda answered: self._ended(attempt, decision, chosen, answered),
            )
        except NotPrefilled as failed:
            self._engines.forget(chosen.replica.transfer.bootstrap)
            if isinstance(failed.result, Refused):
                raise _RefusedPrompt(failed.result, chosen, leg.request_id) from None
            raise _Alone(Alone.FAILED) from None

    # Endings

    def _refuse(self, asking: Asking, refused: _RefusedPrompt, reply: Reply) -> None:
        """The prefill replica's refusal is the client's."""
        head, ids = refused.refused.head, None
        if refused.leg_id is not None:
            ids = (refused.leg_id.encode(), asking.origin.request_id.encode())
        body = AnswerFilter(is_stream=False, ids=ids).feed(refused.refused.body, is_last=True)
        told = headers.to_client(
            head.headers,
            refused.decision,
            asking.origin.request_id,
            expose=self._means.expose,
            has_leg_id=refused.leg_id is not None,
        )
        self._means.counts.finished(
            asking.asked.request.model, asking.origin.path, refused.decision, Outcome.ERROR, None
        )
        reply.start(head.status, head.reason, told, len(body))
        reply.write(body, is_last=True)

    def _ended(self, attempt: Attempt, decision: Decision, chosen: Decision, answered: Answered | None) -> None:
        self._ledger.ended(attempt, decision, chosen, answered)
        if attempt.has_lost_transfer:  # perhaps the engine was started again
            self._engines.forget(chosen.replica.transfer.bootstrap)

    def _let_go(self, asking: Asking, computed: Computed, decision: Decision) -> None:
        """The decode replica that was to fetch this will not."""
        self._releases.let_go(asking, self.connector.decode(computed.pair, computed.answered), decision)

    def let_go(self, state: Computing) -> None:
        """Nobody will fetch what has been computed for this request, if there is anything."""
        if state.computed is not None:
            self._means.counts.legs.stranded += 1
            state.computed = None


def for_prefill(wanted: RouteRequest, excluded: frozenset[str]) -> RouteRequest:
    """What is asked for the prompt of a split request alone; nobody of ``excluded`` computes it."""
    return msgspec.structs.replace(
        wanted,
        part=Part.PREFILL,
        excluded=excluded,
        tells_start=True,
        session=wanted.session ^ PREFILL_SESSION if wanted.session else 0,
    )


def _made(asking: Asking, fields: dict[str, msgspec.Raw], leg: plan.Leg, prefill: Decision) -> DecodeLeg:
    body = bodies.decode_body(asking.asked.body, fields, leg)
    return DecodeLeg(body, prefill, leg.request_id, has_params=leg.params is not None)


def _side(decision: Decision, engine_id: str | None) -> Side:
    replica = decision.replica
    return Side(replica.id, replica.rank, replica.ranks, replica.transfer, engine_id)
