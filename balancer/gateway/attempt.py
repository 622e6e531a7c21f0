"""One request at one replica: from its lease to its release, and the answer that passes in between.

Knows which answers are streams, when a prompt has been computed, and what the end of an exchange says of the replica. Changes
no byte of a body, but for what tells the engine what to load, and, in answers, for what tells of another replica that has
computed the prompt; where a stream breaks off, something is added, so that nobody takes it for whole. Whatever happens, the
lease is released exactly once. An answer that is a failure is given to the client only where no other replica may be tried.
"""

import asyncio
import logging
from typing import Final

import msgspec

from balancer.answered import failure_of, judge
from balancer.core import Decision, Failure, Fault, Outcome, RouteRequest, Truth
from balancer.dialects import error_event
from balancer.disaggregation.answers import AnswerFilter
from balancer.disaggregation.plan import PARAMS
from balancer.disaggregation.roles import Part
from balancer.errors import RequestError, UpstreamFailed, UpstreamTimeout
from balancer.gateway import headers
from balancer.gateway.asking import Asking, DecodeLeg, Failed, Means, ending, fault_of, too_late
from balancer.http.exchange import ExchangeFailed, Limits, NotConnectedInTime, TimedOut
from balancer.http.messages import Head, Outgoing
from balancer.http.relay import Relay
from balancer.http.reply import Reply, Source
from balancer.opening import Opening, of_body, of_stream
from balancer.retries import Verdict
from balancer.sse import BodyWatch, StreamWatch
from balancer.stages import Stage
from balancer.strip import with_field

log = logging.getLogger(__name__)


