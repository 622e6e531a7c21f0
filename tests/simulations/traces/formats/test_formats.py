"""Every format: what it looks like, what it becomes, and what becomes of what is broken."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from balancer.errors import ConfigError
from simulations.traces.formats.base import Reading, ReadingOptions, formats
from simulations.traces.reading import open_trace
from simulations.traces.trace import NO_PAUSE, NO_SESSION, Trace

Read = Callable[..., tuple[Trace, Reading]]


def written(*objects: object) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def line(at: object = 0, length: object = 1024, ids: object = (1, 2), **more: object) -> dict[str, object]:
    return {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids, **more}


def hits(trace: Trace) -> float:
    """The share of prompt tokens that a cache without end would have held; a last partial block counts as it is long."""
    known: set[int] = set()
    found = 0
    for length, ids in zip(trace.inputs, trace.blocks, strict=True):
        held = next((at for at, each in enumerate(ids) if each not in known), len(ids))
        found += min(length, held * trace.block_size)
        known.update(ids)
    return found / trace.input_tokens


@pytest.mark.parametrize(
    ("name", "requests", "blocks", "seconds", "hit"),
    [
        ("mooncake_conversation", 12_031, 182_790, 3_537, 0.3736),
        ("agentic_a", 5_796, 46_371, 3_600, 0.9561),
        ("toolagent_like", 23_608, 169_464, 3_537, 0.5904),
    ],
)
def test_golden(
    golden_trace: Callable[[str], Trace], name: str, requests: int, blocks: int, seconds: float, hit: float
) -> None:
    trace = golden_trace(name)
    assert len(trace) == requests
    assert len(trace.parents) == blocks
    assert trace.seconds == pytest.approx(seconds, abs=2)
    assert hits(trace) == pytest.approx(hit, abs=5e-5)
    assert trace.name == name


def test_mooncake(read_text: Read) -> None:
    trace, reading = read_text(written(line(0), line(3000, 1500, [1, 2, 3]), line(3000, 700, [1, 4])))
    assert reading.format == "mooncake"
    assert list(trace.arrivals) == [0, 3, 3]
    assert [list(ids) for ids in trace.blocks] == [[0, 1], [0, 1, 2], [0, 3]]
    assert set(trace.sessions) == {NO_SESSION}
    assert trace.block_size == 512


def test_mooncake_with_conversations(read_text: Read) -> None:
    first = line(0, session_id="a", turn=0)
    trace, _ = read_text(written(first, line(9_000, session_id="a", turn=1, delay=2_500), line(1, session_id=7)))
    assert list(trace.sessions) == [0, 1, 0]
    assert list(trace.pauses) == [NO_PAUSE, NO_PAUSE, 2.5]
    late = {name: value for name, value in line(session_id="a", delay=1_000).items() if name != "timestamp"}
    trace, reading = read_text(written(first, late, {**late, "session_id": "b"}))
    assert list(trace.arrivals) == [0, 1]
    assert "timestamp: is missing" in reading.problems[0]


def test_timed_trace_of_vllm(read_text: Read) -> None:
    content = written(
        {"ts": 0.5, "in": 20, "out": 3, "chunks": [9, 9]}, {"ts": 2.5, "in": 32, "out": 3, "chunks": [9, 8]}
    )
    columns = {"timestamp": "ts", "input_length": "in", "output_length": "out", "hash_ids": "chunks"}
    trace, _ = read_text(content, columns=columns, block_size=16, time_unit="s", chained=False)
    assert list(trace.arrivals) == [0, 2]
    assert [list(ids) for ids in trace.blocks] == [[0, 1], [0, 2]]
    assert trace.block_size == 16


def test_seconds_that_are_read_as_milliseconds_are_doubted(read_text: Read) -> None:
    _, reading = read_text(written(*[line(at) for at in range(200)]))
    assert "--time-unit s" in reading.text()
    _, reading = read_text(written(*[line(at * 1000) for at in range(200)]))
    assert "--time-unit" not in reading.text()


def test_qwen(read_text: Read) -> None:
    def chat(number: int, parent: int, at: float, ids: list[int]) -> dict[str, object]:
        told = {"chat_id": number, "parent_chat_id": parent, "type": "text", "turn": 1}
        return {**line(at, 16 * len(ids) - 3, ids), **told}

    trace, reading = read_text(
        written(
            chat(1, -1, 61.1, [5, 6]), chat(2, -1, 61.6, [7, 6]), chat(3, 1, 70.1, [5, 6, 8]), chat(4, 99, 71, [5, 5])
        )
    )
    assert reading.format == "qwen"
    assert list(trace.arrivals) == pytest.approx([0, 0.5, 9, 9.9])
    assert list(trace.sessions) == [0, 1, 0, 2]
    assert [list(ids) for ids in trace.blocks] == [[0, 1], [2, 3], [0, 1, 4], [0, 5]]  # 6 behind 7 is another prefix
    assert trace.block_size == 16


@pytest.mark.parametrize(
    ("content", "arrivals"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
            "2023-11-16 18:15:50.9951690,396,109\r\n",
            [0, 4.314579],
        ),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,374,44,418,Conversation log\n45,GPT-4,396,109,505,API log\n",
            [0, 40],
        ),
        ('arrived_at;"num_prefill_tokens";num_decode_tokens\n0.5;374;44\n1.0;"396";109\n', [0, 0.5]),
    ],
)
def test_tables_of_lengths(read_text: Read, content: str, arrivals: list[float]) -> None:
    for text in (content, "\ufeff" + content):
        trace, reading = read_text(text, "lengths.csv")
        assert reading.format == "lengths"
        assert list(trace.arrivals) == pytest.approx(arrivals, abs=1e-5)
        assert list(trace.inputs) == [374, 396]
        assert list(trace.outputs) == [44, 109]
        assert not trace.has_blocks
        assert reading.skipped == 0


def test_a_table_whose_columns_are_named(read_text: Read) -> None:
    content = 'when,who,"long, is",blocks\n1700000000000,a,1024,"[1, 2]"\n1700000002000,b,1024,1 3\n'
    columns = {"timestamp": "when", "input_length": "long, is", "hash_ids": "blocks", "session_id": "who"}
    trace, reading = read_text(content, "x.csv", format="lengths", columns=columns)
    assert list(trace.arrivals) == [0, 2]
    assert [list(ids) for ids in trace.blocks] == [[0, 1], [0, 2]]
    assert list(trace.sessions) == [0, 1]
    assert "milliseconds" in reading.text()
    assert "2 requests have no answer" in reading.text()
    with pytest.raises(ConfigError, match=r"no column for input_length.*--column.*'who'"):
        read_text(content, "x.csv", format="lengths", columns={"timestamp": "when"})


def test_rows_that_are_broken(read_text: Read) -> None:
    content = (
        'timestamp,note,input_length,output_length\n1,"two\nlines, one ""field""",10,1\n2,x,-3,1\n3,x,many,1\n'
        "4,x\nlater,x,5,5\n6,x,7,\n"
    )
    trace, reading = read_text(content, "x.csv")
    assert list(trace.inputs) == [10, 7]
    assert [problem.split("x.csv:")[1].split(":")[:2] for problem in reading.problems] == [
        ["4", " input_length"],
        ["5", " input_length"],
        ["6", " has 2 fields; the first line names 4"],
        ["7", " timestamp"],
    ]
    assert "later" not in reading.text()
    _, reading = read_text('timestamp,input_length\n1,2\n2,"3\n3,4\n', "y.csv")
    assert (reading.requests, reading.skipped) == (1, 1)


