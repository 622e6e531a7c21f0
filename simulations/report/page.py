"""The report as one page of HTML that needs nothing but itself.

Knows a document and its plots. Never knows files (but the style and the script that lie beside it), and never asks anything of
any other place: the policy of the page forbids it, and names style and script by their digests.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from simulations.report.comparison import Cell, base, cells, kind_name, ranked
from simulations.report.document import Document
from simulations.report.figures import count, duration, percent, times
from simulations.report.finding import NOT_KNOWN, Finding
from simulations.report.fleets import size_words
from simulations.report.plots import Plot, plots_of
from simulations.report.runs_table import runs_table, value_words
from simulations.report.svg import element, escape
from simulations.report.theme import CHART_CSS, DARK, LIGHT, variables


def page(report: Document) -> str:
    """The whole page: well-formed XML as well as HTML, and the same for equal documents."""
    style, script = _style(), _read("page.js")
    plots = plots_of(report)
    compared = ranked(base(cells(report.results)))
    title = f"Simulation of {report.trace.name}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta name="generator" content="kvlb simulate"/>
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="facts">{_facts(report, compared)}</p>
<button id="theme" type="button" hidden="hidden">Dark</button>
{_tiles(report, compared)}
</header>
<main>
<h2>Findings</h2>
{_baseline(report)}<div class="findings">
{"".join(_finding(finding) for finding in report.findings)}</div>
{_figures(plots)}{runs_table(report)}{_details(report)}</main>
<footer>{_versions(report)}Simulated: replicas are a model, requests are those of the trace. Nothing on this page comes from
elsewhere.</footer>
<div id="tip" role="status" hidden="hidden"></div>
<script>{script}</script>
</body>
</html>
"""


@cache
def _read(name: str) -> str:
    return files("simulations.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root{{{light}}}\n"
        f'@media screen and (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{{dark}}}}}\n'
        f'@media screen{{:root[data-theme="dark"]{{{dark}color-scheme:dark}}:root[data-theme="light"]{{color-scheme:light}}}}\n'
        + CHART_CSS
        + _read("page.css")
    )


def _policy(style: str, script: str) -> str:
    def digest(content: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    sources = f"style-src '{digest(style)}'; script-src '{digest(script)}'"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _facts(report: Document, compared: Sequence[Cell]) -> str:
    facts = report.trace
    parts = [
        f"{facts.requests:,} request{'' if facts.requests == 1 else 's'} in {duration(facts.seconds)}",
        f"{count(facts.input_tokens)} prompt tokens in blocks of {facts.block_size}",
        f"{count(facts.output_tokens)} tokens of answers",
    ]
    if facts.sessions:
        parts.append(f"{facts.sessions:,} sessions")
    if compared:
        parts.append(f"{size_words(compared[0].fleet)}")
    return escape(" · ".join(parts))


def _tiles(report: Document, compared: Sequence[Cell]) -> str:
    served = [cell for cell in compared if cell.served]
    if not served:
        return ""
    best = served[0]
    plain = next((cell for cell in served if kind_name(cell.policy) == "round_robin"), served[-1])
    ceiling = "" if report.bounds is None else f"; {percent(report.bounds.infinite)} if nothing were forgotten"
    tiles = [
        (best.policy, f"the best of {len(served)} policies" if len(served) > 1 else "the only policy"),
        (percent(best.hit.mean), f"of prompt tokens from a cache{ceiling}"),
        (duration(best.ttft_mean.mean), "to the first token on average" + _compared(best, plain, "ttft_mean")),
        (duration(best.ttft_p95.mean), "for 95 % of them" + _compared(best, plain, "ttft_p95")),
        (percent(best.prompt_busy), "of the time, replicas have prompts to compute"),
    ]
    if any(cell.refused for cell in served):
        tiles.append((percent(best.refused), "of requests refused"))
    drawn = [
        element(
            "div", element("b", escape(value)), element("span", escape(words)), class_="tile" if at else "tile word"
        )
        for at, (value, words) in enumerate(tiles)
    ]
    return element("div", *drawn, class_="tiles")


def _compared(best: Cell, plain: Cell, figure: str) -> str:
    mine, other = getattr(best, figure).mean, getattr(plain, figure).mean
    if plain is best or not mine:
        return ""
    return (
        f"; {plain.policy} takes {times(other / mine)} as long"
        if other / mine >= 1.05
        else f"; {plain.policy}: {duration(other)}"
    )


def _baseline(report: Document) -> str:
    if report.baseline is None:
        return ""
    return element("p", escape(report.baseline.words), class_="caption", id="baseline") + "\n"


def _finding(finding: Finding) -> str:
    kinds = ["finding", "wide" if finding.topic == "tokens" else "", finding.certainty.value]
    parts = [
        "" if finding.verdict == NOT_KNOWN else element("span", finding.certainty.words, class_="sure"),
        element("h3", escape(finding.question)),
        element("p", escape(finding.verdict), class_="verdict"),
        element("p", escape(finding.answer), class_="answer"),
    ]
    if finding.because:
        reasons = element("ul", *(element("li", escape(each)) for each in finding.because), class_="because")
        parts.append(element("details", element("summary", "What this rests on"), reasons))
    return element("section", *parts, class_=" ".join(filter(None, kinds)), id=f"finding-{finding.topic}") + "\n"


def _figures(plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    drawn = [
        element(
            "figure",
            element("h3", escape(plot.title)),
            element("p", escape(plot.caption), class_="caption"),
            element("div", plot.svg, class_="scroll"),
            id=f"plot-{plot.key}",
            class_="wide" if plot.is_wide else None,
        )
        + "\n"
        for plot in plots
    ]
    return element("h2", "Figures") + "\n" + element("div", *drawn, class_="plots") + "\n"


def _details(report: Document) -> str:
    shared: dict[str, str] = {name: value_words(value) for name, value in report.inputs.items()}
    if report.results:
        varied = {
            name
            for name in report.results[0].settings
            if len({repr(each.settings.get(name)) for each in report.results}) > 1
        }
        shared |= {name: value_words(value) for name, value in report.results[0].settings.items() if name not in varied}
    settings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in shared.items())
    return f"""<h2>How to read this</h2>
<div class="halves">
<ul>
<li>Hit: the share of prompt tokens that the chosen replica had in its cache, of requests that were served.</li>
<li>Time to the first token: waiting and computing the prompt. Spread: how busy the busiest replica is over the mean.</li>
<li>Latency: until the answer has ended; answers that were cut off do not count. TPOT: time of each token of an answer behind
the first.</li>
<li>A cache that forgets nothing bounds every policy and every size. One cache as large as all together, which evicts
knowing the future, bounds every way to route and to evict at that size; nobody can build it. One LRU cache is what an
engine would do if it were one: a good router over several caches comes near it.</li>
<li>All three take requests in order of arrival, and prompts as computed at once. Answers are not counted as cached.</li>
</ul>
<div><h3>Settings of all runs</h3><dl>{settings}</dl></div>
</div>
"""


def _versions(report: Document) -> str:
    words = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    return escape(words + ". ") if words else ""
