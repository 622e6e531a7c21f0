"""One request of a proxy: from what it asks to the end of its lease.

Knows the brain, and the order of things: who asks, read, wait, route. What a gateway does with a request until it has a replica
is done by the same code (``balancer.gateway.intake``). Never sends anything: what a proxy is told goes out by whoever asked.
"""

import asyncio
from typing import Final

import msgspec

from balancer import openai
from balancer.brain import Brain
from balancer.core import Decision, Failure, Outcome, Replica, RouteRequest, Truth
from balancer.disaggregation.counts import Ending, Leg
from balancer.disaggregation.plan import PARAMS, Connector
from balancer.disaggregation.roles import Part
from balancer.epp import destinations, mutations
from balancer.epp.destinations import Place, Subset
from balancer.epp.means import Means
from balancer.epp.mutations import Said
from balancer.epp.orders import Ask, End, Placed
from balancer.epp.places import Places
from balancer.epp.prefilling import Prefilling
from balancer.errors import (
    BadRequest,
    BodyTooLarge,
    NoReplica,
    RequestError,
    UnknownPath,
)
from balancer.gateway import headers
from balancer.gateway.access import MODELS, STRANGER, Access, Visit
from balancer.gateway.asking import Asking, ending
from balancer.gateway.front import canonical
from balancer.gateway.intake import Intake
from balancer.gateway.placing import place
from balancer.gateway.reading import Asked
from balancer.gateway.refusals import refuse
from balancer.header_names import REQUEST_ID, exposed, steers
from balancer.http.fields import named
from balancer.http.messages import Request
from balancer.limits import NO_PERMIT, Permit
from balancer.observer import Observer
from balancer.records import Record, Tried
from balancer.request_counts import RequestCounts
from balancer.stages import Stage
from balancer.stalls import Answer
from balancer.strip import with_field
from balancer.trace_context import TRACEPARENT
from indexer.index import ReplicaId

BY_LOAD: Final = frozenset({"GET", "HEAD"})
"""Methods of requests for which any replica will do."""

FORWARDED_FOR: Final = b"x-forwarded-for"


class Refusal(msgspec.Struct, frozen=True):
    """The client's answer; ``why`` is for the proxy's log."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    why: str


class Picker:
    """Holds what all requests have in common. Make it in a running loop."""

    def __init__(self, service: Brain, counts: RequestCounts, access: Access, observer: Observer, connector: Connector):
        """``connector`` is how a prompt's cache gets from one engine to another."""
        self._loop = asyncio.get_running_loop()
        settings = service.settings
        self.places = Places()
        intake = Intake(service, access, connector, self._loop.time)
        self._means = Means(
            service,
            counts,
            access,
            observer,
            intake,
            self.places,
            connector,
            settings.epp,
            self._loop,
            settings.server.expose_decisions,
        )

    def pick(self, asked: Ask, answer: Answer) -> "Pick":
        """A replica for this request; ``answer`` is looked at while it is under way."""
        return Pick(self._means, asked, answer)


