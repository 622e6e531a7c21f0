"""A stand-in for the API server of Kubernetes: lists in pages, watches with bookmarks, and all that goes wrong with both.

Knows as much of the API as clients of Pods and EndpointSlices see (Kubernetes API concepts). It keeps what it is told to keep,
says so to whoever asks with a token that is good, and misbehaves on order. ``asked`` is what it was asked.
"""

import asyncio
import base64
import contextlib
import copy
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import msgspec
from aiohttp import web

Json = dict[str, Any]

PODS: Final = "pods"
SLICES: Final = "endpointslices"
ROOTS: Final = {PODS: "/api/v1", SLICES: "/apis/discovery.k8s.io/v1"}
NAMESPACE: Final = "llm"


class Asked(msgspec.Struct, frozen=True):
    """One question; ``verb`` is list or watch."""

    verb: str
    plural: str
    namespace: str
    params: dict[str, str]
    token: str | None


class Refusal(msgspec.Struct, frozen=True):
    """An answer instead of the one that was asked for."""

    status: int
    message: str = ""
    retry_after: int | None = None
    location: str | None = None


class _Change(msgspec.Struct, frozen=True):
    """What has become of one object; ``is_lost`` where no watch is told."""

    version: int
    plural: str
    before: Json | None
    after: Json | None
    is_lost: bool


