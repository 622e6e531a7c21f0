"""``simulations/forgotten.py``: what a restart has thrown away is known until somebody has it again."""

from simulations.forgotten import Forgotten


def test_what_is_lost_is_what_nobody_else_holds_until_it_is_stored_again() -> None:
    forgotten = Forgotten()
    assert forgotten.places([1, 2]) == ()
    forgotten.lost([1, 2, 3, 4], [{2}, {9}])
    assert forgotten.places([1, 2, 3, 5]) == (0, 2)
    forgotten.stored([3])
    assert forgotten.places([1, 2, 3, 5]) == (0,)
    forgotten.lost([5], [])
    assert forgotten.places([1, 2, 3, 5]) == (0, 3)
