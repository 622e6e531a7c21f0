"""Documents that name settings, flags, metrics, policies, paths or code are held against the code."""

import argparse
import importlib
import re
import sys
import tomllib
from collections import Counter
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from balancer import cli, errors, openai, tenants
from balancer.arms import arm, chosen
from balancer.checks import CHECKS
from balancer.commands import index, record, serve
from balancer.connectors import base as connectors
from balancer.connectors.running import stores_of
from balancer.core import NOTHING_ASKED, Candidate, Fault
from balancer.discovery import api_server, pods
from balancer.discovery import base as discoveries
from balancer.economics.links import LINKS, SHARE
from balancer.economics.settings import LinkSettings, ModelSettings
from balancer.ejection import Cause
from balancer.fleet import Status
from balancer.index_service import bodies
from balancer.index_service.page import MetricsPage
from balancer.index_service.paths import IndexPaths
from balancer.index_service.service import IndexService
from balancer.metrics import Metrics
from balancer.observer import Observer
from balancer.policies import base
from balancer.retries import Verdict
from balancer.service import RouterService
from balancer.settings import ReplicaSettings, Settings, load
from balancer.signals import Signal
from balancer.store_settings import StoreSettings
from balancer.tokens import Tokenizer
from indexer.index import ReplicaId
from simulations import economics
from simulations.generators.base import Settings as Shared
from simulations.generators.base import generators
from simulations.named_policies import parse
from simulations.traces import options
from simulations.traces.formats.base import formats

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


OWNED = {"policy.settings", "policy.ab.settings", "policy.shadow.settings", "discovery.settings", "stores.settings"}


LISTS: dict[str, Any] = {
    "replicas": ReplicaSettings,
    "links": LinkSettings,
    "models": ModelSettings,
    "stores": StoreSettings,
}
"""Settings that are written as [[tables]]."""


def setting_names(struct: Any = Settings, prefix: str = "") -> list[str]:
    names: list[str] = []
    for field in msgspec.structs.fields(struct):
        inner = LISTS.get(f"{prefix}{field.name}", field.type)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            names += setting_names(inner, f"{prefix}{field.name}.")
        elif f"{prefix}{field.name}" not in OWNED:  # their owners document them
            names.append(f"{prefix}{field.name}")
    return names


def test_every_setting_is_documented_and_nothing_else() -> None:
    documented = re.findall(r"^\| `([a-z_.]+)` \|", (DOCS / "settings.md").read_text(), re.M)
    assert sorted(documented) == sorted(setting_names())


@pytest.mark.parametrize("name", setting_names())
def test_documented_defaults_are_the_defaults(name: str) -> None:
    row = re.search(rf"^\| `{re.escape(name)}` \| (.*?) \|", (DOCS / "settings.md").read_text(), re.M)
    assert row is not None
    if name.startswith("replicas."):
        return  # what a replica's settings default to is told by the engine
    if name in {"links.source", "models.name", "stores.name"}:
        return
    lists = {"links": LinkSettings(source=""), "models": ModelSettings(name=""), "stores": StoreSettings(name="")}
    owner, _, field = name.partition(".")
    default = getattr(lists[owner], field) if owner in lists else reduce(getattr, name.split("."), Settings())
    shown = row[1].strip("`")
    expected = "not set" if default is None else msgspec.json.encode(default).decode()
    assert shown == expected


def test_the_example_file_can_be_used() -> None:
    example = re.search(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.S)
    assert example is not None
    assert len(load(example[1]).replicas) == 2


def test_the_examples_of_security_can_be_used() -> None:
    text = (DOCS / "security.md").read_text()
    settings, keys = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert load(settings).tenants.isolation
    assert len(tenants.read_file(keys)) == 2


def test_every_field_of_a_key_is_documented() -> None:
    text = (DOCS / "security.md").read_text()
    for field in msgspec.structs.fields(tenants._Key):
        assert f"`{field.name}`" in text


def test_every_flag_of_serve_is_documented() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    serve.configure(parser)
    text = (DOCS / "settings.md").read_text()
    for action in parser._actions:
        for flag in action.option_strings:
            assert f"`{flag}" in text, f"{flag} is not in docs/settings.md"


@pytest.mark.parametrize("name", ["doctor", "explain"])
def test_every_flag_of_what_examines_is_documented(name: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"balancer.commands.{name}").configure(parser)
    text = (DOCS / "doctor.md").read_text()
    for action in parser._actions:
        for flag in action.option_strings:
            assert re.search(rf"[` ]{flag}[` ]", text), f"{flag} is not in docs/doctor.md"


def test_traces_are_documented_with_all_flags_formats_and_generators() -> None:
    text = (DOCS / "traces.md").read_text()
    parser = argparse.ArgumentParser(add_help=False)
    record.configure(parser)
    options.add_reading_options(both := argparse.ArgumentParser(add_help=False))
    for action in (*parser._actions, *both._actions):
        assert [flag for flag in action.option_strings if f"`{flag}" not in text] == []
    for registry in (formats, generators):
        for name in registry.names():
            row = re.search(rf"^\| `{name}` \|.*", text, re.M)
            assert row is not None, name
            for field in msgspec.structs.fields(type(registry.make(name, {}))):  # type: ignore[arg-type]
                told = text if field.name in Shared.__struct_fields__ or name == "diurnal" else row[0]
                assert f"`{field.name}`" in told, (name, field.name)