class StandIn:
    """One API server. Mutable, within the loop that it runs in."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.tokens: set[str] | None = None
        """Those that are good; None: nobody has to show one."""
        self.refusals: dict[tuple[str, str], Refusal] = {}
        """By (verb, plural), for as long as they stand here."""
        self.answer_seconds = 0.0
        """How long every answer takes."""
        self.bookmark_seconds: float | None = None
        self.ignores_timeouts = False
        """Watches are not ended, however short a time was asked for."""
        self.is_silent = False
        """Watches are told nothing, not even their end."""
        self.is_held = False
        """Watches are told nothing for now."""
        self.is_reversed = False
        """What has happened since they were last told is told to watches from the end on."""
        self.is_doubled = False
        """Watches are told everything twice."""
        self.loses = False
        """What happens now is told to no watch."""
        self.max_page = 1_000
        """Objects in a page at most, whatever was asked for."""
        self.expires_pages = 0
        """So many further pages are refused as too old."""
        self._objects: dict[str, dict[str, Json]] = {PODS: {}, SLICES: {}}
        self._changes: list[_Change] = []
        self._version = 100
        self._oldest = 0
        self._news = asyncio.Event()
        self._watches: list[_Watch] = []
        self._uids = 0

    # What there is

    def put(self, plural: str, each: Json) -> Json:
        """The object is there from now on, or is this from now on; without a uid it keeps its own, or gets one."""
        each = copy.deepcopy(each)
        name = each["metadata"]["name"]
        before = self._objects[plural].get(name)
        if "uid" not in each["metadata"]:
            self._uids += 1
            each["metadata"]["uid"] = before["metadata"]["uid"] if before else f"made-{self._uids}"
        if before is not None and before["metadata"]["uid"] != each["metadata"]["uid"]:
            self.delete(plural, name)
            before = None
        self._version += 1
        each["metadata"]["resourceVersion"] = str(self._version)
        self._objects[plural][name] = each
        self._changed(_Change(self._version, plural, before, each, self.loses))
        return each

    def delete(self, plural: str, name: str) -> None:
        before = self._objects[plural].pop(name)
        self._version += 1
        self._changed(_Change(self._version, plural, before, None, self.loses))

    def names(self, plural: str) -> list[str]:
        return sorted(self._objects[plural])

    def objects(self, plural: str) -> list[Json]:
        return list(self._objects[plural].values())

    def compact(self) -> None:
        """Forget what has happened so far: whoever wants to watch from before is told that it is too old."""
        self._oldest = self._version

    def release(self) -> None:
        """Watches that were held are told."""
        self.is_held = False
        self._news.set()

    def _changed(self, change: _Change) -> None:
        self._changes.append(change)
        self._news.set()

    # What goes wrong

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    async def say(self, line: bytes, plural: str | None = None) -> None:
        """Write this to every watch (of one kind), whatever it is."""
        for each in list(self._watches):
            if plural in {None, each.plural}:
                with contextlib.suppress(ConnectionError):
                    await each.response.write(line)

    async def expire(self) -> None:
        """End every watch as one whose version has become too old."""
        self.compact()
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        await self.say(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        self.end_watches()

    def end_watches(self) -> None:
        """As a server does that goes down in order."""
        for each in self._watches:
            each.is_over.set()

    def break_watches(self) -> None:
        """As a network does."""
        for each in self._watches:
            if each.request.transport is not None:
                each.request.transport.abort()

    def refuse(
        self, verb: str, status: int, message: str = "", *, plural: str = PODS, retry_after: int | None = None
    ) -> None:
        self.refusals[verb, plural] = Refusal(status, message, retry_after)

    def count(self, verb: str, plural: str = PODS) -> int:
        """How often that was asked; pages of one list count once."""
        return sum(each.verb == verb and each.plural == plural and "continue" not in each.params for each in self.asked)

    # How it answers

    async def answer(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        namespace = request.match_info["namespace"]
        params = dict(request.query)
        verb = "watch" if params.get("watch") == "true" else "list"
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        asked = Asked(verb, plural, namespace, params, token if scheme == "Bearer" else None)
        self.asked.append(asked)
        await asyncio.sleep(self.answer_seconds)
        if self.tokens is not None and asked.token not in self.tokens:
            return _refused(Refusal(401, "Unauthorized"))
        if (refusal := self.refusals.get((verb, plural))) is not None:
            return _refused(refusal)
        if namespace != NAMESPACE or request.path != f"{ROOTS.get(plural, '')}/namespaces/{namespace}/{plural}":
            return _refused(Refusal(403, f"{plural} is forbidden in the namespace {namespace!r}"))
        return await (self._watch(request, asked) if verb == "watch" else self._list(asked))

    async def _list(self, asked: Asked) -> web.Response:
        limit = min(int(asked.params.get("limit", "0")) or self.max_page, self.max_page)
        matches = matcher(asked.params.get("labelSelector", ""))
        version, at = self._version, 0
        if token := asked.params.get("continue"):
            version, at = json.loads(base64.urlsafe_b64decode(token))
            if self.expires_pages:
                self.expires_pages -= 1
                return _refused(Refusal(410, "The provided continue parameter is too old"))
        found = [each for each in self._at(asked.plural, version) if matches(each)]
        if asked.params.get("limit", "0") == "0":
            limit = len(found) or 1
        rest = at + limit < len(found)
        more = base64.urlsafe_b64encode(json.dumps([version, at + limit]).encode()).decode() if rest else ""
        meta = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
        return web.json_response({"kind": "List", "metadata": meta, "items": found[at : at + limit]})

    def _at(self, plural: str, version: int) -> list[Json]:
        """The objects as they were then, by name: all pages of a list are of one moment."""
        found = dict(self._objects[plural])
        for change in reversed(self._changes):
            if change.version > version and change.plural == plural:
                name = (change.before or change.after or {})["metadata"]["name"]
                if change.before is None:
                    found.pop(name, None)
                else:
                    found[name] = change.before
        return [found[name] for name in sorted(found)]

    async def _watch(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        version = int(asked.params["resourceVersion"])
        if version < self._oldest:
            return _refused(Refusal(410, "too old resource version"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        watch = _Watch(asked.plural, request, response)
        self._watches.append(watch)
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):  # who watched may have gone
                ends = None if self.ignores_timeouts else float(asked.params["timeoutSeconds"])
                async with asyncio.timeout(ends):
                    await self._tell(watch, version, matcher(asked.params.get("labelSelector", "")))
            if self.is_silent:
                await watch.is_over.wait()
        finally:
            self._watches.remove(watch)
        return response

    async def _tell(self, watch: "_Watch", version: int, matches: Callable[[Json], bool]) -> None:
        while not watch.is_over.is_set():
            if not (self.is_held or self.is_silent):
                events = [event for event in self._events(watch.plural, version, matches) if event is not None]
                version = self._version
                for event in reversed(events) if self.is_reversed else events:
                    for _ in range(2 if self.is_doubled else 1):
                        await watch.response.write(json.dumps(event).encode() + b"\n")
            self._news.clear()
            waits = [asyncio.ensure_future(each.wait()) for each in (self._news, watch.is_over)]
            _, waiting = await asyncio.wait(waits, timeout=self.bookmark_seconds or 0.01, return_when="FIRST_COMPLETED")
            for each in waiting:
                each.cancel()
            if self.bookmark_seconds is not None and not self.is_silent:
                meta = {"resourceVersion": str(version)}
                bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": meta}}
                await watch.response.write(json.dumps(bookmark).encode() + b"\n")

    def _events(self, plural: str, version: int, matches: Callable[[Json], bool]) -> Iterator[Json | None]:
        for change in self._changes:
            if change.plural != plural or change.version <= version or change.is_lost:
                continue
            was = change.before is not None and matches(change.before)
            if change.after is not None and matches(change.after):
                yield {"type": "MODIFIED" if was else "ADDED", "object": change.after}
            elif was:  # it is gone, or does not match any more
                last = copy.deepcopy(change.after or change.before or {})
                last["metadata"]["resourceVersion"] = str(change.version)
                yield {"type": "DELETED", "object": last}


class _Watch:
    """One watch under way."""

    def __init__(self, plural: str, request: web.Request, response: web.StreamResponse) -> None:
        self.plural = plural
        self.request = request
        self.response = response
        self.is_over = asyncio.Event()


def _refused(refusal: Refusal) -> web.Response:
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    if refusal.location is not None:
        headers["Location"] = refusal.location
    status = {"kind": "Status", "status": "Failure", "code": refusal.status, "message": refusal.message}
    return web.json_response(status, status=refusal.status, headers=headers)


def matcher(selector: str) -> Callable[[Json], bool]:
    """Whether an object's labels match a selector: ``a=b``, ``a in (b, c)`` and ``a``, with commas between them."""
    wanted: list[tuple[str, set[str] | None]] = []
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        if found := re.fullmatch(r"\s*(\S+)\s+in\s+\(([^)]*)\)\s*", term):
            wanted.append((found[1], {each.strip() for each in found[2].split(",")}))
        elif "=" in term:
            name, _, value = term.replace("==", "=").partition("=")
            wanted.append((name.strip(), {value.strip()}))
        else:
            wanted.append((term.strip(), None))

    def matches(each: Json) -> bool:
        labels = each["metadata"].get("labels") or {}
        return all(name in labels and (values is None or labels[name] in values) for name, values in wanted)

    return matches


