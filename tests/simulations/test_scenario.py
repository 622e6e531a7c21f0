"""``simulations/scenario.py``: a file becomes cases, and whatever is wrong with it names the field and the remedy."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from balancer.economics.links import LINKS
from balancer.errors import ConfigError
from simulations.detailed_fleet import DetailedFleet, Disaggregation, Restart
from simulations.hardware.estimate import Hardware
from simulations.scenario import (
    DEFAULT_POLICIES,
    Kind,
    Scenario,
    cases,
    fleet_of,
    load,
    number_of,
    sweep_of,
    with_hardware,
)
from simulations.simple import SimpleFleet
from simulations.store import StoreSettings

FILE = """
trace = "mine.jsonl"
model = "simple"
policies = ["predicted_ttft(price=3),round_robin", "random"]
seeds = 2
seed = 5
ttft_p95 = 2.5

[fleet]
replicas = 4
prefill_tps = "20k"

[sweep]
cache = ["1M", "4M"]
load = [0.5, 0.9]
"""


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "scenario.toml").write_text(text)
    return str(tmp_path / "scenario.toml")


def test_a_file_becomes_every_policy_on_every_fleet_with_every_seed(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, FILE))
    assert scenario.trace == str(tmp_path / "mine.jsonl"), "seen from the scenario's folder"
    assert scenario.ttft_p95 == 2.5
    planned = cases(scenario)
    assert len(planned) == 3 * 4 * 2
    assert [(each.policy.written, each.seed) for each in planned[:6]] == [
        (policy, seed) for policy in ("predicted_ttft(price=3)", "round_robin", "random") for seed in (5, 6)
    ]
    assert len({each.fleet for each in planned[:6]}) == 1, "what is compared comes together"
    assert planned[0].fleet == SimpleFleet(replicas=4, blocks=1_000_000 // 512, load=0.5, prefill_tps=20_000.0)
    assert planned[-1].fleet == SimpleFleet(replicas=4, blocks=4_000_000 // 512, load=0.9, prefill_tps=20_000.0)


def test_an_empty_file_is_the_usual_policies_on_a_detailed_fleet(tmp_path: Path) -> None:
    planned = cases(load(written(tmp_path, "")))
    assert [each.policy.written for each in planned] == DEFAULT_POLICIES.split(",")
    assert {each.fleet for each in planned} == {DetailedFleet()}


@pytest.mark.parametrize("trace", ["-", "/somewhere/else.jsonl"])
def test_standard_input_and_whole_paths_stay(tmp_path: Path, trace: str) -> None:
    assert load(written(tmp_path, f'trace = "{trace}"')).trace == trace


def test_a_policy_that_is_written_twice_is_played_once() -> None:
    planned = cases(Scenario(policies=("random", "random(),round_robin")))
    assert [each.policy.written for each in planned] == ["random", "round_robin"]


def test_a_sweep_over_caches_stands_for_the_blocks_of_the_fleet() -> None:
    scenario = Scenario(model="simple", policies=("random",), fleet={"blocks": 7}, sweep={"cache": ["512", "5120"]})
    assert [each.fleet for each in cases(scenario)] == [SimpleFleet(blocks=1), SimpleFleet(blocks=10)]


def test_a_sweep_stands_for_what_the_fleet_says_in_whatever_words() -> None:
    for model in ("simple", "detailed"):
        asked = Scenario(model=model, policies=("random",), fleet={"rate": 7, "blocks": 3}, sweep={"load": [0.5]})
        (case,) = cases(asked)
        assert (case.fleet.load, case.fleet.rate, case.fleet.blocks) == (0.5, 1.0, 3)


def test_what_some_of_several_fleets_have_no_use_for_is_no_mistake() -> None:
    sweep = {"gateways": [1, 2], "replicas": [2, 4]}
    planned = cases(Scenario(policies=("random",), fleet={"exchange": 1, "speeds": [1, 1, 1, 0.5]}, sweep=sweep))
    assert len(planned) == 4


def test_a_field_that_a_fleet_may_be_without_may_be_none() -> None:
    swept = cases(
        Scenario(policies=("random",), fleet={"gateways": 2}, sweep={"exchange": ["none", 1], "load": [0.5, "none"]})
    )
    assert [(each.fleet.exchange, each.fleet.load) for each in swept if isinstance(each.fleet, DetailedFleet)] == [
        (None, 0.5),
        (None, None),
        (1, 0.5),
        (1, None),
    ]
    assert fleet_of("simple", {"believed_tps": "none"}) == SimpleFleet()
    with pytest.raises(ConfigError, match=r"^fleet\.gateways: must be a whole number, got 'none'$"):
        fleet_of("detailed", {"gateways": "none"})


def test_a_cache_in_tokens_is_as_many_blocks_as_fit() -> None:
    assert fleet_of("simple", {"cache": "1023"}) == SimpleFleet(blocks=1)
    assert fleet_of("detailed", {"cache": "4M", "block_size": 100}) == DetailedFleet(blocks=40_000, block_size=100)


@pytest.mark.parametrize("model", ["simple", "detailed"])
def test_a_store_weighs_what_the_hardware_says_unless_the_file_does(tmp_path: Path, model: str) -> None:
    text = f"""
