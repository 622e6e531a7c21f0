"""``balancer/settings_file.py``: several files are one tree, and no setting stands twice."""

from pathlib import Path

import pytest

from balancer import settings
from balancer.errors import ConfigError
from balancer.settings_file import read


def written(folder: Path, **files: str) -> str:
    """The name of the first of these files."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return str(folder / f"{next(iter(files))}.toml")


def test_a_file_by_itself_is_what_it_says(tmp_path: Path) -> None:
    assert read(written(tmp_path, kvlb="[server]\nport = 1\n")) == {"server": {"port": 1}}


def test_tables_and_lists_of_tables_become_one(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "kvlb.toml").write_text(
        '[upstream]\napi_key = "k"\n[policy.shadow]\nname = "least_load"\n[[replicas]]\nurl = "http://b:1"\n'
    )
    name = written(
        tmp_path,
        kvlb='include = "private/kvlb.toml"\n[policy]\nname = "round_robin"\n[upstream]\nca_file = "ca"\n'
        '[[replicas]]\nurl = "http://a:1"\n',
    )
    made = settings.convert(read(name))
    assert (made.upstream.api_key, made.upstream.ca_file) == ("k", "ca")
    assert (made.policy.name, made.policy.shadow.name) == ("round_robin", "least_load")
    assert [each.url for each in made.replicas] == ["http://a:1", "http://b:1"]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"a": 'include = "b.toml"\n[server]\nport = 1', "b": "[server]\nport = 2"},
            r"'.*b\.toml': server\.port: stands",
        ),
        ({"a": 'include = "b.toml"\n[server]\nport = 1', "b": "server = 2"}, r"'.*b\.toml': server: stands"),
        ({"a": 'include = ["b.toml"]', "b": 'include = "a.toml"'}, r"'.*b\.toml': include: a file that is included"),
        ({"a": "include = 3"}, r"'.*a\.toml': include: give the name of a file"),
        ({"a": "include = [3]"}, r"'.*a\.toml': include: give the name of a file"),
        ({"a": 'include = "none.toml"'}, r"^--config: cannot read '.*none\.toml': No such file"),
        ({"a": 'include = "b.toml"', "b": "port ="}, r"'.*b\.toml': not valid TOML"),
        ({"a": 'include = "\\u0000"'}, r"cannot read"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_file(files: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        read(written(tmp_path, **files))
