"""Many runs of one trace: every policy on every fleet with every seed, over the cores of the machine.

Knows cases, processes and a folder where finished runs wait for a second attempt. Never knows what a case means: a case and
the trace make a run, the same one on any number of cores, in any order.
"""

import hashlib
import inspect
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from balancer.errors import BalancerError, ConfigError
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet
from simulations.keys import TraceKeys
from simulations.named_policies import NamedPolicy
from simulations.paths import Paths
from simulations.results import Run
from simulations.simple import SimpleFleet, play
from simulations.traces.sessions import derived_sessions
from simulations.traces.stretches import Stretches
from simulations.traces.trace import Trace

T = TypeVar("T")

FORMAT: Final = 4
"""Of stored runs: grows when a run of the same case would bring something else."""


class SimulationError(BalancerError):
    """Runs could not be played to their end, for no fault of what was asked for."""

    exit_code = 1


class Case(msgspec.Struct, frozen=True):
    """What makes a run, beside the trace."""

    policy: NamedPolicy
    fleet: SimpleFleet | DetailedFleet
    seed: int = 1


class Workshop:
    """A trace, and what all cases need of it, made once where it is needed."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        stretches = Stretches(trace)
        self.sessions = derived_sessions(trace, stretches)
        self.paths = lru_cache(maxsize=4)(lambda size: Paths(trace, size, stretches))
        self.keys = lru_cache(maxsize=4)(lambda size: TraceKeys(trace, size))

    def run(self, case: Case) -> Run:
        """The run of this case."""
        policy, fleet = case.policy, case.fleet
        if isinstance(fleet, SimpleFleet):
            paths = self.paths(fleet.block_size)
            return play(self.trace, paths, fleet, policy.make(), policy.written, self.sessions, case.seed)
        keys = self.keys(fleet.block_size)
        return play_detailed(self.trace, fleet, policy.make, policy.written, self.sessions, case.seed, keys)


def run_all(
    trace: Trace,
    cases: Sequence[Case],
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    told: Callable[[int, int, float], None] = lambda done, of, seconds: None,
    keep: Callable[[Case, Run], T],
) -> list[T]:
    """What ``keep`` makes of the runs of all cases, in their order.

    Args:
        trace: what is played.
        cases: what is made of it.
        jobs: processes at most; by default one for each core that this process may use.
        folder: where each finished run is kept, and found again by whoever runs the same case of the same trace.
        keep: what is kept of a run; its columns go once this is made.
        told: is told after each run how many are done, of how many, and for how many seconds of this call.

    Raises:
        ConfigError: the folder cannot be used.
        SimulationError: there is no memory for them, or a process was ended from outside.
    """
    began = time.monotonic()
    store = None if folder is None else _Store(folder, trace)
    found: dict[int, T] = {}
    for at, case in enumerate(cases):
        if store is not None and (run := store.get(case)) is not None:
            found[at] = keep(case, run)
    if found:
        told(len(found), len(cases), 0.0)
    left = [at for at in range(len(cases)) if at not in found]
    try:
        for at, run in _played(trace, cases, left, min(jobs or _cores(), len(left))):
            found[at] = keep(cases[at], run)
            if store is not None:
                store.put(cases[at], run)
            told(len(found), len(cases), time.monotonic() - began)
    except MemoryError as error:
        raise SimulationError(
            "a run takes more memory than there is: give replicas smaller caches (--cache, --blocks), fewer replicas, or a "
            "part of the trace (--first)"
        ) from error
    return [found[at] for at in range(len(cases))]


_workshop: Workshop | None = None
"""Of the process that forks, so that nobody has to send a trace to anybody."""


def _played(trace: Trace, cases: Sequence[Case], which: Sequence[int], jobs: int) -> Iterator[tuple[int, Run]]:
    global _workshop  # noqa: PLW0603 - a child finds it where it was when it was forked
    if not which:
        return
    workshop = Workshop(trace)
    if jobs <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        for at in which:
            yield at, workshop.run(cases[at])
        return
    for size in {cases[at].fleet.block_size for at in which if isinstance(cases[at].fleet, SimpleFleet)}:
        workshop.paths(size)
    _workshop = workshop
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_work, initargs=(os.getpid(),)) as pool:
        try:
            with _undisturbed():  # they are forked by the first of these
                coming = {pool.submit(_run_here, cases[at]): at for at in which}
            for done in as_completed(coming):
                yield coming[done], decode(done.result())
        except BrokenProcessPool as error:
            raise SimulationError(
                "a process that played a run was ended from outside, most likely for want of memory: give --jobs 1, or a "
                "part of the trace; --resume DIR keeps what is done"
            ) from error
        except BaseException:
            for child in multiprocessing.active_children():  # or they would go on to the end of their runs
                child.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            _workshop = None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No Ctrl-C before the end: one in the middle of a fork would leave a child that neither works nor ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_work(parent: int) -> None:
    """A child plays until its parent says otherwise, and no longer than there is one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of them, and is the parent's to answer
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _run_here(case: Case) -> bytes:
    assert _workshop is not None, "a child was forked before its trace was there"
    return encode(_workshop.run(case))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Store:
    """A folder of runs, each under a name that is made of all that makes it."""

    def __init__(self, folder: Path, trace: Trace) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--resume {folder}: {error.strerror}; name a folder that can be written") from error
        digest = hashlib.blake2b(digest_size=16)
        for column in (trace.arrivals, trace.inputs, trace.outputs, trace.parents, trace.sessions, trace.pauses):
            digest.update(column.tobytes())
        for ids in trace.blocks:
            digest.update(len(ids).to_bytes(4, "little") + ids.tobytes())
        self._name = f"{FORMAT}/{trace.name}/{trace.block_size}/{digest.hexdigest()}".encode()

    def _path(self, case: Case) -> Path:
        made = self._name + msgspec.json.encode(case, order="sorted") + _code(type(case.policy.make()))
        name = hashlib.blake2b(made, digest_size=16)
        return self._folder / f"{name.hexdigest()}.run"

    def get(self, case: Case) -> Run | None:
        """The run, if it is there and whole."""
        try:
            return decode(self._path(case).read_bytes())
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def put(self, case: Case, run: Run) -> None:
        """Keep the run; who looks meanwhile finds all of it or nothing."""
        path = self._path(case)
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(encode(run))
            Path(file.name).replace(path)
        except OSError as error:
            raise ConfigError(f"--resume {self._folder}: {error.strerror}; make room or leave it out") from error


@lru_cache
def _code(policy: type) -> bytes:
    """What a policy's file says: who works on one wants to see what it does now."""
    try:
        return Path(inspect.getfile(policy)).read_bytes()
    except (OSError, TypeError):
        return b""


def _as_bytes(value: object) -> object:
    if isinstance(value, array):
        return value.typecode.encode() + value.tobytes()
    raise NotImplementedError(type(value))


def _from_bytes(kind: type, value: Any) -> object:
    if kind is array and isinstance(value, bytes):
        made: array[Any] = array(value[:1].decode())
        made.frombytes(value[1:])
        return made
    raise NotImplementedError(kind)


def encode(run: Run) -> bytes:
    """A run as bytes, of this machine's byte order."""
    return msgspec.msgpack.encode(run, enc_hook=_as_bytes)


def decode(data: bytes) -> Run:
    """The run of such bytes.

    Raises:
        msgspec.MsgspecError, ValueError: they are none.
    """
    return _decoder.decode(data)


_decoder = msgspec.msgpack.Decoder(Run, dec_hook=_from_bytes)