def test_a_table_with_a_header_alone(read_text: Read) -> None:
    with pytest.raises(ConfigError, match="no requests"):
        read_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", "x.csv")


def conversation(*turns: str) -> dict[str, object]:
    who = ("human", "gpt")
    return {"id": "x", "conversations": [{"from": who[at % 2], "value": turn} for at, turn in enumerate(turns)]}


LONG = "the quick brown fox jumps over the lazy dog " * 8


def test_sharegpt(read_text: Read) -> None:
    told = [
        conversation(LONG, "answer " * 30, "and then", "more"),
        conversation(LONG + "!", "yes"),
        conversation("alone"),
    ]
    for content in (json.dumps(told), json.dumps(told, indent=2), written(*told)):
        trace, reading = read_text(content, "share.json", pause=3.0, rate=5.0)
        assert reading.format == "sharegpt"
        assert (len(trace), reading.skipped) == (3, 0)
        first, second = [at for at in range(3) if trace.sessions[at] == trace.sessions[0]]
        assert set(trace.blocks[second]) >= set(trace.blocks[first][:-1])
        assert trace.inputs[second] > trace.inputs[first] + trace.outputs[first]
        assert trace.pauses[second] == 3.0
        assert "--trace-rate" in reading.text()
        assert "1 conversations have no answer" in reading.text()
        assert "quick" not in reading.text()


def test_prompts(read_text: Read) -> None:
    trace, reading = read_text(written({"prompt": LONG, "output_tokens": 7}, {"prompt": LONG + "x"}, {"prompt": ""}))
    assert reading.format == "prompts"
    assert sorted(trace.outputs) == [1, 7]
    assert set(trace.blocks[0][:-1]) == set(trace.blocks[1][: len(trace.blocks[0]) - 1])
    assert "prompt: is empty" in reading.problems[0]


