"""What is made of other files is up to date; what watches kvlb asks for metrics that there are."""

import json
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.helm import sizing
from tests.helm.made import FILES, out_of_date
from tests.helm.rendering import CHART, ROOT, asked, render
from tests.helm.values_file import Value, read

DOCS = Path(__file__).parents[2] / "docs"

ROWS = re.findall(r"^\| `(kvlb_\w+)` \| (\w+) \|([^|]*)\|", (DOCS / "metrics.md").read_text(), re.M)
KINDS = {name: kind for name, kind, _ in ROWS}
LABELS = {name: set(labels.replace(" ", "").split(",")) - {""} for name, _, labels in ROWS}

TARGETS = {"namespace", "job", "pod"}
"""Labels that a scrape adds."""


def test_files_are_what_scripts_chart_would_write() -> None:
    assert out_of_date() == [], "run scripts/chart"
    assert all((CHART / name).is_file() for name in FILES)


def test_the_chart_is_of_this_version() -> None:
    told = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((CHART.parent / "pyproject.toml").read_text())["project"]
    assert told["appVersion"] == project["version"].partition(".dev")[0]
    assert (told["name"], told["description"]) == (project["name"], project["description"])


def test_a_package_of_the_chart_has_all_that_it_needs(tmp_path: Path) -> None:
    assert asked("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (package,) = tmp_path.iterdir()
    values = str(CHART / "ci" / "monitoring-values.yaml")
    packed, lying = (asked("template", "kv", str(chart), "--values", values).stdout for chart in (package, CHART))
    assert packed == lying != ""
    with tarfile.open(package) as archive:
        assert not [name for name in archive.getnames() if "/ci/" in name]


def test_the_script_runs_helm_where_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("nameOverride: other\n")
    words = [
        "template",
        "kv",
        str(CHART),
        "--values",
        "values.yaml",
        "--show-only",
        "templates/gateway/deployment.yaml",
    ]
    done = subprocess.run(
        [str(ROOT / "scripts" / "helm"), *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "kv-other"
    told = subprocess.run([str(ROOT / "scripts" / "helm"), "nonsense"], capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert "nonsense" in told.stderr


def test_what_the_documents_install_can_be_installed(tmp_path: Path) -> None:
    blocks = "\n".join(
        block for name in ("README.md", "docs/kubernetes.md", "helm/README.md")
        for block in re.findall(r"^```\w*\n(.*?)^```$", (CHART.parent / name).read_text(), re.S | re.M)
    )  # fmt: skip
    commands = re.findall(r"^helm install kvlb \./helm(.*)$", blocks.replace("\\\n", " "), re.M)
    commands += re.findall(r"`helm install kvlb \./helm([^`]*)`", (CHART.parent / "README.md").read_text())
    assert len(commands) >= 4
    for words in commands:
        assert "image.repository=REGISTRY/kvlb" in words, "nobody publishes the chart's own"
        done = asked("template", "kvlb", str(CHART), *words.split())
        assert done.returncode == 0, (words, done.stderr)
    examples = re.findall(r"```yaml\n(.*?)```", (DOCS / "kubernetes.md").read_text(), re.S)
    values = [each for each in examples if each.startswith("fleet:")]
    assert len(values) == 2
    for each in values:
        (tmp_path / "values.yaml").write_text(each)
        done = asked("template", "kvlb", str(CHART), "--values", str(tmp_path / "values.yaml"))
        assert done.returncode == 0, (each, done.stderr)


def test_the_documents_say_that_the_image_is_to_be_built() -> None:
    dockerfile = CHART.parent / "Dockerfile"
    assert dockerfile.is_file()
    for name in ("README.md", "docs/kubernetes.md", "helm/README.md"):
        text = (CHART.parent / name).read_text()
        assert "obody publishes an image" in text, name
        assert "docker build -t REGISTRY/kvlb:0.1.0 ." in text, name
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == "0.1.0"


def test_the_adapters_rule_of_the_documents_makes_the_metric_that_is_scaled_by() -> None:
    text = re.findall(r"```yaml\n(rules:.*?)```", (DOCS / "kubernetes.md").read_text(), re.S)
    (rule,) = yaml.safe_load(text[0])["rules"]
    metrics = render("hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"] == [rule["name"]["as"]]
    assert KINDS[rule["seriesQuery"].partition("{")[0]] == "counter"


def flat(values: list[Value]) -> list[Value]:
    return [each for value in values for each in [value, *flat(value.inner)]]


def test_the_readme_names_every_value() -> None:
    text = (CHART / "README.md").read_text()
    for value in flat(read()):
        assert value.inner or f"| `{'.'.join(value.path)}` |" in text, value.path


def selectors(expression: Any) -> list[Any]:
    """The series that an expression asks for."""
    if isinstance(expression, promql_parser.VectorSelector):
        return [expression]
    inner = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    return [each for part in [*inner, *getattr(expression, "args", [])] if part is not None for each in selectors(part)]


def grouped(expression: Any) -> set[str]:
    """Labels by which anything in it is summed."""
    found = {*re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression.prettify())))}
    return found - {"by"}


def check(query: str) -> None:
    expression = promql_parser.parse(query)
    asked = selectors(expression)
    assert asked, query
    known: set[str] = {"le", *TARGETS}
    for selector in asked:
        name = selector.name.removesuffix("_bucket")
        assert name in KINDS, f"{query}: there is no {name}"
        assert (KINDS[name] == "histogram") == selector.name.endswith("_bucket")
        wanted = {matcher.name for matcher in selector.matchers.matchers}
        assert {"namespace", "job"} <= wanted, "another release's series would count, too"
        assert wanted <= LABELS[name] | TARGETS, f"{query}: {name} has no such label"
        known |= LABELS[name]
    assert grouped(expression) <= known, query
    for rated in re.findall(r"(?:rate|increase)\((\w+)\{", query):
        assert KINDS[rated.removesuffix("_bucket")] in {"counter", "histogram"}, f"{query}: a rate of no counter"


RULES = render("monitoring").one("PrometheusRule")["spec"]["groups"][0]["rules"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_alerts_ask_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    named = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
    assert set(named) <= grouped(promql_parser.parse(rule["expr"]))
    mentioned = re.findall(r"kvlb_\w+", rule["annotations"]["description"])
    assert set(mentioned) <= set(KINDS)


def test_values_of_labels_are_those_that_kvlb_has() -> None:
    """In alerts: what is compared with is in the documents, where every such word is held against the code."""
    text = (DOCS / "metrics.md").read_text() + (DOCS / "api.md").read_text()
    for rule in RULES:
        for label, values in re.findall(r'(\w+)=~?"([^"]+)"', rule["expr"]):
            if label not in {"namespace", "job", "status"} or values in {"ready", "lost|ejected"}:
                assert all(f"`{each}`" in text for each in values.split("|")), (rule["alert"], values)


def test_the_dashboard_is_grafanas_and_asks_for_metrics_that_there_are() -> None:
    board = json.loads(render("monitoring").one("ConfigMap", "kv-kvlb-dashboard")["data"]["kvlb.json"])
    assert board == json.loads((CHART / "dashboards" / "kvlb.json").read_text())
    panels = [each for each in board["panels"] if each["type"] != "row"]
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in board["panels"]]
    assert len(set(places)) == len(places)
    assert len(panels) > 15
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", "n").replace("$job", "j")
            check(query)
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= grouped(promql_parser.parse(query)), panel["title"]
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "namespace", "job"]
    labels = render("monitoring").one("ConfigMap", "kv-kvlb-dashboard")["metadata"]["labels"]
    assert labels["grafana_dashboard"] == "1"


def test_what_scales_kvlb_asks_for_a_metric_that_there_is() -> None:
    (trigger,) = render("keda").one("ScaledObject")["spec"]["triggers"]
    check(trigger["metadata"]["query"])


def test_figures_of_the_rule_are_those_that_were_measured() -> None:
    text = (DOCS / "performance.md").read_text()
    for measured in sizing.MEASURED:
        assert measured.where in text, "what the rule is reckoned from has changed; look at tests/helm/sizing.py"


def test_the_table_of_the_documents_is_the_readmes() -> None:
    assert sizing.tables() in (DOCS / "kubernetes.md").read_text(), "paste it from helm/README.md"


def test_what_clients_ask_by_default_is_within_what_a_pod_is_thought_to_do() -> None:
    keda = yaml.safe_load((CHART / "values.yaml").read_text())["autoscaling"]["keda"]
    assert 0.6 < sizing.cpu(0, keda["requestsPerSecond"], sizing.CHAT_MS, 300) <= sizing.BUSY