# Objects


def pod(
    name: str,
    ip: str = "",
    *,
    ready: bool | None = True,
    phase: str = "Running",
    ports: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ips: tuple[str, ...] = (),
    **meta: Any,
) -> Json:
    """A Pod as the API has it; ``ready`` None has no such condition. ``meta`` goes to its metadata as it is."""
    conditions = [] if ready is None else [{"type": "Ready", "status": "True" if ready else "False"}]
    shown = [{"name": each, "containerPort": number} for each, number in (ports or {}).items()]
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "vllm"} | (labels or {}),
            "annotations": annotations or {},
            **meta,
        },
        "spec": {"containers": [{"name": "vllm", "ports": shown}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True"}, *conditions],
            **({"podIP": ip, "podIPs": [{"ip": each} for each in (ip, *ips)]} if ip else {}),
        },
    }


def endpoint_slice(
    name: str,
    *endpoints: Json,
    service: str = "vllm",
    ports: dict[str, int] | None = None,
    family: str = "IPv4",
) -> Json:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": each, "port": number, "protocol": "TCP"} for each, number in (ports or {}).items()],
    }


def target(made: Json, *addresses: str, **conditions: bool | None) -> Json:
    """The endpoint of a Pod in a slice."""
    return {
        "addresses": list(addresses) or [made["status"]["podIP"]],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": made["metadata"]["name"], "uid": made["metadata"].get("uid", "")},
    }


# Where it runs


@contextlib.asynccontextmanager
async def api_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[StandIn]:
    """One that listens until the block is left."""
    made = StandIn()
    application = web.Application()
    for root in ROOTS.values():
        application.router.add_get(f"{root}/namespaces/{{namespace}}/{{plural}}", made.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    (address,) = runner.addresses
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
    try:
        yield made
    finally:
        made.end_watches()
        await runner.cleanup()


class Apart:
    """One in a thread of its own, for tests that wait without a loop."""

    def __init__(self, made: StandIn, loop: asyncio.AbstractEventLoop) -> None:
        self.server = made
        self._loop = loop

    def do(self, what: Callable[[StandIn], Any]) -> Any:
        """Have this done in its loop; what it returns."""

        async def done() -> Any:
            return what(self.server)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(timeout=30)


@contextlib.contextmanager
def api_server_apart() -> Iterator[Apart]:
    """One that listens until the block is left."""
    ready, made = threading.Event(), []

    async def serve() -> None:
        over = asyncio.Event()
        async with api_server() as server:
            made.append((Apart(server, asyncio.get_running_loop()), over))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30), "the stand-in for the API server does not start"
    apart, over = made[0]
    try:
        yield apart
    finally:
        apart.do(lambda _: over.set())
        thread.join(30)