model = "{model}"
hardware = {{ model = "llama-3.1-8b", gpu = "h100" }}
policies = ["random"]
[sweep]
store = [{{ gbits = 25, loads = "always" }}, {{ token_bytes = 7.0 }}]
"""
    stores = [case.fleet.store for case in cases(load(written(tmp_path, text)))]
    assert stores == [StoreSettings(25.0, loads="always", token_bytes=131_072.0), StoreSettings(token_bytes=7.0)]


def test_prefill_and_decode_apart_are_the_detailed_models_own_and_weigh_what_the_hardware_says(tmp_path: Path) -> None:
    text = """
model = "detailed"
hardware = { model = "llama-3.1-8b", gpu = "h100", kv_bytes = 1.0 }
policies = ["random"]
fleet.disaggregation = { prefill = 3, gbits = 25 }
"""
    (case,) = cases(load(written(tmp_path, text)))
    assert isinstance(case.fleet, DetailedFleet)
    assert case.fleet.disaggregation == Disaggregation(3, 25.0, token_bytes=65_536.0)
    with pytest.raises(ConfigError, match=r"^fleet\.disaggregation: .*; the detailed model has it$"):
        cases(load(written(tmp_path, text.replace('"detailed"', '"simple"'))))
    with pytest.raises(ConfigError, match=r"^fleet\.disaggregation\.prefill: must leave one of 3 replicas to answer"):
        cases(load(written(tmp_path, text + "fleet.replicas = 3")))


@pytest.mark.parametrize("model", ["simple", "detailed"])
@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"gbits": math.inf}, r"^fleet\.store\.gbits: must be a number of at most 1,000,000, got inf$"),
        ({"gbits": 1e-7}, r"^fleet\.store\.gbits: must be a number of at least 1e-06, got 1e-07$"),
        ({"gbits": 1e300}, r"^fleet\.store\.gbits: must be a number of at most 1,000,000, got 1e\+300$"),
        ({"latency": math.inf}, r"^fleet\.store\.latency: must be a number of at most 86,400, got inf$"),
        ({"token_bytes": math.inf}, r"^fleet\.store\.token_bytes: must be a number of at most 1,000,000,000, got inf$"),
        ({"gbit": 25}, r"^fleet\.store\.gbit: there is no such field; did you mean gbits\?$"),
        ({"loads": "some"}, r"^fleet\.store\.loads: must be one of mixed, always, never, got 'some'$"),
        ("{loads=never}", r"^fleet\.store: must be none or a table of gbits, .* words in quotes"),
        (100, r"^fleet\.store: must be none or a table of gbits, "),
    ],
)
def test_what_no_store_can_be_is_said_with_its_field(model: Kind, store: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fleet_of(model, {"store": store})


@pytest.mark.parametrize("field", ["gbits", "latency", "token_bytes", "answer_weight"])
def test_no_way_to_those_that_answer_is_without_end(field: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^fleet\.disaggregation\.{field}: must be a number of at most [0-9,]+, got inf$"
    ):
        fleet_of("detailed", {"disaggregation": {"prefill": 1, field: math.inf}})


def test_a_fleet_without_one_is_swept_beside_those_that_have_it() -> None:
    field, values = sweep_of('disaggregation=none, {prefill=2, splits="always"}')
    assert values == ["none", {"prefill": 2, "splits": "always"}]
    asked = Scenario(policies=("round_robin",), sweep={field: values, "store": ["none"]})
    assert [case.fleet for case in cases(asked)] == [
        DetailedFleet(),
        DetailedFleet(disaggregation=Disaggregation(2, splits="always")),
    ]
    assert sweep_of("store={gbits=25},none")[1] == [{"gbits": 25}, "none"]


def test_room_in_a_store_is_a_number_with_a_letter_and_the_detailed_models_own() -> None:
    fleet = fleet_of("detailed", {"store": {"tokens": "4M"}})
    assert fleet.store == StoreSettings(tokens=4_000_000)
    with pytest.raises(
        ConfigError, match=r"^fleet\.store\.tokens: the simple model's store forgets nothing; leave it out"
    ):
        fleet_of("simple", {"store": {"tokens": "4M"}})


def test_structures_are_read() -> None:
    fleet = fleet_of(
        "detailed", {"restarts": [{"at": 5, "replica": 7}], "speeds": [1, 0.5], "latency": {"token": 1e-5}}
    )
    assert isinstance(fleet, DetailedFleet)
    assert fleet.restarts == (Restart(5.0, 7, 60.0),)
    assert fleet.speeds == (1.0, 0.5)
    assert fleet.latency.token == 1e-5


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4M", 4_000_000),
        ("1.5k", 1500),
        ("2G", 2_000_000_000),
        ("0.5", 0.5),
        (" 7 ", 7),
        ("1e4", 10_000),
        ("2.5E-1", 0.25),
        (".5k", 500),
        ("1e999", "1e999"),
        ("nan", "nan"),
        ("4 M", "4 M"),
        ("x", "x"),
        (3, 3),
    ],
)
def test_numbers_with_a_letter(text: Any, number: object) -> None:
    assert number_of(text) == number


def test_a_sweep_on_the_command_line() -> None:
    assert sweep_of("block-size=16,512") == ("block_size", [16, 512])
    assert sweep_of("cache=1M, 4M") == ("cache", [1_000_000, 4_000_000])
    assert sweep_of("replicas=1e1,4.0,2e3") == ("replicas", [10, 4, 2000])
    assert fleet_of("simple", {"blocks": sweep_of("blocks=1e4")[1][0]}).blocks == 10_000
    assert sweep_of("event_lag=inf,0.5") == ("event_lag", [math.inf, 0.5])
    assert sweep_of("replicas=4\ngateways=2") == ("replicas", ["4\ngateways=2"]), "nothing of it is lost"
    assert sweep_of("speeds=[1, 0.5]", "--fleet") == ("speeds", [[1, 0.5]])
    assert sweep_of("closed_loop=true,false") == ("closed_loop", [True, False])
    assert sweep_of("store={gbits=25, latency=0},{}") == ("store", [{"gbits": 25, "latency": 0}, {}])
    assert sweep_of("store={gbits=25}", "--fleet") == ("store", [{"gbits": 25}])
    assert sweep_of('store=none,25gbe,{link="10gbe",loads="always"}') == (
        "store",
        ["none", "25gbe", {"link": "10gbe", "loads": "always"}],
    )
    assert sweep_of("speeds=[1,1],[1,0.5]") == ("speeds", [[1, 1], [1, 0.5]])


def test_a_table_on_the_command_line_takes_numbers_with_letters_and_words_without_quotes() -> None:
    field, (table,) = sweep_of("store={link=25gbe,tokens=4G,loads=always}", "--fleet")
    assert fleet_of("detailed", {field: table}) == DetailedFleet(
        store=StoreSettings(gbits=22.5, tokens=4_000_000_000, loads="always", name="25gbe")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("store={gbits=25", "} is missing in '{gbits=25', as in 'store={link=\"25gbe\"}'"),
        ("disaggregation={prefill}", "'prefill' in '{prefill}' is no field; write {field=value,field=value}, as in 'disagg"),
        ("blocks=[1,2", "] is missing in '[1,2'"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_told_with_its_field_and_an_example(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(f"--fleet {text}: {message}")):
        sweep_of(text, "--fleet")


@pytest.mark.parametrize("text", ["replicas", "replicas=", "replicas=,"])
def test_a_sweep_that_is_none_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"--sweep {text}: write a field of the fleet and what it is to be, as in --sweep")
    ):
        sweep_of(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modell = 'simple'", "modell: there is no such field; did you mean model?"),
        (
            "zzz = 1",
            "zzz: there is no such field; there are: trace, model, policies, ",
        ),
        ("model = 'quick'", "model: Invalid enum value 'quick'"),
        ("seeds = 0", "seeds: must be a whole number of at least 1, got 0"),
        ("seeds = 1001", "seeds: must be a whole number of at most 1,000, got 1001"),
        ("ttft_p95 = 0.0", "ttft_p95: must be a number above 0, got 0.0"),
        ("policies = 'random'", "policies: must be a list; got 'random'"),
        ("sweep = 3", "sweep: must be a table; got 3"),
        ("model = ", "this is no TOML: "),
        ("\udcff", "this is no TOML: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_error_with_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {message}")):
        load(str(path))


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file or directory"):
        load(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        ("simple", {"replica": 2}, "fleet.replica: a fleet of the simple model has no such field; did you mean replicas?"),
        ("simple", {"gateways": 2}, "fleet.gateways: a fleet of the simple model has no such field; the detailed"),
        ("detailed", {"pooled": True}, "fleet.pooled: a fleet of the detailed model has no such field; the simple"),
        ("simple", {"xyz": 2}, "fleet.xyz: a fleet of the simple model has no such field; there are: replicas, blocks"),
        ("simple", {"cache": "4M", "blocks": 3}, "fleet.cache: give either cache or blocks, not both; both say how"),
        ("simple", {"load": 0.5, "rate": 2}, "fleet.load: give either load or rate, not both; both say how fast requests come"),
        ("detailed", {"load": 0.5, "rate": 1}, "fleet.load: give either load or rate, not both"),
        ("simple", {"cache": "511"}, "fleet.cache: must be a number of tokens, one block (512) at least, got 511"),
        ("detailed", {"cache": "lots"}, "fleet.cache: must be a number of tokens, one block (16) at least, got lots"),
        ("simple", {"cache": math.inf}, "fleet.cache: must be a number of tokens, one block (512) at least, got inf"),
        ("detailed", {"cache": math.nan}, "fleet.cache: must be a number of tokens, one block (16) at least, got nan"),
        ("detailed", {"exchange": 1e-6}, "fleet.exchange: must be a number of at least 0.05, got 1e-06"),
        ("detailed", {"blocks": 10**30}, "fleet.blocks: must be a whole number of at most 1,000,000,000, got 1000000"),
        ("detailed", {"cache": "100G"}, "fleet.blocks: must be a whole number of at most 1,000,000,000, got 6250000000"),
        ("detailed", {"block_size": "1g"}, "fleet.block_size: must be a whole number of at most 1,048,576, got 1000000000"),
        ("simple", {"cache": "4M", "block_size": "x"}, "fleet.block_size: must be a number of tokens, got 'x'"),
        ("simple", {"replicas": "many"}, "fleet.replicas: must be a whole number, got 'many'"),
        ("simple", {"replicas": 0}, "fleet.replicas: must be a whole number of at least 1, got 0"),
        ("simple", {"load": float("nan")}, "fleet.load: must be a number above 0, got nan"),
        ("detailed", {"event_loss": 1.5}, "fleet.event_loss: must be a number of at most 1, got 1.5"),
        ("detailed", {"speeds": [1, 0]}, "fleet.speeds[1]: must be a number above 0, got 0"),
        ("detailed", {"latency": {"token": -1}}, "fleet.latency: token must be a number of seconds, 0 or more, got -1.0"),
        ("detailed", {"restarts": [{"at": math.inf, "replica": 1}]}, "fleet.restarts[0].at: must be a number of at most"),
        ("detailed", {"restarts": [{"at": 1, "replica": 1, "down": math.inf}]}, "fleet.restarts[0].down: must be a number of"),
        (
            "detailed",
            {"restarts": [{"at": math.nan, "replica": 1}]},
            "fleet.restarts[0].at: must be a number of at least 0, got nan",
        ),
        ("detailed", {"restarts": [{"replica": 1}]}, "fleet.restarts[0]: at is missing: write it as in 'restarts=[{at=600,"),
        (
            "detailed",
            {"restarts": 5},
            "fleet.restarts: must be a list: write it as in 'restarts=[{at=600,replica=3,down=60}]'; got 5",
        ),
        ("detailed", {"restarts": [5]}, "fleet.restarts[0]: must be a table: write it as in 'restarts=[{at="),
        ("detailed", {"speeds": 2}, "fleet.speeds: must be a list: write it as in 'speeds=[1,1,0.5]'; got 2"),
        ("detailed", {"latency": {"tokens": 1}}, "fleet.latency: there is no field tokens: write it as in 'latency={"),
        ("detailed", {"event_lag": math.inf}, "fleet.event_lag: must be a number of at most 86,400, got inf"),
        ("detailed", {"rate": math.inf}, "fleet.rate: must be a number of at most 1,000,000,000,000, got inf"),
        ("detailed", {"closed_loop": 3}, "fleet.closed_loop: must be true or false, got 3"),
        (
            "detailed",
            {"disaggregation": {"gbits": 25}},
            "fleet.disaggregation: prefill is missing: write it as in 'disaggregation={prefill=2,link=",
        ),
        ("simple", {"store": {"gbits": math.nan}}, "fleet.store.gbits: must be a number of at least 1e-06, got nan"),
        ("simple", {"store": {"link": "25gb"}}, "fleet.store.link: there is no link '25gb'; did you mean 25gbe?"),
        ("simple", {"store": "fast"}, "fleet.store.link: there is no link 'fast'; there are: 10gbe"),
        ("simple", {"store": {"link": 0}}, "fleet.store.link: 0 is not a rate"),
        (
            "simple",
            {"store": {"link": "25gbe", "gbits": 1}},
            "fleet.store: give either link (its name, or a network's rate) or gbits",
        ),
        ("detailed", {"restarts": [{"at": 1, "replica": 8}]}, "fleet.restarts: there is no replica 8 among 8"),
        (
            "detailed",
            {"restarts": [{"at": 1, "replica": 1, "dow": 2}]},
            "fleet.restarts[0]: there is no field dow: write it as in 'restarts=[{at=600,",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_fleet_is_one_error_with_the_field(
    model: Kind, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        fleet_of(model, fields)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (Scenario(policies=("nobody",)), "policy.name: there is no policy 'nobody'"),
        (Scenario(sweep={"replicas": []}), "sweep.replicas: give one value at least"),
        (
            Scenario(fleet={"exchange": 1}, sweep={"gateways": [1, "1"]}),
            "fleet.exchange, fleet.gateways: one gateway has none to ask; give more, as in gateways=2, or leave exchange out",
        ),
        (
            Scenario(fleet={"speeds": [1, 1, 0.5], "replicas": 2}),
            "fleet.speeds, fleet.replicas: 3 speeds are told, and there are 2 replicas at most; leave some out",
        ),
        (Scenario(sweep={"replica": [1]}), "fleet.replica: a fleet of the detailed model has no such field"),
        (
            Scenario(policies=("random",), sweep={"replicas": list(range(1, 102))}, seeds=1000),
            "sweep: 101,000 runs are asked for, and 100,000 at most are played; vary less at once",
        ),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_is(scenario: Scenario, message: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        cases(scenario)


def test_a_link_has_the_same_name_in_a_store_a_split_and_a_plan() -> None:
    def store(value: Any) -> StoreSettings | None:
        fleet = fleet_of("simple", {"store": value})
        assert isinstance(fleet, SimpleFleet)
        return None if fleet.store is None else msgspec.structs.replace(fleet.store, name=None)

    named = store({"link": "25gbe", "loads": "always"})
    assert named == StoreSettings(gbits=22.5, latency=0.001, loads="always")
    assert store("25gbe") == store({"link": 25}) == store({"link": "25"}) == StoreSettings(gbits=22.5, latency=0.001)
    assert store({"link": "ram-pcie5"}) == StoreSettings(gbits=LINKS["ram-pcie5"].bandwidth * 8e-9, latency=0.0)
    assert store({"link": "25gbe", "latency": 0.5}) == StoreSettings(gbits=22.5, latency=0.5), "its own is told"
    split = fleet_of("detailed", {"disaggregation": {"prefill": 2, "link": "100gbe"}})
    assert isinstance(split, DetailedFleet)
    assert split.disaggregation == Disaggregation(2, gbits=90.0, latency=0.001, name="100gbe")
    _, values = sweep_of("store=none,25gbe")
    assert [store(each) for each in values] == [None, StoreSettings(gbits=22.5, latency=0.001)]
    with_weight = with_hardware("simple", Hardware("llama-3.1-8b", "h100"), {"store": "25gbe"})
    assert with_weight["store"] == {"token_bytes": 131072, "gbits": 22.5, "latency": 0.001, "name": "25gbe"}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("25gbe", "25gbe"),
        ({"link": "25"}, "25"),
        ({"link": 25}, "25"),
        ({"gbits": 25}, None),
        ({"gbits": 25, "name": "mine"}, "mine"),
        ({"link": "25gbe", "name": "4M"}, "4M"),
    ],
)
def test_a_store_keeps_the_name_that_it_was_given(value: Any, name: str | None) -> None:
    fleet = fleet_of("simple", with_hardware("simple", Hardware("llama-3.1-8b", "h100"), {"store": value}))
    assert fleet.store is not None
    assert fleet.store.name == name
