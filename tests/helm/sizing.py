"""How much a gateway needs: the rule by which the chart asks for memory and CPU, and the table made of it.

Knows the figures that were measured, each with the words of docs/performance.md that it is taken from (a test finds them).
All else is reckoned.
"""

import math
from typing import Final, NamedTuple

MIB: Final = 2**20


class Measured(NamedTuple):
    value: float
    where: str
    """Words of docs/performance.md."""


PROCESS_MIB: Final = Measured(64, "63.6 MiB; an answer comes 0.36 ms later")
"""A process with 500 streams."""
BLOCK_BYTES: Final = Measured(190, "188 bytes a block that one replica holds")
"""A block with learned keys, which take more than proven ones."""
WHILE_SAVING: Final = Measured(1.2, "| 5 M | proven | 8.0 | 0.9 s | 5.8 ms | 2.1 s | 430 MiB | 506 MiB | 427 MiB |")
"""The index while a snapshot is saved, in times of what it takes otherwise."""
CHAT_MS: Final = Measured(0.20, "a chat of 2 KB 0.20 ms")
TOKENS_8K_MS: Final = Measured(3.4, "8,192 ids seen before 0.63, new 2.8, told 3.4")
TOKENS_131K_MS: Final = Measured(35, "new 31, told 35")
PIECE_US: Final = Measured(27, "27 µs for a piece of 500 streams")
"""A token of an answer that comes by itself."""
MESSAGE_US: Final = Measured(19, "A message costs about 19 µs before its first block is looked at")
"""A batch of KV events; engines send one a step."""

MEASURED: Final = (
    PROCESS_MIB, BLOCK_BYTES, WHILE_SAVING, CHAT_MS, TOKENS_8K_MS, TOKENS_131K_MS, PIECE_US, MESSAGE_US,
)  # fmt: skip

MEMORY_MIB: Final = 64 + 64
"""``hashing.memory_bytes`` and ``tokenizer.cache_bytes``, of each process that serves."""

STEPS_A_SECOND: Final = 50
"""Of one engine at work."""
BUSY: Final = 0.7
"""Of a core, at most."""


def cores(processes: int) -> int:
    """CPUs to ask for: one for each process, and with several one for the brain."""
    return processes if processes == 1 else processes + 1


def memory_mib(processes: int, blocks: int) -> int:
    """MiB to ask for; the limit is half as much again, for bodies of requests."""
    size = cores(processes) * PROCESS_MIB.value + processes * MEMORY_MIB
    size += blocks * BLOCK_BYTES.value * WHILE_SAVING.value / MIB
    return 64 * (int(size // 64) + 1)


def cpu(replicas: int, requests: float, prompt: Measured, answer: int) -> float:
    """Cores for so many requests a second, over all Pods, and for the events of the replicas."""
    return (
        requests * (prompt.value / 1e3 + answer * PIECE_US.value / 1e6)
        + replicas * STEPS_A_SECOND * MESSAGE_US.value / 1e6
    )


def tables() -> str:
    """Memory by what replicas hold, and CPU by what is asked of them, for 100 replicas."""
    lines = [
        "| cache of each replica | blocks of 16 tokens, 100 replicas | `gateway.maxBlocks` | memory asked for | limit |"
    ]
    lines.append("|---|---|---|---|---|")
    for tokens in (100_000, 400_000, 800_000, 1_600_000):
        blocks = 100 * tokens // 16
        most = math.ceil(blocks / 1_000_000 * 1.25) * 1_000_000
        asked = memory_mib(1, most)
        lines.append(f"| {tokens:,} tokens | {blocks:,} | {most:,} | {asked:,} Mi | {asked * 3 // 2:,} Mi |")
    lines += [
        "",
        "| requests a second, 100 replicas | prompt | answer | cores | Pods of one process |",
        "|---|---|---|---|---|",
    ]
    for requests, words, prompt, answer in (
        (100, "chat of 2 KB", CHAT_MS, 300),
        (400, "chat of 2 KB", CHAT_MS, 100),
        (100, "8,192 new tokens", TOKENS_8K_MS, 300),
        (20, "131,072 new tokens", TOKENS_131K_MS, 500),
    ):
        each = cpu(0, requests, prompt, answer)
        pods = 1
        while (each / pods + cpu(100, 0, prompt, 0)) > BUSY:  # each Pod reads all events
            pods += 1
        total = each + pods * cpu(100, 0, prompt, 0)
        lines.append(f"| {requests} | {words} | {answer} tokens | {total:.2f} | {pods} |")
    return "\n".join(lines)
