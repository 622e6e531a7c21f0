"""What ``kvlb record`` writes becomes a trace again."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from balancer.errors import ConfigError
from simulations.traces.formats.base import Reading
from simulations.traces.trace import Trace

Read = Callable[..., tuple[Trace, Reading]]


def line(at: float, length: int, ids: list[int], **more: object) -> str:
    told = {"kvlb_recording": 1, "timestamp": 1_700_000_000 + at, "input_length": length, "output_length": 4}
    return json.dumps({**told, "block_size": 16, "hash_ids": ids, "model": "m", **more}) + "\n"


def test_a_recording(read_text: Read) -> None:
    trace, reading = read_text(line(0.5, 40, [7, 8]) + line(0, 50, [7, 9, 10]) + line(1, 9, []))
    assert reading.format == "recording"
    assert list(trace.arrivals) == [0, 0.5, 1]
    assert list(trace.inputs) == [50, 40, 9]
    assert [list(ids) for ids in trace.blocks] == [[0, 2, 3], [0, 1], []]
    assert trace.block_size == 16
    assert reading.problems == ()


def test_what_is_not_known_is_told(read_text: Read) -> None:
    lost = '{"kvlb_recording": 1, "lost": 12}\n'
    content = (
        line(0, 40, [7, 8], output_length=None)
        + lost
        + line(1, 64, [7], model="n")
        + line(2, 64, [7])
        + line(3, 64, [7, 7], block_size=32)
    )
    trace, reading = read_text(content)
    text = reading.text()
    assert (len(trace), reading.skipped) == (4, 0)
    assert trace.outputs[0] == 1
    assert "1 request did not say how long" in text
    assert "12 requests came too fast" in text
    assert "1 request went to engines with other blocks" in text
    assert "of 2 prompts only the beginning" in text
    assert "2 models" in text
    assert trace.blocks[1][0] == trace.blocks[2][0] == trace.blocks[0][0]
    assert not set(trace.blocks[1][1:]) & set(trace.blocks[2][1:])
    assert list(trace.blocks[3]) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"kvlb_recording": 2}, "kvlb_recording"), ({"block_size": None}, "block_size"), ({"timestamp": None}, "timestamp"),
     ({"output_length": "x"}, "output_length"), ({"hash_ids": [1, 2, 3, 4]}, "hash_ids")],
)  # fmt: skip
def test_a_broken_line_is_told(read_text: Read, changes: dict[str, Any], field: str) -> None:
    content = line(0, 40, [1, 2]) + line(1, 40, [1, 2], **changes)
    _, reading = read_text(content)
    assert f":2: {field}: " in reading.problems[0]
    with pytest.raises(ConfigError, match=f":2: {field}: "):
        read_text(content, strict=True)