class Pick:
    """``run`` it once. If that gives a ``Placed``, it is a lease: call ``end`` exactly once."""

    def __init__(self, means: Means, asked: Ask, answer: Answer) -> None:
        self._means = means
        self._asked = asked
        self._answer = answer
        self._started_at = means.loop.time()
        self._record: Record
        self._permit: Permit = NO_PERMIT
        self._asking: Asking
        self._decision: Decision
        self._noted: Tried
        self._prefilling = Prefilling(means)
        self._lease: int | None = None  # of the decision, while it is open

    @property
    def deadline(self) -> float:
        """When the request has had all its time, on the loop's clock; of one that is placed."""
        return self._asking.deadline

    async def run(self) -> Placed | Refusal:
        means, asked = self._means, self._asked
        by_name = named(asked.fields)
        path, _, query = asked.target.partition("?")
        request_id = headers.request_id(by_name)
        request = Request(asked.method, path, query, asked.fields, asked.body or b"", named=by_name)
        path = canonical(path)
        peer = headers.text(by_name, FORWARDED_FOR).rpartition(",")[2].strip()
        self._record = record = means.observer.begin(request, path, request_id, peer)
        visit, is_placed = STRANGER, False
        try:
            visit = means.access.visit(request.headers)
            record.tenant = visit.caller.tenant
            self._permit = await means.service.enter(visit.caller, self._started_at)
            self._asking = await self._read(request, path, visit)
            placed = await self._place(visit)
            is_placed = True
            return placed
        except RequestError as error:
            means.counts.refused(path, error)
            record.error = error.message
            return self._refusal(means.access.told(visit.caller, error), path)
        except asyncio.CancelledError:
            record.error = ending().message if means.service.is_draining else ""
            raise
        finally:
            if not is_placed:
                self._permit.leave()
                means.observer.finished(record, record.status)

    def _refusal(self, error: RequestError, path: str) -> Refusal:
        record = self._record
        told = refuse(error, (REQUEST_ID.decode(), record.request_id), path=path)
        assert isinstance(told.body, bytes)
        record.status = told.status
        lines = [("content-type", told.content_type), *((name.lower(), value) for name, value in told.headers)]
        encoded = tuple((name.encode(), value.encode(errors="backslashreplace")) for name, value in lines)
        return Refusal(told.status, encoded, told.body, error.code or error.type)

    # What is asked

    async def _read(self, request: Request, path: str, visit: Visit) -> Asking:
        asked, intake = self._asked, self._means.intake
        if asked.is_too_large:
            limit = self._means.service.settings.server.max_body_bytes
            raise BodyTooLarge(f"the body is larger than {limit} bytes; send a smaller one, or raise --max-body-bytes")
        if path in openai.PATHS and request.method == "POST":
            if asked.body is not None:
                return await intake.read(request, path, visit, self._permit, self._record, self._started_at)
            if self._means.access.keys is not None:
                raise BadRequest(
                    "the proxy does not show the body, so that nobody can tell whether it may be sent with this key; set "
                    "request_body_mode of its ext_proc filter to FULL_DUPLEX_STREAMED or BUFFERED"
                )
        elif request.method not in BY_LOAD or not (path == MODELS or path.startswith(MODELS + "/")):
            raise UnknownPath(f"{request.method[:20]} {path[:200]} goes to no replica; docs/api.md lists what does")
        by_load = RouteRequest(
            model=self._any_model(visit),
            reads_cache=False,
            is_comparable=False,
            request_id=self._record.request_id,
            stages=self._record.stages,
            tells_start=False,
            part=Part.ALONE,
            takes_hint=False,
        )
        taken = Asked(by_load, None, b"")
        return intake.asking(request, path, visit, taken, self._permit, self._record, self._started_at)

    def _any_model(self, visit: Visit) -> str:
        """A model by which a replica can be found for what needs none."""
        try:
            return self._means.service.default_model(visit.caller.may_use)
        except BadRequest:  # there are several: any will do
            models = {model for each in self._means.service.replicas() for model in each.base_models}
            return min(model for model in models if visit.caller.may_use(model))

    # Where it goes

    async def _place(self, visit: Visit) -> Placed:
        wanted = self._asking.asked.request
        if self._asked.subset is not None:
            wanted = await self._within(wanted, self._asked.subset)
        decision = await self._leased(wanted)
        try:
            if decision.is_split and not await self._prefilling.find(self._asking, wanted):
                self._release(Outcome.CANCELLED)
                decision = await self._leased(msgspec.structs.replace(wanted, part=Part.ALONE))
            return await self._placed(decision, wanted, visit)
        except BaseException:  # nothing was sent anywhere
            self._release(Outcome.CANCELLED)
            self._prefilling.end(Outcome.CANCELLED)
            raise

    async def _leased(self, wanted: RouteRequest) -> Decision:
        self._decision = decision = await place(self._means.service, wanted, self._asking)
        self._lease = decision.lease
        return decision

    def _release(self, outcome: Outcome, truth: Truth | None = None, failure: Failure | None = None) -> None:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._means.service.release_at_once(lease, outcome, truth, failure)

    async def _within(self, wanted: RouteRequest, subset: Subset) -> RouteRequest:
        """The same, to nobody whom the proxy would not have chosen."""
        places = {each.id: await self._means.places.of(each.endpoint) for each in self._means.service.replicas()}
        excluded = frozenset(destinations.outside(places, subset))
        if len(excluded) == len(places):
            raise NoReplica(
                "none of the endpoints that the proxy chooses from is a replica that is known", retry_after=2
            )
        return msgspec.structs.replace(wanted, excluded=wanted.excluded | excluded)

    async def _placed(self, decision: Decision, wanted: RouteRequest, visit: Visit) -> Placed:
        asking, means, asked = self._asking, self._means, self._asked
        chosen = await means.places.of(decision.replica.endpoint)
        if chosen is None:
            raise NoReplica(f"the address of {decision.replica.endpoint} is not known; give its IP", retry_after=2)
        self._noted = noted = means.observer.tried(asking.record, decision)
        body: bytes | None = asking.asked.body
        if asked.body is None:
            body = None
        elif decision.hint:  # whose request brings no parameters of its own, and is not split
            body = with_field(asking.asked.body, PARAMS, decision.hint)
        prefill = self._prefilling.decision
        prefiller = None if prefill is None else str(means.places.known(prefill.replica.endpoint))
        destination = destinations.listed([chosen, *self._fallbacks(decision, wanted)], means.settings.fallbacks)
        own_id = asking.request.named.get(REQUEST_ID)
        said = Said(
            asking.origin.request_id,
            names_request=not own_id or steers(own_id),
            kept_back=visit.kept_back | asking.record.replaced_headers,
            key=visit.key,
            more=() if noted.span is None else ((TRACEPARENT, noted.span.header()),),
            is_unpacked=bool(asked.body) and b"content-encoding" in asking.request.named,
        )
        if means.settings.response == "watch":
            means.service.follow(decision, self._answer)
        return Placed(
            chosen,
            destination,
            mutations.of_request(asked.fields, destination, decision, said, prefiller),
            body,
            body is not asked.body,
            asking.origin.request_id,
            exposed(decision, prefill) if means.expose else (),
        )

    def _fallbacks(self, decision: Decision, wanted: RouteRequest) -> list[Place]:
        """Others that can take the request as it is sent, the best first."""
        if not self._means.settings.fallbacks:
            return []
        chosen, found = decision.replica, []
        for other in self._means.service.next_best(decision, wanted):
            if chosen.ranks > 1 and other.ranks <= chosen.rank:  # it has no such rank
                continue
            if other.endpoint != chosen.endpoint and (known := self._means.places.known(other.endpoint)) is not None:
                found.append(known)
        return found

    # What comes of it

    def started(self) -> None:
        """The first output has come: the prompt is computed."""
        means, stages = self._means, self._record.stages
        stages.passed(Stage.FIRST_BYTE)
        if self._lease is not None:
            means.service.started(self._lease)
        means.counts.first_byte(
            self._asking.asked.request.model, means.loop.time() - self._started_at, self._decision.policy
        )
        self._prefilling.end(Outcome.OK)

    def moved(self, to: Place) -> None:
        """Another endpoint answers than was chosen: the lease is that of the one now, of which nothing was predicted."""
        means, decision = self._means, self._decision
        service, chosen = means.service, decision.replica
        self._release(Outcome.UNREACHABLE)
        service.broke_off(chosen.endpoint)  # a probe says what is wrong with it, if anything is
        self._note(End(Outcome.UNREACHABLE))
        there = [each for each in service.replicas() if means.places.known(each.endpoint) == to]
        there.sort(key=lambda each: each.rank != chosen.rank if chosen.ranks > 1 else each.rank)
        replica = there[0] if there else _stranger(to)
        self._lease = service.adopt(replica.id, 0, self._answer) if there else None
        self._decision = msgspec.structs.replace(
            decision,
            lease=self._lease or 0,
            replica=replica,
            cached_tokens=0,
            is_predicted=False,
            is_comparable=False,
            candidates=(),
        )
        self._noted = means.observer.tried(self._record, self._decision)

    def end(self, ended: End) -> None:
        """The lease is over."""
        means, record = self._means, self._record
        decision = self._decision
        record.stages.passed(Stage.STREAM)
        self._release(ended.outcome, ended.truth, ended.failure)
        self._prefilling.end(Outcome.OK if ended.outcome is Outcome.OK else Outcome.CANCELLED)
        if decision.is_split:
            means.counts.legs.ended(Leg.DECODE, _ending(ended), None)
        if ended.truth is not None:
            truth = ended.truth
            unknown = 0 if decision.knows_tokens else truth.prompt_tokens or 0
            self._permit.charge(unknown + (truth.completion_tokens or 0))
        self._note(ended)
        self._permit.leave()
        means.observer.finished(record, ended.status)

    def _note(self, ended: End) -> None:
        noted = self._noted
        noted.outcome, noted.truth, noted.end = ended.outcome, ended.truth, self._record.stages.now()
        model, path = self._asking.asked.request.model, self._asking.origin.path
        self._means.counts.finished(model, path, self._decision, ended.outcome, ended.truth)


def _ending(ended: End) -> Ending:
    match ended.outcome:
        case Outcome.OK:
            return Ending.OK
        case Outcome.CANCELLED:
            return Ending.CANCELLED
    return Ending.REFUSED if 400 <= ended.status < 500 else Ending.FAILED


def _stranger(at: Place) -> Replica:
    """Whoever listens there is none of ours."""
    return Replica(id=ReplicaId(str(at)), endpoint=f"http://{at}")
