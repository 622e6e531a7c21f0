"""The shape of the tree: who may import whom, and what every file begins with."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from balancer import cli
from balancer.errors import ConfigError

ROOT = Path(__file__).parent.parent
PACKAGES = ("hashing", "indexer", "balancer", "simulations")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_import_contracts_are_kept() -> None:
    """The layers and the purity of the core, as pyproject.toml states them."""
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_pure_module_is_named_in_the_contract_and_exists() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = next(each for each in config["contracts"] if each["type"] == "forbidden")["source_modules"]
    for module in named:
        path = ROOT.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"{module} is in the contract but not in the tree"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_begins_with_its_law(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} does not say what it knows"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed_and_shipped(package: str) -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / package / "py.typed").is_file()
    assert package in config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_packages_from_different_places_are_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "indexer"
    stranger.mkdir()
    (stranger / "__init__.py").write_text("")
    code = "from balancer import cli; cli.check_packages()"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert ConfigError.__name__ in result.stderr
    assert "environment of its own" in result.stderr


def test_our_own_packages_are_accepted() -> None:
    cli.check_packages()


def test_nothing_received_is_unpickled() -> None:
    """Hashing pickles, as vLLM does; reading a pickle would run what a stranger has written."""
    for path in SOURCES:
        text = path.read_text()
        named = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        assert not named & {"Unpickler", "recv_pyobj", "recv_serialized"}, path
        assert "import pickle" not in text or not named & {"load", "loads"}, path


def test_the_core_starts_without_zmq_and_aiohttp() -> None:
    """The simulator runs the same router without either."""
    code = "import sys, balancer.router, simulations.engine; print({'zmq', 'aiohttp', 'asyncio'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