def request_line(text: str, at: object = None, **more: object) -> dict[str, object]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"body": body, **({} if at is None else {"timestamp": at}), **more}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: {"timestamp": "2024-01-01T00:00:00Z", "body": body, "response": {"usage": {"completion_tokens": 9}}},
        lambda body: {"ts": 5, "request": json.dumps(body), "response": {"body": {"usage": {"output_tokens": 9}}}},
        lambda body: {"custom_id": "x", "url": "/v1/chat/completions", "body": body, "usage": {"completion_tokens": 9}},
        lambda body: body,
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        {"prompt": LONG},
        {"prompt": list(range(100))},
        {"instructions": "be kind", "input": LONG},
        {"system": [{"text": "be kind"}], "messages": [{"role": "user", "content": LONG}], "tools": [{"name": "t"}]},
    ],
)  # fmt: skip
def test_logs_of_requests(read_text: Read, wrap: Callable[[Any], Any], body: dict[str, Any]) -> None:
    told = wrap({"model": "m", **body})
    trace, reading = read_text(written(told, told))
    assert reading.format == "requests"
    assert len(trace) == 2
    assert trace.blocks[0] == trace.blocks[1]
    assert trace.inputs[0] >= 100
    assert len(trace.blocks[0]) == -(-trace.inputs[0] // 16)
    assert trace.outputs[0] == (9 if "model" not in told else 1)
    assert "quick" not in reading.text()


def test_several_prompts_are_several_requests(read_text: Read) -> None:
    trace, _ = read_text(written({"body": {"model": "m", "prompt": [LONG, "b"]}, "usage": {"completion_tokens": 8}}))
    assert list(trace.outputs) == [4, 4]


def test_answers_are_counted_where_nothing_says_how_long_they_were(read_text: Read) -> None:
    answered = {"choices": [{"message": {"role": "assistant", "content": "bab dad gag"}}]}
    trace, reading = read_text(written(request_line(LONG, 1, response=answered), request_line(LONG, 2)))
    assert list(trace.outputs) == [3, 1]
    assert "1 request did not say" in reading.text()


def test_usage_tells_how_far_lengths_are_off(read_text: Read) -> None:
    _, reading = read_text(written(request_line(LONG, 1, usage={"prompt_tokens": 50, "completion_tokens": 1})))
    trace, _ = read_text(written(request_line(LONG, 1)))
    assert f"{trace.inputs[0] / 50:.2f} times" in reading.text()


SECRET = "sesame-open-4711"


@pytest.mark.parametrize(
    "broken",
    [
        {"body": {"messages": SECRET}},
        {"body": {"messages": [SECRET]}},
        {"body": {"messages": [{"role": "user", "content": {SECRET: SECRET}}]}},
        {"body": {"prompt": {"text": SECRET}}},
        {"body": {"prompt": [[SECRET]]}},
        {"body": {SECRET: SECRET}},
        {"body": SECRET},
        {"body": {"messages": []}, "timestamp": SECRET},
        {"body": {"messages": [{"content": SECRET}]}, "session_id": [SECRET], "timestamp": 1},
        {"conversations": [SECRET]},
        {"prompt": SECRET, "output_tokens": SECRET},
        {**line(), "hash_ids": [[SECRET]]},
        {**line(), "input_length": SECRET},
        SECRET,
    ],
)
@pytest.mark.parametrize("format_", ["requests", "prompts", "sharegpt", "mooncake", "qwen", "lengths"])
def test_no_text_is_ever_repeated(read_text: Read, broken: object, format_: str) -> None:
    if format_ == "lengths":
        content = f"timestamp,input_length\n{json.dumps(SECRET)},{SECRET}\n"
    else:
        content = written(broken) + f'{{"prompt": "{SECRET}\n'
    with pytest.raises(ConfigError) as told:
        read_text(content, format=format_, strict=True)
    assert SECRET not in str(told.value)
    with contextlib.suppress(ConfigError):
        assert SECRET not in read_text(content, format=format_)[1].text()


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (line(length=-5, ids=[]), "input_length"),
        (line(length=1.5), "input_length"),
        ({"timestamp": 0, "output_length": 1}, "input_length"),
        (line(at=None), "timestamp"),
        (line(at="NaN"), "timestamp"),
        (line(ids=[1]), "hash_ids"),
        (line(ids=[1, 2.5]), "hash_ids"),
        (line(ids=5), "hash_ids"),
        (line(delay=-1), "delay"),
        (line(delay="x"), "delay"),
        (line(session_id=[]), "session_id"),
    ],
)
def test_a_broken_line_is_told_with_its_place_and_field(read_text: Read, broken: object, field: str) -> None:
    content = written(line(), broken, line(1))
    trace, reading = read_text(content)
    assert (len(trace), reading.skipped) == (2, 1)
    assert f"trace.jsonl:2: {field}: " in reading.problems[0]
    with pytest.raises(ConfigError, match=rf"trace\.jsonl:2: {field}: "):
        read_text(content, strict=True)


