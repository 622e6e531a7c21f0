"""Faults that are built into a copy of the code: each must make the truth machine find a lie.

Knows pieces of the code by their text and what they are there for; when a piece has changed, its entry here has to follow. A
fault that nobody finds is a hole in the tests, not in the code. Run by ``scripts/test-mutations``.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.mutations

ROOT = Path(__file__).parents[2]
COPIED = ("hashing", "indexer", "balancer", "simulations", "tests/support")
FOUND = "AssertionError"
SEEDS, STEPS = (63, *range(40)), 500

WALK = f"""
import sys
sys.path.insert(0, ".")
from tests.support.simulated import SimulatedProcess
from tests.support.story import KINDS, walk
for seed in {SEEDS}:
    walk(seed, {STEPS}, KINDS, SimulatedProcess)
"""


class Fault(msgspec.Struct, frozen=True):
    """A piece of one file, and what stands there instead."""

    file: str
    piece: str
    instead: str


FAULTS: dict[str, Fault] = {
    # Counting
    "removals are dropped": Fault(
        "indexer/tiers.py",
        "            if not held & bit:\n                self.unknown",
        "            if True:\n                self.unknown",
    ),
    "a third copy is not counted": Fault(
        "indexer/tiers.py",
        "copies[key] = copies.get(key, 0) + 1\n                slot",
        "copies[key] = 1\n                slot",
    ),
    "copies are not counted": Fault(
        "indexer/tiers.py",
        "            elif held & bit:\n                copies",
        "            elif held & bit and False:\n                copies",
    ),
    "one removal removes all copies": Fault(
        "indexer/tiers.py", "            elif copies and key in copies:", "            elif False:"
    ),
    "clears are not heeded": Fault(
        "indexer/index.py", "                    self.gpu.clear(replica)", "                    pass"
    ),
    "a clear empties every tier": Fault(
        "indexer/index.py", "                    self.gpu.clear(replica)", "                    self.forget(replica)"
    ),
    "a swept bit is given away too early": Fault(
        "indexer/tiers.py", "            self._retired |= slot.bit\n", "            self._free.append(slot.bit)\n"
    ),
    # Order and restarts
    "a renewed connection is not verified": Fault(
        "indexer/stream.py",
        "self._verifying = self.next_sequence - 1 if self.next_sequence else None",
        "self._verifying = None",
    ),
    "any batch of the right number verifies an engine": Fault(
        "indexer/stream.py",
        "if sequence != self._verifying or batch.digest != self._last_digest:",
        "if sequence != self._verifying:",
    ),
    "what came before a reconnect counts for the time after it": Fault(
        "indexer/stream.py", "        self._is_caught_up = False  # what was read", "        # what was read"
    ),
    "reconnects are not noticed": Fault(
        "indexer/sources/subscription.py",
        "        return self.stream.connected()",
        "        return self.stream.connected() if self.stream.replays == 0 else []",
    ),
    "messages of two connections are mixed": Fault(
        "indexer/sources/subscription.py",
        "receive_all(self.sub, at_most=None))\n            live = []",
        "receive_all(self.sub, at_most=None))",
    ),
    "gaps are jumped over": Fault(
        "indexer/stream.py",
        "while (batch := self.pending.pop(self.next_sequence, None)) is not None:",
        "while self.pending and (batch := self.pending.pop(min(self.pending))) is not None:",
    ),
    "replays are applied in the order in which they come": Fault(
        "indexer/stream.py",
        "            self.pending[sequence] = batch\n            self._replay_was_fruitful = self._has_replayed = True\n",
        "            self.pending[self.next_sequence] = batch\n"
        "            self._replay_was_fruitful = self._has_replayed = True\n",
    ),
    "an end marker proves that all is there": Fault(
        "indexer/stream.py",
        "        if self._replay_was_fruitful:\n            self._fruitless = 0\n            return [self._ask_on()]\n",
        "",
    ),
    "nobody asks again after a silence": Fault(
        "indexer/sources/subscription.py", "            steps += self.stream.recheck()\n", ""
    ),
    "the index outlives its engine": Fault(
        "balancer/caches.py",
        "        self.index.forget(replica)\n",
        "        self.index.gpu.clear(replica) if False else None\n",
    ),
    "other tiers outlive their engine": Fault(
        "balancer/caches.py", "        self.index.forget(replica)\n", "        self.index.gpu.clear(replica)\n"
    ),
    "a clear makes up for what could not be read behind it": Fault(
        "balancer/caches.py",
        "                        # Behind a clear of the same batch: nothing tells",
        "                        batch = msgspec.structs.replace(\n"
        "                            batch, skipped=batch.skipped if AllBlocksCleared() not in batch.events else ()\n"
        "                        )\n"
        "                        # Nothing tells",
    ),
    # What is claimed
    "an incomplete stream is good enough": Fault(
        "balancer/knowledge.py", "    if not standing.is_complete:", "    if False:"
    ),
    "a broken connection is good enough": Fault(
        "balancer/knowledge.py", "    if not standing.is_connected:", "    if False:"
    ),
    "unreadable events are of no account": Fault(
        "balancer/caches.py", "self._lose(replica, events=len(batch.skipped))", "self._lose(replica, events=0)"
    ),
    # Keys
    "the last token can be cached": Fault(
        "balancer/matching.py", "return max(0, prompt_tokens - 1) // block_size", "return prompt_tokens // block_size"
    ),
    "what was read before keys are learned stays": Fault(
        "indexer/recognition.py",
        "        return list(self.learned.restate()), True",
        "        return list(self.learned.restate()), False",
    ),
    "a learned name is forgotten with its first copy": Fault(
        "indexer/learned.py", "        if not self.copies or name not in self.copies:", "        if True:"
    ),
    "a proof is kept over a restart": Fault(
        "balancer/caches.py", "            self.recognitions[replica].forget()\n", ""
    ),
    "the declared recipe is believed whatever events show": Fault(
        "balancer/caches.py", "        if recognition is not None and events:\n", "        if False:\n"
    ),
    "extras are hashed as was declared, whatever events show": Fault(
        "indexer/recognition.py",
        "        if self.state is KeyState.PROVEN:\n            is_news",
        "        if False:\n            is_news",
    ),
    # Expectations
    "what was remembered outlives the doubt": Fault(
        "balancer/caches.py",
        "        if new.state.is_promise and (view is None or not view.state.is_promise):\n",
        "        if False:\n",
    ),
    "expectations outlive their leases": Fault(
        "balancer/router.py",
        "            del self._settling[lease]\n            self.caches.expect_no_more(lease)\n",
        "            del self._settling[lease]\n",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_truth_machine_finds(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    for each in COPIED:
        source, target = ROOT / each, tmp_path / each
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    code = (tmp_path / fault.file).read_text()
    assert code.count(fault.piece) == 1, f"{fault.file} has changed: no such piece, or several"
    (tmp_path / fault.file).write_text(code.replace(fault.piece, fault.instead))
    done = subprocess.run(
        [sys.executable, "-c", WALK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode, f"{name}, and nobody has noticed"
    assert FOUND in done.stderr, done.stderr[-2_000:]
