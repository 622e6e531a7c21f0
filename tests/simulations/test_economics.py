"""``kvlb economics``: the classic question with its known answers, what may be asked, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.cli import main

LLAMA = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def asked(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["economics", "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["economics", *flags]) == 2
    return capsys.readouterr().err


def verdicts(document: dict[str, Any], **wanted: str) -> dict[str, str]:
    return {
        row["model"]: row["verdict"]
        for row in document["rows"]
        if all(row[name] == value for name, value in wanted.items())
    }


THREE = {"qwen2.5-1.5b", "llama-3.1-8b", "llama-3.1-70b"}


def test_8000_tokens_of_an_8b_model_are_just_under_a_gibibyte(capsys: pytest.CaptureFixture[str]) -> None:
    rows = asked(capsys, "--model", "llama-3.1-8b")["rows"]
    wide, narrow = (next(row for row in rows if row["kv_dtype"] == each) for each in ("bfloat16", "fp8"))
    assert wide["bytes_per_token"] == 128 * 1024
    assert wide["size"] == 8000 * 128 * 1024
    assert wide["size"] / 2**30 == pytest.approx(0.98, abs=0.005)
    assert narrow["size"] * 2 == wide["size"]


def test_10_gigabit_lose_and_100_win_for_each_of_three_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys)
    assert verdicts(document, link="10gbe", kv_dtype="bfloat16") == dict.fromkeys(THREE, "compute")
    assert verdicts(document, link="100gbe", kv_dtype="bfloat16") == dict.fromkeys(THREE, "move")
    assert verdicts(document, link="25gbe", kv_dtype="bfloat16") == dict.fromkeys(THREE, "compute")
    assert verdicts(document, link="25gbe", kv_dtype="fp8") == dict.fromkeys(THREE, "move"), (
        "8 bits halve what is moved"
    )
    assert {row["break_even_tokens"] is None for row in document["rows"]} == {False}
    assert set(document["models"]) == THREE
    assert "IEEE 802.3" in document["links"]["100gbe"]


def test_a_setup_moves_the_break_even(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", "llama-3.1-8b", "--link", "100gbe", "--kv-dtype", "bfloat16")
    (quick,), (slow,) = (asked(capsys, *flags, "--setup-ms", each)["rows"] for each in ("0", "50"))
    assert slow["move_seconds"] == pytest.approx(quick["move_seconds"] + 0.05)
    assert slow["fixed_seconds"] == pytest.approx(quick["fixed_seconds"] + 0.05)
    assert slow["break_even_tokens"] > 4 * quick["break_even_tokens"]
    (hopeless,) = asked(capsys, *flags, "--setup-ms", "300")["rows"]
    assert (hopeless["verdict"], hopeless["break_even_bandwidth"]) == ("compute", None)


def test_a_measured_speed_takes_the_place_of_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = asked(
        capsys,
        "--model",
        "llama-3.1-8b",
        "--link",
        "10",
        "--kv-dtype",
        "auto",
        "--prefill-tps",
        "4000",
        "--tokens",
        "4000",
    )["rows"]
    assert row["compute_seconds"] == pytest.approx(1.0)
    assert (row["verdict"], row["on"], row["bandwidth"]) == ("move", "measured", 1.125e9)


def test_a_model_is_spread_over_as_few_devices_as_hold_it_or_over_as_many_as_are_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--model", "llama-3.1-70b", "--link", "100gbe", "--kv-dtype", "fp8")
    (four,), (eight,) = asked(capsys, *flags)["rows"], asked(capsys, *flags, "--gpus", "8")["rows"]
    assert (four["on"], eight["on"]) == ("4 x h100", "8 x h100")
    assert eight["compute_seconds"] < four["compute_seconds"]
    assert "cannot hold llama-3.1-70b" in refused(capsys, *flags, "--gpus", "2")
    assert asked(capsys, *flags, "--gpu", "L4")["rows"][0]["on"] == "8 x l4"


def test_a_latent_weighs_little(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", "deepseek-v3", "--link", "100gbe", "--kv-dtype")
    assert asked(capsys, *flags, "bfloat16")["rows"][0]["bytes_per_token"] == 61 * 576 * 2
    assert asked(capsys, *flags, "fp8_ds_mla")["rows"][0]["bytes_per_token"] == 61 * 656
    assert "fp8_ds_mla is for latent attention" in refused(
        capsys, "--model", "llama-3.1-8b", "--kv-dtype", "fp8_ds_mla"
    )


def test_a_model_may_be_its_own_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for named in (folder, folder / "config.json"):
        (row,) = asked(
            capsys, "--model", str(named), "--link", "100gbe", "--kv-dtype", "auto", "--prefill-tps", "9000"
        )["rows"]
        assert (row["model"], row["bytes_per_token"]) == ("mine", 128 * 1024)
    flags = ("--model", str(folder), "--link", "100gbe", "--kv-dtype", "auto")
    (row,) = asked(capsys, *flags, "--parameters", "8.03")["rows"]
    assert row["compute_seconds"] == pytest.approx(8000 * 2 * 8.03e9 / (989e12 * 0.5))
    assert "does not say how fast it is; give --prefill-tps, or --parameters" in refused(capsys, *flags)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    assert "num_attention_heads: missing from the model's config.json" in refused(capsys, *flags, "--prefill-tps", "9")
    (folder / "config.json").write_text("[]")
    assert "is not a JSON object" in refused(capsys, *flags)
    (folder / "config.json").write_text("{")
    assert "is not valid JSON" in refused(capsys, *flags)
    assert "No such file or directory; name a model's config.json" in refused(
        capsys, "--model", str(tmp_path / "none.json")
    )


def test_the_table_says_all_of_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["economics", "--model", "llama-3.1-8b", "--link", "10gbe", "--link", "100gbe"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("A prompt of 8,000 tokens")
    wide = next(line for line in lines if "bfloat16" in line)
    for part in ("llama-3.1-8b", "1 x h100", "128", "0.98 GiB", "10gbe", "compute", "tokens", "Gbit/s"):
        assert part in wide
    assert "100gbe" in lines[lines.index(wide) + 1]
    assert "llama" not in lines[lines.index(wide) + 1]
    assert out.count("IEEE 802.3ae") == out.count("H100 SXM5 data sheet (1,979") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "zebra"), "--model: there is no 'zebra'; there are:"),
        (("--gpu", "h1000"), "--gpu: there is no 'h1000'; did you mean h100?"),
        (("--link", "10gb"), "--link: there is no link '10gb'; did you mean 10gbe?"),
        (("--link", "0"), "--link: 0 is not a rate"),
        (("--link", "nan"), "--link: nan is not a rate"),
        (("--kv-dtype", "fp7"), "kv_cache_dtype: 'fp7' is unknown"),
        (("--tokens", "0"), "--tokens: must be at least 1, got 0"),
        (("--setup-ms", "-1"), "--setup-ms: must be a number of milliseconds, 0 or more"),
        (("--prefill-tps", "0"), "--prefill-tps: must be a number above 0"),
        (("--gpus", "0"), "--gpus: must be a number above 0"),
        (
            ("--prefill-tps", "9", "--gpu", "h100"),
            "--gpu, --prefill-tps: a speed that was measured is not worked out, too",
        ),
        (("--prefill-tps", "9", "--gpus", "2"), "--gpus, --prefill-tps: a speed that was measured"),
        (("--prefill-tps", "9", "--parameters", "2"), "--parameters, --prefill-tps: a speed that was measured"),
        (
            ("--model", "llama-3.1-8b", "--parameters", "2"),
            "--parameters, --model: how many a token uses is known of each model that has a name; give --model config.json",
        ),
        (("--tokens", "1", "--tokens", "2"), "--tokens 1, --tokens 2: one of them would not count; give it once"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_flag(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *flags)
