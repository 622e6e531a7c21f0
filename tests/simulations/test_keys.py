"""``simulations/keys.py``: equal prefixes have equal keys, and answers those of the turn that repeats them."""

from simulations.keys import TraceKeys
from simulations.traces.trace import TraceBuilder


def test_equal_prefixes_have_equal_keys_and_others_none_in_common() -> None:
    builder = TraceBuilder("made", 4, is_chained=False)
    for ids in ([1, 2, 3], [1, 2, 4], [5, 2, 3]):
        builder.add(0.0, 12, 1, ids)
    keys = TraceKeys(builder.build(), 2)
    one, two, three = (keys.of(request) for request in range(3))
    assert [len(each) for each in (one, two, three)] == [6, 6, 6]
    assert one[:4] == two[:4]
    assert len({*one, *two, *three}) == 6 + 2 + 6


def test_blocks_beyond_what_is_told_are_nobody_elses() -> None:
    builder = TraceBuilder("made", 4, is_chained=False)
    for _ in range(2):
        builder.add(0.0, 11, 1, [1, 2])
    keys = TraceKeys(builder.build(), 2)
    one, two = keys.of(0), keys.of(1)
    assert one[:4] == two[:4]
    assert not {*one[4:]} & {*two[4:]}
    assert len(one) == 5
    assert keys.of(0) == one, "the same whenever it is asked"


def test_an_answer_has_the_keys_of_the_turn_that_repeats_it() -> None:
    builder = TraceBuilder("made", 4, is_chained=False)
    builder.add(0.0, 8, 9, [1, 2], session="a")
    builder.add(1.0, 20, 4, [1, 2, 3, 4, 5], session="a")
    keys = TraceKeys(builder.build(), 4)
    assert keys.of(0) == keys.of(1)[:4], "8 tokens asked and 9 answered: four full blocks"
    assert len(keys.of(1)) == 5, "what comes after the last turn is not told"


def test_a_turn_that_begins_otherwise_or_has_no_room_for_the_answer_tells_nothing_of_it() -> None:
    for ids, tokens in (([7, 8, 9, 10, 11], 20), ([1, 2, 3, 4], 16)):
        builder = TraceBuilder("made", 4, is_chained=False)
        builder.add(0.0, 8, 9, [1, 2], session="a")
        builder.add(1.0, tokens, 4, ids, session="a")
        assert len(TraceKeys(builder.build(), 4).of(0)) == 2


def test_keys_are_64_bits_and_never_none() -> None:
    builder = TraceBuilder("made", 1, is_chained=False)
    builder.add(0.0, 5000, 1, list(range(5000)))
    found = TraceKeys(builder.build(), 1).of(0)
    assert len(set(found)) == 5000
    assert all(0 < key < 2**64 for key in found)


def test_what_is_made_up_is_nobodys_block() -> None:
    builder = TraceBuilder("made", 1, is_chained=False)
    builder.add(0.0, 500, 1, list(range(500)))
    for _ in range(500):
        builder.add(0.0, 3, 1)
    keys = TraceKeys(builder.build(), 1)
    every = [key for request in range(501) for key in keys.of(request)]
    assert len(set(every)) == len(every)
    assert max(every) < 2**64
