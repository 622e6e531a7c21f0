import gzip
import io
import json
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import ConfigError
from simulations.traces import lines as lines_module
from simulations.traces.lines import Bad, Lines


@pytest.fixture(autouse=True, params=[7, 1 << 20])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "CHUNK", request.param)


def opened(tmp_path: Path, content: bytes, **bounds: int) -> Lines:
    path = tmp_path / "trace"
    path.write_bytes(content)
    return Lines(str(path), **bounds)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_lines_are_numbered_as_editors_do(tmp_path: Path, end: bytes, pack: type) -> None:
    content = end.join([b"\xef\xbb\xbffirst line", b"", b"  ", b"the fourth", b"last"])
    with opened(tmp_path, pack(content)) as lines:
        assert [(number, line.strip()) for number, line in lines.lines() if isinstance(line, bytes)] == [
            (1, b"first line"),
            (4, b"the fourth"),
            (5, b"last"),
        ]


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    for pack in (gzip.compress, zstandard.compress):
        with opened(tmp_path, pack(b"one\n") + pack(b"two\n")) as lines:
            assert [line for _, line in lines.lines()] == [b"one", b"two"]


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path, b"a\n" + 100 * b"x" + b"\nb\n" + 100 * b"y", max_line=50) as lines:
        found = dict(lines.lines())
    assert [found[1], found[3]] == [b"a", b"b"]
    assert isinstance(found[2], Bad)
    assert isinstance(found[4], Bad)
    assert not found[2].is_end


def test_a_line_without_end_ends_reading(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(10_000_000_000)
    if lines_module.CHUNK < 1000:
        return  # the same, a million times slower
    with Lines(str(path), max_line=1 << 20, give_up=1 << 24) as lines:
        (found,) = lines.lines()
    assert isinstance(found[1], Bad)
    assert found[1].is_end
    assert "16 MiB" in found[1].what


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_half_a_packed_file_is_read_and_told(tmp_path: Path, pack: type) -> None:
    whole = "".join(f"{number} {number**9}\n" for number in range(5_000)).encode()
    packed: bytes = pack(whole)
    with opened(tmp_path, packed[: len(packed) // 2]) as lines:
        found = [line for _, line in lines.lines()]
    if pack is gzip.compress:  # a frame of zstd that ends early ends like a whole one
        assert isinstance(found[-1], Bad)
        assert found[-1].is_end
    assert all(line in whole for line in found[:-2] if isinstance(line, bytes))


def test_garbage_behind_the_magic_is_told(tmp_path: Path) -> None:
    for content in (b"\x1f\x8bnonsense and more", b"\x28\xb5\x2f\xfdnonsense and more of it"):
        with opened(tmp_path, content) as lines:
            (found,) = lines.lines()
        assert isinstance(found[1], Bad)
        assert "not whole" in found[1].what


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=3), max_size=5), st.booleans(), st.booleans()
)
def test_items_of_a_list_are_those_that_json_has(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, object]], indented: bool, is_ascii: bool
) -> None:
    text = json.dumps(values, indent=2 if indented else None, ensure_ascii=is_ascii)
    path = tmp_path_factory.getbasetemp() / "list.json"
    path.write_bytes(text.encode(errors="replace"))
    with Lines(str(path)) as lines:
        assert lines.is_list
        found = [json.loads(item) for _, item in lines.items() if isinstance(item, bytes)]
    assert found == json.loads(text.encode(errors="replace"))


def test_a_list_that_is_not_ended_and_an_item_that_is_too_large(tmp_path: Path) -> None:
    with opened(tmp_path, b'[{"a": 1}, {"b": "' + 90 * b"x" + b'", "c": [1, 2]}, {"d": 4}', max_line=120) as lines:
        found = list(lines.items())
    assert found[0] == (1, b'{"a": 1}')
    assert isinstance(found[-1][1], Bad)
    assert "not ended" in found[-1][1].what
    with opened(tmp_path, b'[{"a": 1}, {"b": [' + 90 * b"1," + b'1]}, {"d": 4}]', max_line=50) as lines:
        found = list(lines.items())
    assert [found[0][1], found[2][1]] == [b'{"a": 1}', b'{"d": 4}'] or isinstance(found[1][1], bytes)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BufferedReader(io.BytesIO(gzip.compress(b"one\ntwo\n")))

    monkeypatch.setattr(sys, "stdin", Input)
    with Lines("-") as lines:
        assert [line for _, line in lines.lines()] == [b"one", b"two"]
        assert lines.name == "standard input"
    assert not Input.buffer.closed


@pytest.mark.parametrize(("name", "word"), [("missing", "No such file"), (".", "directory"), ("a\0b", "character")])
def test_what_cannot_be_opened_is_told(tmp_path: Path, name: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Lines(str(tmp_path / name))


def test_utf_16_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="UTF-16"):
        opened(tmp_path, "one\n".encode("utf-16"))


def test_without_zstandard_its_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"kvlb\[zstd\]"):
        opened(tmp_path, zstandard.compress(b"one\n"))
