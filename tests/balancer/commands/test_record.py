"""``kvlb record``: flags, when it is enough, and a file that is nobody else's."""

import argparse
import gzip
import io
from contextlib import ExitStack
from pathlib import Path

import pytest

from balancer.commands import record
from balancer.errors import ConfigError, Unreachable

LINE = b'{"kvlb_recording":1,"timestamp":1.0}\n'


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    record.configure(parser)
    return parser.parse_args(words)


def written(args: argparse.Namespace, *lines: bytes) -> tuple[record._Sink, bytes]:
    file = io.BytesIO()
    sink = record._Sink(file, args)
    for line in lines:
        sink.write(line)
    return sink, file.getvalue()


def test_lines_are_written_and_counted() -> None:
    sink, content = written(parsed("f"), b"\n", LINE, b'{"kvlb_recording":1,"lost":5}\n', LINE)
    assert content == LINE + b'{"kvlb_recording":1,"lost":5}\n' + LINE
    assert (sink.requests, sink.lost, sink.is_full) == (2, 5, False)


@pytest.mark.parametrize("words", [["--requests", "2"], ["--max-bytes", str(2 * len(LINE) + 5)]])
def test_it_is_enough(words: list[str]) -> None:
    sink, content = written(parsed("f", *words), *[LINE] * 4)
    assert content == 2 * LINE
    assert sink.is_full


def test_half_a_line_waits_for_the_rest() -> None:
    parts = [b"a\nb", b"c\nd"]
    assert record._whole(parts) == [b"a\n", b"bc\n"]
    assert parts == [b"d"]
    parts.append(b"\n")
    assert record._whole(parts) == [b"d\n"]
    assert parts == []


def test_the_file_is_new_and_its_owners(tmp_path: Path) -> None:
    for name in ("plain", "packed.gz"):
        path = tmp_path / name
        with ExitStack() as stack:
            record._opened(str(path), stack).write(LINE)
        assert not path.stat().st_mode & 0o077
        with ExitStack() as stack, pytest.raises(ConfigError, match="is there already"):
            record._opened(str(path), stack)
    assert gzip.decompress(path.read_bytes()) == LINE
    with ExitStack() as stack, pytest.raises(ConfigError, match="cannot be made"):
        record._opened(str(tmp_path / "no" / "where"), stack)


@pytest.mark.parametrize(
    "words",
    [["--seconds", "0"], ["--seconds", "nan"], ["--requests", "0"], ["--max-bytes", "-1"], ["--block-size", "0"]],
)
def test_flags_that_cannot_be_are_told(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=words[0]):
        record.run(parsed("f", *words))


def test_without_a_gateway_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="--gateway"):
        record.run(parsed(str(tmp_path / "f"), "--gateway", "http://127.0.0.1:9"))
    assert not (tmp_path / "f").exists()
    with pytest.raises(ConfigError, match="--gateway"):
        record.run(parsed("f", "--gateway", "nowhere"))
