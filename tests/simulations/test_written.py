"""``simulations/written.py``: numbers, words, lists and tables of a command line, with commas between several of them."""

import re
from typing import Any

import pytest

from simulations.written import Unreadable, read_values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,2", [1, 2]),
        (" 1 , 0.5,true ", [1, 0.5, True]),
        ("", []),
        (",", []),
        ("none,25gbe,4M", ["none", "25gbe", "4M"]),
        ('none,25gbe,{link="10gbe",loads="always"}', ["none", "25gbe", {"link": "10gbe", "loads": "always"}]),
        ('{link="10gbe",loads="always"},25gbe, none', [{"link": "10gbe", "loads": "always"}, "25gbe", "none"]),
        ("{link=10gbe,loads=always}", [{"link": "10gbe", "loads": "always"}]),
        ("{gbits=25, tokens=4G},{}", [{"gbits": 25, "tokens": "4G"}, {}]),
        ("[1,1],[1,0.5]", [[1, 1], [1, 0.5]]),
        ("[{at=600,replica=3},{at=9,replica=1}],[]", [[{"at": 600, "replica": 3}, {"at": 9, "replica": 1}], []]),
        ("[{at=600,kind=soft}]", [[{"at": 600, "kind": "soft"}]]),
        ("\"a,b\",'c'", ["a,b", "c"]),
        ('{name="a,b}",more=c}', [{"name": "a,b}", "more": "c"}]),
        (r'{name="a\",}b",more=c},"\\",2', [{"name": 'a",}b', "more": "c"}, "\\", 2]),
        (r"'a\',b", ["a\\", "b"]),
        ("{a={b=c,d=[e,1]}}", [{"a": {"b": "c", "d": ["e", 1]}}]),
    ],
)
def test_values_are_parted_by_commas_outside_of_brackets_and_quotes(text: str, found: list[Any]) -> None:
    assert read_values(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{gbits=25", "} is missing in '{gbits=25'"),
        ("[1,2", "] is missing in '[1,2'"),
        ("{link='10gbe}", "' is missing in "),
        ("1}", "} closes nothing in '1}'"),
        ("[1}", "} closes nothing in '[1}'"),
        ("{gbits=25}none", "a comma is missing behind } in '{gbits=25}none'"),
        ("{gbits=25,tokens}", "'tokens' in '{gbits=25,tokens}' is no field; write {field=value,field=value}"),
        ("{gbits=,tokens=4}", "'gbits=' in '{gbits=,tokens=4}' is no field"),
        ("{gbits=1,gbits=2}", "gbits is there twice in '{gbits=1,gbits=2}'; give it once"),
        ("{link=10 gbe}", "'10 gbe' in '{link=10 gbe}' is no value; write a number, a word, or words in quotes"),
    ],
)
def test_what_is_no_value_is_told_with_how_to_write_it(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match="^" + re.escape(message)):
        read_values(text)
