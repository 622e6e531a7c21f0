"""The Dockerfile, read: no image can be built where there is no registry of images."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.helm.rendering import container, pod_of, render

ROOT = Path(__file__).parents[2]
STEP = tuple[str, str]

EXTRAS = {"dns", "epp", "otlp", "redis", "uvloop", "zstd"}
"""What may be set in the chart. Not ``plots``, which is for kvlb simulate, nor ``tokenizers``: engines are asked."""


def stages() -> list[list[STEP]]:
    """The steps of each stage; those before the first one are its own."""
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M))
    steps = [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]
    found: list[list[STEP]] = [[]]
    for word, rest in steps:
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    assert {word for word, _ in steps} <= {
        "ARG",
        "FROM",
        "ENV",
        "RUN",
        "WORKDIR",
        "COPY",
        "LABEL",
        "USER",
        "EXPOSE",
        "ENTRYPOINT",
        "CMD",
    }
    return found[1:]


def said(stage: list[STEP], word: str) -> list[str]:
    return [rest for each, rest in stage if each == word]


def test_two_stages_of_one_slim_base() -> None:
    build, final = stages()
    assert said(build, "FROM") == ["python:${PYTHON}-slim AS build"]
    assert said(final, "FROM") == ["python:${PYTHON}-slim"]
    minor = re.search(r"^ARG PYTHON=3\.(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert minor is not None
    assert f"Programming Language :: Python :: 3.{minor[1]}" in (ROOT / "pyproject.toml").read_text()


def test_what_comes_out_has_nothing_that_builds() -> None:
    _, final = stages()
    assert said(final, "COPY") == ["--from=build /opt/kvlb /opt/kvlb"]
    assert not re.search(r"apt-get|pip install|gcc|make ", " ".join(said(final, "RUN")))
    assert "pip uninstall" in said(final, "RUN")[0]


def test_it_is_the_user_whom_the_chart_runs() -> None:
    _, final = stages()
    (user,) = said(final, "USER")
    security = pod_of(render().gateway)["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}" == "65532:65532"
    words = [word for word, _ in final]
    assert words.index("USER") > max(at for at, word in enumerate(words) if word in {"RUN", "COPY"})


def test_it_starts_kvlb() -> None:
    _, final = stages()
    assert said(final, "ENTRYPOINT") == ['["kvlb"]']
    assert container(render().gateway)["command"] == ["kvlb"]
    assert said(final, "CMD") == ['["serve", "--config", "/etc/kvlb/kvlb.toml"]']
    exposed = {int(port) for port in said(final, "EXPOSE")[0].split()}
    ports = {each["containerPort"] for case in ("default", "epp") for each in container(render(case).gateway)["ports"]}
    assert exposed == ports


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    build, _ = stages()
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [name for each in said(build, "COPY") for name in each.split()[:-1]]
    for name in copied:
        assert (ROOT / name).exists()
        verdicts = [not line.startswith("!") for line in lines if fnmatch(name, line.removeprefix("!"))]
        assert not verdicts[-1], f"{name} is ignored"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)
    assert {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"} <= set(copied)


def test_extras_are_there() -> None:
    build, _ = stages()
    (extras,) = re.findall(r"kvlb-\*\.whl\)\[([a-z,]+)\]", " ".join(said(build, "RUN")))
    assert set(extras.split(",")) == EXTRAS
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) >= EXTRAS