@pytest.mark.parametrize(
    "broken", ["{", '{"timestamp": NaN, "input_length": 5}', "[1]", "null", '{"a": "\xff"}', "[" * 100_000, "\0\0"]
)
def test_a_line_that_is_no_object_is_told(read_text: Read, broken: str) -> None:
    content = written(line()).encode() + broken.encode("latin-1") + b"\n" + written(line()).encode()
    trace, reading = read_text(content)
    assert (len(trace), reading.skipped) == (2, 1)
    assert "trace.jsonl:2: " in reading.problems[0]


def test_only_the_first_problems_are_told_in_full(read_text: Read) -> None:
    _, reading = read_text(written(line(), *[{}] * 30))
    assert (reading.skipped, len(reading.problems)) == (30, 5)
    assert "and 25 more; --strict" in reading.text()


def test_a_file_of_another_format_is_not_read_to_its_end(read_text: Read) -> None:
    with pytest.raises(ConfigError, match=r"none of the first 10,000 lines.*trace\.jsonl:1: "):
        read_text("y\n" * 10_001, format="mooncake")
    trace, reading = read_text(written(line()) + "y\n" * 10_001)
    assert (len(trace), reading.skipped) == (1, 10_001)


def test_ids_may_be_texts_or_large(read_text: Read) -> None:
    trace, _ = read_text(
        written(line(ids=["a", "b"]), line(ids=["a", "c"]), line(ids=[2**63 + 1, 2**70]), line(ids=[1, 1]))
    )
    assert [list(ids) for ids in trace.blocks] == [[0, 1], [0, 2], [3, 4], [5, 6]]


def test_times_out_of_order_are_sorted_and_told(read_text: Read) -> None:
    trace, reading = read_text(written(line(5000), line(0), line(3000)))
    assert list(trace.arrivals) == [0, 3, 5]
    assert "not in order" in reading.text()


def test_ids_that_are_no_chain_are_told(read_text: Read) -> None:
    _, reading = read_text(written(line(ids=[1, 2]), line(ids=[3, 2])))
    assert "they were chained" in reading.text()


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", "[]", "[{}]", "{}\n"])
def test_without_requests(read_text: Read, content: str) -> None:
    with pytest.raises(ConfigError, match=r"no requests|no format"):
        read_text(content)
    with pytest.raises(ConfigError, match="no requests"):
        read_text(content, format="mooncake")


def test_formats_that_cannot_be_told(read_text: Read) -> None:
    with pytest.raises(ConfigError, match=r"--format: .*mooncake"):
        read_text("hello\n")
    with pytest.raises(ConfigError, match="no format 'nosuch'"):
        read_text(written(line()), format="nosuch")


def test_a_list_of_requests(read_text: Read) -> None:
    trace, reading = read_text(json.dumps([line(), {}, line(1)], indent=1))
    assert len(trace) == 2
    assert "trace.jsonl:item 2: input_length" in reading.problems[0]


def test_a_real_tokenizer(read_text: Read, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"hello": 1, "world": 2, "?": 0}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "m").mkdir()
    tokenizer.save(str(tmp_path / "m" / "tokenizer.json"))
    trace, reading = read_text(written({"prompt": "hello world hello"}), tokenizer=str(tmp_path / "m"))
    assert list(trace.inputs) == [3]
    assert "stand-in" not in reading.text()


def test_a_tokenizer_that_cannot_be_used(read_text: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"kvlb\[tokenizers\]"):
        read_text(written({"prompt": "a"}), tokenizer=str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [{"block_size": 0}, {"time_unit": "h"}, {"columns": {"x": "y"}}, {"rate": 0.0}, {"pause": -1.0}],
)  # fmt: skip
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^--"):
        ReadingOptions(**options)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    st.sampled_from(formats.names()),
    st.lists(st.binary(max_size=40) | st.sampled_from([json.dumps(line()).encode(), b"a,b", b"1,2"]), max_size=6),
)
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path: Path, format_: str, content: list[bytes]) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"\n".join(content))
    for options in (ReadingOptions(), ReadingOptions(format=format_)):
        try:
            trace, reading = open_trace(str(path), options)
        except ConfigError:
            continue
        assert len(trace) == reading.requests > 0