def test_economics_are_documented_with_all_flags_links_and_the_table_that_it_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (DOCS / "economics.md").read_text()
    parser = argparse.ArgumentParser(add_help=False)
    economics.configure(parser)
    assert [flag for action in parser._actions for flag in action.option_strings if f"`{flag}`" not in text] == []
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) GB/s \| (.*) \|$", text, re.M)
    assert [(name, float(rate)) for name, rate, _ in rows] == [
        (name, float(f"{link.bandwidth / SHARE / 1e9:.4g}")) for name, link in LINKS.items()
    ]
    assert all(LINKS[name].source.startswith(source) for name, _, source in rows)
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert len(load(example).links) == 3
    command, table = re.findall(r"```\n(.*?)```", text, re.S)[:2]
    assert cli.main(command.split()[1:]) == 0
    assert capsys.readouterr().out.split("\n\n")[1].strip() == table.strip()


def test_every_check_is_documented_in_its_order() -> None:
    assert re.findall(r"^\| `([a-z]+)` \|", (DOCS / "doctor.md").read_text(), re.M) == list(CHECKS)


def test_the_index_service_is_documented() -> None:
    text = (DOCS / "index-service.md").read_text()
    parser = argparse.ArgumentParser(add_help=False)
    index.configure(parser)
    assert [flag for action in parser._actions for flag in action.option_strings if f"`{flag}`" not in text] == []
    service = IndexService(Settings())
    service.publishers = dict  # type: ignore[method-assign]
    for path, methods in IndexPaths(service, Counter()).routes().items():
        for method in methods:
            assert f"`{method} {path}`" in text
    page = MetricsPage(service, Counter({("/query", 200): 1})).text().decode()
    known = text + (DOCS / "metrics.md").read_text()
    for name, kind in re.findall(r"^# TYPE (kvlb_\S+) (\w+)$", page, re.M):
        assert f"`{name}` | {kind} |" in known


def test_every_field_of_a_registration_is_documented() -> None:
    text = (DOCS / "index-service.md").read_text()
    for field in msgspec.structs.fields(bodies._Registration):
        assert f"`{field.name}`" in text


def test_every_policy_is_documented_with_its_settings() -> None:
    text = (DOCS / "policies.md").read_text()
    documented = re.findall(r"^\| `([a-z_]+)` \|", text, re.M)
    assert sorted(documented) == base.names()
    for name in base.names():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.M)
        told = re.findall(r"`(\w+)(?: = (\S+))?`", row.split("|")[3])
        fields = msgspec.structs.fields(type(base.make(name)))  # type: ignore[arg-type]
        defaults = [
            (each.name, "" if each.default is None else msgspec.json.encode(each.default).decode()) for each in fields
        ]
        assert told == defaults, name


def test_every_connector_is_documented_with_its_settings() -> None:
    text = (DOCS / "stores.md").read_text()
    documented = re.findall(r"^\| `([a-z_]+)` \|", text, re.M)
    assert sorted(documented) == sorted(connectors.names())
    for name in connectors.names():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.M)
        for field in msgspec.structs.fields(connectors.CONNECTORS._classes[name]):  # type: ignore[arg-type]
            assert f"`{field.name}`" in row, (name, field.name)


def test_every_discovery_is_documented_with_its_settings() -> None:
    text = (DOCS / "discovery.md").read_text()
    documented = re.findall(r"^\| `([a-z]+)` \|", text.partition("## A file")[0], re.M)
    assert sorted(documented) == discoveries.names()
    for name in documented:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.M)
        told = re.findall(r"`(\w+)(?: = (\S+))?`", row.split("|")[3])
        fields = msgspec.structs.fields(discoveries.DISCOVERIES._classes[name])  # type: ignore[arg-type]
        defaults = [
            (each.name, "" if each.default in (None, msgspec.NODEFAULT) else msgspec.json.encode(each.default).decode())
            for each in fields
        ]
        assert sorted(told) == sorted(defaults), name


def test_the_settings_of_the_docs_of_discovery_can_be_used() -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "discovery.md").read_text(), re.S)
    made = [load(example).discovery for example in examples]
    assert [discoveries.make(each.name, each.settings) for each in made]
    assert {each.name for each in made} == {*discoveries.names()} - {"static"}


def test_the_role_of_the_docs_allows_what_is_asked_and_nothing_else() -> None:
    (role,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "discovery.md").read_text(), re.S)
    rules = re.findall(r'apiGroups: \["(.*)"\]\n +resources: \["(.*)"\]\n +verbs: \[(.*)\]', role)
    allowed = '"get", "list", "watch"'
    assert rules == [(each.group, each.plural, allowed) for each in (api_server.PODS, api_server.SLICES)]
    assert "ClusterRole" not in role


