"""helm/README.md: the values of the chart, with what their comments say."""

import json
from typing import Final

from tests.helm import sizing
from tests.helm.values_file import Value, read

HEAD: Final = """<!-- Made by scripts/chart of values.yaml; edit that. -->

# The chart of kvlb

Installs kvlb before vLLM engines that are there, or with engines of its own, or as the endpoint picker of an Envoy gateway.
What to do with it is told in [kubernetes](../docs/kubernetes.md).

Nobody publishes an image of kvlb. Build it where this repository lies, push it to a registry that the cluster can pull from,
and name it:

```
docker build -t REGISTRY/kvlb:0.1.0 . && docker push REGISTRY/kvlb:0.1.0
helm install kvlb ./helm --set image.repository=REGISTRY/kvlb --set engines.matchLabels.app=vllm
```

Values that contradict each other end the installation with a sentence that says what to do. An unknown value or a wrong type
ends it with helm's own message, which names the place. What policies and stores have as settings of their own, and their names,
is checked by kvlb when it starts: a Pod that does not become ready has the reason in its log.
"""

SIZING: Final = """## Sizing

Each Pod knows the whole fleet, so memory goes by what all replicas hold together, and not by Pods. The rule, where
`gateway.resources` is empty:

- Memory, in MiB: {process:.0f} for each process (one more than `gateway.processes`, where that is above 1), {memory} for each
  that serves (`hashing.memory_bytes` and `tokenizer.cache_bytes`, as `settings` have them), and {block:.0f} bytes for each of
  `gateway.maxBlocks`, {saving} times for the time in which a snapshot is saved; rounded up to 64. The limit is half as much
  again, for bodies of requests.
- CPU: a core for each process, and no limit.

Blocks are those of the replicas' caches, on GPUs and in tiers. A quarter more than they have is enough; what goes beyond
`maxBlocks` is let go, and `kvlb_index_evicted_blocks_total` counts it. For 100 replicas:

{tables}

The figures are those of [performance](../docs/performance.md) (2 cores of an Intel Xeon): a chat of 2 KB {chat} ms, 8,192 and
131,072 new token ids with their events {short} and {long:.0f} ms, {piece:.0f} µs for a token of an answer that comes by itself
(one of many that come at once takes an eighth), and {message:.0f} µs for a batch of KV events, of which an engine is thought to
send {steps} a second. A Pod is thought to be busy for {busy:.0%} of a core. They are reckoned: nobody has run 100 replicas.
"""


def text() -> str:
    """The file."""
    values = read()
    parts = [HEAD, "## Values\n"]
    single = [value for value in values if not value.inner]
    parts.append(_table(single))
    for value in values:
        if value.inner:
            meaning = f"{value.meaning}\n\n" if value.meaning else ""
            parts.append(f"### `{value.path[0]}`\n\n{meaning}{_table(value.inner)}")
    parts.append(
        SIZING.format(
            process=sizing.PROCESS_MIB.value,
            memory=sizing.MEMORY_MIB,
            block=sizing.BLOCK_BYTES.value,
            saving=sizing.WHILE_SAVING.value,
            chat=f"{sizing.CHAT_MS.value:.2f}",
            short=sizing.TOKENS_8K_MS.value,
            long=sizing.TOKENS_131K_MS.value,
            piece=sizing.PIECE_US.value,
            message=sizing.MESSAGE_US.value,
            steps=sizing.STEPS_A_SECOND,
            busy=sizing.BUSY,
            tables=sizing.tables(),
        )
    )
    return "\n".join(parts)


def _table(values: list[Value]) -> str:
    rows = [row for value in values for row in _rows(value)]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _rows(value: Value) -> list[str]:
    name = ".".join(value.path)
    if value.inner:
        own = [f"| `{name}` | | {value.meaning} |"] if value.meaning else []
        return [*own, *(row for each in value.inner for row in _rows(each))]
    choices = value.schema.get("enum")
    meaning = value.meaning
    if choices and not all(f"`{each}`" in meaning for each in choices):
        one_of = "one of " + ", ".join(f"`{each}`" for each in choices)
        meaning = f"{meaning} {one_of[0].upper()}{one_of[1:]}." if meaning else f"{one_of[0].upper()}{one_of[1:]}."
    return [f"| `{name}` | `{json.dumps(value.default)}` | {meaning} |"]
