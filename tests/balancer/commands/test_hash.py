"""``balancer/commands/hash.py``: flags and token ids in, vLLM's recorded hashes out, one clear line for each mistake."""

import argparse
import io
import sys

import pytest

from balancer.commands.hash import command
from balancer.errors import ConfigError

A = "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf  1403909460543360175\n"
ONE_TO_16 = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"


def run(monkeypatch: pytest.MonkeyPatch, standard_input: bytes, *flags: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(standard_input)))
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(flags))


@pytest.mark.parametrize(
    "text", [ONE_TO_16, ONE_TO_16.strip("[]"), " 1 2,3\n4, 5 6 7 8 9 10 11 12 13\t14 15 16 \n", ONE_TO_16[:-1] + ",17]"]
)
def test_tokens_may_be_json_or_separated_integers(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, text.encode()) == 0
    assert capsys.readouterr().out == A


@pytest.mark.parametrize(
    ("flags", "published"),
    [
        (["--seed", "0"], 7536218907325174565),
        (["--algorithm", "sha256_cbor"], 8866452693264111234),
        (["--algorithm", "xxhash", "--seed", "0"], 11844795890135418255),
        (["--seed", "0", "--salt", "salt-1", "--form", "untagged"], 9162848584827018740),
        (["--seed", "0", "--lora", "ad", "--form", "untagged"], 7045440284273377969),
    ],
)
def test_flags_choose_the_recipe_and_the_extras(
    flags: list[str], published: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, ONE_TO_16.encode(), *flags) == 0
    assert capsys.readouterr().out.split()[1:] == [str(published)]


def test_an_adapter_has_a_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = " ".join(map(str, range(1, 33)))
    assert run(monkeypatch, tokens.encode(), "--lora", "ad=/m/ad") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["15979563133874625163", "4986394553142876622"]


def test_a_prompt_below_one_block_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, b"[1, 2]", "--block-size", "32") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "kvlb hash: 2 tokens fill no block of 32\n")


@pytest.mark.parametrize(
    ("standard_input", "flags", "message"),
    [
        (b"", [], r"tokens: standard input is empty; give a JSON list"),
        (b" \n", [], r"tokens: standard input is empty"),
        (b"[1, 2", [], r"tokens: .*; give a JSON list"),
        (b'[1, "a"]', [], r"tokens: Expected `int`, got `str` - at `\$\[1\]`"),
        (b"[1, -2]", [], r"tokens\[1\]: -2 is not a token id"),
        (b"[99999999999999999999]", [], r"tokens"),
        (b"1 2 x", [], r"tokens: 'x' is not a token id"),
        (b"1 -2", [], r"tokens: '-2' is not a token id"),
        (b"1 " + b"9" * 9000, [], r"tokens: '99999999999999999999…' is not a token id"),
        (b"99999999999999999999", [], r"tokens\[0\]: 99999999999999999999 is not a token id"),
        (b"\xff\xfe", [], r"tokens: .*utf-8"),
        (b"1", ["--block-size", "0"], r"block_size: 0"),
        (b"1", ["--block-size", "1.5"], r"--block-size: '1.5'"),
        (b"1", ["--algorithm", "md5"], r"algorithm: 'md5' is unknown; use one of sha256"),
        (b"1", ["--algorithm", "xxhash"], r"seed: .*PYTHONHASHSEED"),
        (b"1", ["--form", "new"], r"--form: 'new' is unknown; use tagged or untagged"),
        (b"1", ["--lora", "ad"], r"lora\.path: "),
        (b"1", ["--lora", "=x"], r"--lora: '=x' has no name"),
        (b"1", ["--salt", "\udcff"], r"salt: "),
    ],
)
def test_each_mistake_gets_one_line_that_names_it(
    standard_input: bytes, flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=rf"^{message}") as caught:
        run(monkeypatch, standard_input, *flags)
    assert "\n" not in str(caught.value)