def test_every_word_of_pods_is_documented() -> None:
    rows = re.findall(r"^\| `(kvlb\.io/.*?)` \|", (DOCS / "discovery.md").read_text(), re.M)
    assert sorted(rows) == sorted([pods.ROLE, pods.RANKS, pods.PORT, pods.IGNORE, pods.EVENTS, pods.REPLAY])


def test_the_settings_of_the_docs_of_stores_can_be_used() -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "stores.md").read_text(), re.S)
    assert all(stores_of(load(example).stores) for example in examples)


def test_the_settings_of_the_docs_of_policies_can_be_used() -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "policies.md").read_text(), re.S)
    made = [load(example) for example in examples]
    assert all(chosen(each.policy) for each in made)
    assert {each.policy.ab.name for each in made} == {each.policy.shadow.name for each in made} == {None, "cache_aware"}


def test_the_policy_of_the_docs_works(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, ordered, stepped = re.findall(r"```python\n(.*?)```", (DOCS / "policies.md").read_text(), re.S)
    assert len(policy.strip().splitlines()) < 20
    module = ModuleType("my_module")
    exec(compile(policy, "policies.md", "exec"), module.__dict__)
    cold, warm = (Candidate(ReplicaId(name), 100, cached, 0, 0) for name, cached in (("a", 0), ("b", 64)))
    assert module.MostCached().choose([cold, warm], 0.5, NOTHING_ASKED) is warm
    exec(compile(ordered, "policies.md", "exec"), module.__dict__)
    in_turn = arm("mine", module.MostCachedInTurn())
    assert in_turn.orders
    assert in_turn.feed.tokens == 2048
    monkeypatch.setitem(sys.modules, "my_module", module)
    space: dict[str, Any] = {}
    exec(compile(stepped, "policies.md", "exec"), space)
    space["test_a_second_request_goes_elsewhere"]()
    (written,) = re.findall(r"^kvlb simulate .* --policy '(.*)'$", (DOCS / "policies.md").read_text(), re.M)
    first, second, third = [each.make() for each in parse(written)]
    assert (first, third) == (module.MostCached(busy=4), base.make("round_robin"))
    assert second == base.make("predicted_ttft", {"price": 3})


def test_every_metric_is_documented_and_nothing_else() -> None:
    service = RouterService(Settings())
    service.publishers = dict  # type: ignore[method-assign]
    service.tokenizer = Tokenizer.__new__(Tokenizer)
    service.tokenizer.counters = Counter()
    page = Metrics(service, Observer(Settings())).page().decode()
    exposed = {
        f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
        for name, kind in re.findall(r"^# TYPE (kvlb_\S+) (\w+)$", page, re.M)
        if not name.endswith("_created")
    }
    rows = re.findall(r"^\| `(kvlb_\w+)` \| (\w+) \|", (DOCS / "metrics.md").read_text(), re.M)
    assert sorted(name for name, _ in rows) == sorted(exposed)


def test_code_named_in_documents_exists() -> None:
    for document in (*DOCS.glob("*.md"), ROOT / "README.md"):
        for path, name in re.findall(
            r"`((?:hashing|indexer|balancer|simulations|tests)/[\w/.]+)(?:::([\w.]+))?`", document.read_text()
        ):
            assert (ROOT / path).exists(), f"{document.name} names {path}, which is not there"
            if path.startswith("tests/") and name:
                assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), (
                    f"{document.name}: no {path}::{name}"
                )
            elif name:
                module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
                assert reduce(getattr, name.split("."), module), f"{document.name}: {path} has no {name}"


def test_every_way_to_fail_is_documented() -> None:
    replicas, metrics = ((DOCS / name).read_text() for name in ("replicas.md", "metrics.md"))
    assert [signal for signal in Signal if f"| `{signal}` |" not in replicas] == []
    assert [name for names in (Fault, Verdict, Cause, Status) for name in names if f"`{name}`" not in metrics] == []


def test_every_forwarded_path_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    assert [path for path in openai.PATHS if f"`{path}`" not in text] == []


def test_the_clients_that_are_checked_are_those_that_are_installed() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["clients"]
    pinned = dict(each.split("==") for each in wanted)
    documented = dict(re.findall(r"^\| `(\w+)` for Python \| ([\d.]+) \|", (DOCS / "api.md").read_text(), re.M))
    assert documented == {name: version for name, version in pinned.items() if name != "h11"}


def test_every_error_of_ours_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    for cls in errors.RequestError.__subclasses__():
        assert f"| {cls.status} |" in text
        assert cls.code is None or f"`{cls.code}`" in text


def test_readme_names_the_paths_that_are_forwarded() -> None:
    text = (ROOT / "README.md").read_text()
    for path, kind in openai.PATHS.items():
        if kind is not openai.Kind.OPAQUE:
            assert f"`{path}`" in text


def test_every_field_failure_has_its_tests() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", (DOCS / "field-failures.md").read_text(), re.M)
    faults = [(what, tests) for what, tests in rows if what not in {"what went wrong", "---"} and set(what) != {"-"}]
    assert len(faults) > 40
    for what, tests in faults:
        assert re.search(r"`tests/[\w/.]+::test_\w+`", tests), f"nothing keeps this from happening: {what}"