class _GivenUp(Exception):
    """The answer is a failure, and has not been given to the client: another replica is to be tried."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"answered {failure.status}" if failure.status else _GIVEN_UP[failure.fault])
        self.failure = failure


_GIVEN_UP: Final = {
    Fault.ABORT: "was stopped before it computed anything",
    Fault.HUNG: "stands still, and has sent nothing that could be passed on",
}


class Attempt(Relay):
    """A ``Receiver`` of the replica's answer. ``run`` it once; ``number`` counts the attempts of a request from 1."""

    def __init__(
        self,
        means: Means,
        asking: Asking,
        wanted: RouteRequest,
        decision: Decision,
        number: int,
        reply: Reply,
        leg: DecodeLeg | None = None,
    ) -> None:
        super().__init__(reply)
        self._means = means
        self._asking = asking
        self._wanted = wanted
        self._decision = decision
        self._noted = means.observer.tried(asking.record, decision)
        self._stages = asking.record.stages
        self._awaits = Stage.CONNECT
        self._number = number
        self._leg = leg
        self._cached_tokens = None if leg is None else leg.foretold
        self._filter: AnswerFilter | None = None
        self._head: Head
        self.has_lost_transfer = False
        """Whether the engine has failed in a way that it does when blocks cannot be fetched."""
        self.sent_at: float | None = None
        """When the request went out, on the loop's clock; None while it has not."""
        self.first_output_at: float | None = None
        self._watch: StreamWatch | BodyWatch
        self._is_stream = False
        self._held: bytes | None = None  # of an answer that has not said yet whether it is one
        self._has_output = False
        self._outcome = Outcome.ERROR
        self._truth: Truth | None = None
        self._failure: Failure | None = None
        self._connection: Source | None = None
        self.arrived = 0
        """Bytes that have come of the answer's body."""

    async def run(self) -> None:
        """Give the replica's answer to the client.

        Raises:
            Failed: there is none, and nothing has been given.
            UpstreamTimeout: the time of the whole request is over, and nothing has been given.
        """
        means, decision = self._means, self._decision
        means.service.follow(decision, self)
        try:
            await means.client.exchange(decision.replica.endpoint, self._outgoing(), self, self._limits())
        except _GivenUp as given:
            told = UpstreamFailed(f"replica {decision.replica.id} {given}", retry_after=2)
            raise Failed(given.failure, told, may_retry=True) from None
        except ExchangeFailed as error:
            self._judge(error)
        except asyncio.CancelledError:
            if not self.reply.has_ended:
                self._outcome = Outcome.CANCELLED
                if self.reply.has_begun and not self.reply.is_lost:
                    self._break_off(ending())
            raise
        finally:
            self._release()
            means.service.release_at_once(decision.lease, self._outcome, self._truth, self._failure)

    def prefilled(self, cached_tokens: int | None) -> None:
        """The other leg has ended, and has found so many tokens cached."""
        self._cached_tokens = cached_tokens
        if self._filter is not None:
            self._filter.cached_tokens = cached_tokens

    @property
    def outcome(self) -> Outcome:
        return self._outcome

    @property
    def truth(self) -> Truth | None:
        """What the replica has said at the end."""
        return self._truth

    def without(self, failure: Failure) -> RouteRequest:
        """The same request, to be sent to nobody who has failed in this way."""
        if self._has_lost_transfer(failure):  # that is not this replica's fault, nor will it be better elsewhere
            return msgspec.structs.replace(self._wanted, part=Part.ALONE)
        replica = self._decision.replica
        gone = frozenset({replica.id})
        if failure.fault.is_of_endpoint:
            gone |= self._means.service.behind(replica.endpoint)
        return msgspec.structs.replace(self._wanted, excluded=self._wanted.excluded | gone)

    def _outgoing(self) -> Outgoing:
        request, origin, visit = self._asking.request, self._asking.origin, self._asking.visit
        kept_back = visit.kept_back | self._asking.record.replaced_headers
        if self._leg is not None:  # its answer is looked into
            kept_back |= {b"accept-encoding"}
        target = f"{origin.path}?{request.query}" if request.query else origin.path
        leg = self._leg
        lines = headers.to_replica(
            request.headers,
            self._decision,
            origin.request_id,
            kept_back,
            visit.key,
            self._noted.span,
            None if leg is None else leg.request_id,
        )
        body = self._asking.asked.body if leg is None else leg.body
        if self._decision.hint:  # whose request brings no parameters of its own, and is not split
            body = with_field(body, PARAMS, self._decision.hint)
        return Outgoing(b"POST", target.encode("latin-1"), lines, body)

    def _limits(self) -> Limits:
        timeouts, left = self._asking.timeouts, self._asking.deadline - self._means.loop.time()
        if left <= 0:
            raise self._too_late()
        return Limits(min(timeouts.connect, left), timeouts.first_byte, timeouts.idle, left)

    def _release(self) -> None:
        asking, truth = self._asking, self._truth
        if truth is not None:
            unknown = 0 if self._decision.knows_tokens else truth.prompt_tokens or 0
            asking.permit.charge(unknown + (truth.completion_tokens or 0))
        self._stages.passed(self._awaits)
        self._noted.outcome, self._noted.truth, self._noted.end = self._outcome, truth, self._stages.now()
        self._means.counts.finished(self._wanted.model, asking.origin.path, self._decision, self._outcome, truth)

    # The answer as it comes

    def opened(self, connection: Source) -> None:
        self._stages.passed(Stage.CONNECT)
        self._awaits = Stage.FIRST_BYTE
        self._connection = connection
        self.sent_at = self._means.loop.time()
        super().opened(connection)

    def head(self, head: Head) -> None:
        kind = head.named.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self._is_stream = kind == b"text/event-stream"
        self._watch = StreamWatch() if self._is_stream else BodyWatch()
        is_told_by_its_body = head.status in {200, 500} and (self._is_stream or kind == b"application/json")
        if is_told_by_its_body:
            self._held, self.is_opening = b"", True
        elif head.status >= 500:
            self._answered_badly(failure_of(head.status, head.named))
        if self._leg is not None:
            self._begin_filter(self._leg, head)
        super().head(head)

    def _begin_filter(self, leg: DecodeLeg, head: Head) -> None:
        """From here on nothing passes that tells of the other leg."""
        ids = None if leg.request_id is None else (leg.request_id.encode(), self._asking.origin.request_id.encode())
        self._filter = AnswerFilter(is_stream=self._is_stream, ids=ids, cached_tokens=self._cached_tokens)
        self._head = head

    def lines(self, head: Head) -> bytes:
        """The header lines that the client gets."""
        request_id = self._asking.origin.request_id
        leg = self._leg
        return headers.to_client(
            head.headers,
            self._decision,
            request_id,
            expose=self._means.expose,
            prefill=None if leg is None else leg.prefill,
            has_leg_id=leg is not None and leg.request_id is not None,
        )

    def received(self, body: bytes, *, is_last: bool) -> None:
        watch = self._watch
        if body:
            self.arrived += len(body)
            watch.feed(body)
        if self._held is not None:
            held = self._held + body
            match (of_stream if self._is_stream else of_body)(held, is_whole=is_last):
                case Opening.UNSAID:
                    self._held = held
                    return
                case Opening.ABORTED:
                    self._answered_badly(Failure(Fault.ABORT))
                case _ if self.reply.status == 500:
                    self._answered_badly(Failure(Fault.STATUS, 500))
            body, self._held, self.is_opening = held, None, False
        if is_last:  # before the client has it: who asks what came of a request has had its answer
            self._ended(watch)
        if self._filter is None:
            super().received(body, is_last=is_last)
        else:
            self._pass_filtered(self._filter, body, is_last=is_last)
        if not self._has_output and watch.has_output:
            self._has_output = True
            self._computed()

    def _pass_filtered(self, filtered: AnswerFilter, body: bytes, *, is_last: bool) -> None:
        body = filtered.feed(body, is_last=is_last)
        if is_last and not self._is_stream and not self.reply.has_begun:  # another body has another length
            head = self._head
            self.reply.start(head.status, head.reason, self.lines(head), len(body))
        if body or is_last:
            super().received(body, is_last=is_last)

    def _ended(self, watch: StreamWatch | BodyWatch) -> None:
        ended = judge(watch, self.reply.status)
        self._truth = ended.truth
        if ended.failure is not None:
            self._failure = ended.failure
        elif ended.outcome is Outcome.OK:
            self._outcome = Outcome.OK

    def _computed(self) -> None:
        """The replica has computed the prompt."""
        means = self._means
        self.first_output_at = means.loop.time()
        self._stages.passed(Stage.FIRST_BYTE)
        self._awaits = Stage.STREAM
        means.service.started(self._decision.lease)
        seconds = means.loop.time() - self._asking.started
        means.counts.first_byte(self._wanted.model, seconds, self._decision.policy)

    # Its failure

    def leave(self) -> None:
        """The replica stands still (``balancer.stalls.Answer``): another one is tried, unless the client has had a byte."""
        if self._connection is None or self.reply.has_begun or self.reply.is_lost:
            return
        failure = Failure(Fault.HUNG)
        if self._may_retry(failure):
            connection, self._connection, self._failure = self._connection, None, failure
            connection.give_up(_GivenUp(failure))

    def _answered_badly(self, failure: Failure) -> None:
        self._failure = None if self._has_lost_transfer(failure) else failure
        if self._may_retry(failure):
            raise _GivenUp(failure)

    def _has_lost_transfer(self, failure: Failure) -> bool:
        """Whether it looks as if the engine could not fetch what another one has computed (vLLM 0.32: status 500)."""
        if self._leg is None or not self._leg.has_params or failure.status != 500:
            return False
        self.has_lost_transfer = True
        return True

    def _may_retry(self, failure: Failure) -> bool:
        if self._has_lost_transfer(failure):
            return True
        service, now = self._means.service, self._means.loop.time()
        has_other = service.can_route(self.without(failure))
        verdict = service.retries.judge(failure, self._number, now, self._asking.deadline, has_other=has_other)
        return verdict is Verdict.RETRY

    def _judge(self, error: ExchangeFailed) -> None:
        """The exchange has not come to its end.

        Raises:
            Failed, UpstreamTimeout: as ``run``.
        """
        replica, service = self._decision.replica, self._means.service
        has_begun = self.reply.has_begun
        if has_begun and self._has_said_all():
            self.received(b"", is_last=True)
            return
        failure = Failure(fault_of(error, has_begun=has_begun))
        is_too_late = self._is_too_late(error)
        if not is_too_late:
            self._failure = failure
        match failure.fault:
            case Fault.CONNECT if is_too_late:
                pass
            case Fault.CONNECT if not isinstance(error, NotConnectedInTime):
                service.unreachable(replica.endpoint)
            case Fault.CONNECT | Fault.RESET | Fault.BROKE_OFF:
                # Somebody may be there: a flood of connections is taken late, and kvlb itself may be too busy to see that
                # one stands. Whether others are answered is for a probe to say.
                service.broke_off(replica.endpoint)
        if has_begun:
            record = self._asking.record
            of = {"request_id": record.request_id, "replica": replica.id, "tenant": record.tenant}
            log.warning("%s: broke off in the middle of an answer: %s", replica.id, error, extra=of)
            self._break_off(UpstreamFailed(f"replica {replica.id} broke off in the middle of the answer"))
            return
        if is_too_late:
            raise self._too_late() from error
        if isinstance(error, TimedOut):
            told: RequestError = UpstreamTimeout(f"replica {replica.id} sent nothing for {error.seconds:g} s")
        else:
            self._outcome = Outcome.UNREACHABLE
            told = UpstreamFailed(f"replica {replica.id} cannot be reached: {error}", retry_after=2)
        raise Failed(failure, told, may_retry=self._may_retry(failure)) from error

    def _has_said_all(self) -> bool:
        """Whether nothing lacks of a stream but how HTTP ends it: the client has its answer, whatever became of the replica."""
        watch = self._watch
        return isinstance(watch, StreamWatch) and watch.has_ended and not watch.has_failed and self.reply.may_end

    def _is_too_late(self, error: ExchangeFailed) -> bool:
        """Whether it has failed because the time of the whole request is over."""
        if isinstance(error, NotConnectedInTime):
            return error.seconds < self._asking.timeouts.connect
        return isinstance(error, TimedOut) and self._means.loop.time() >= self._asking.deadline

    def _too_late(self) -> UpstreamTimeout:
        return too_late(self._asking.timeouts)

    def _break_off(self, error: RequestError) -> None:
        """End what has begun, visibly without its end: ``error`` is told as the stream's own kind of error, where it is one."""
        if self._is_stream:
            told = error if self._means.expose else error.without_names()
            self.reply.write(b"\n\n" + error_event(self._asking.origin.path, told))
        self.reply.break_off()
