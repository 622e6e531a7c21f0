"""``balancer/processes/mirror.py``: what a gateway knows is what it was told last."""

import math

import pytest

from balancer.core import Replica, RouteRequest
from balancer.errors import NoReplica, UnknownModel
from balancer.processes.mirror import SPARED_SECONDS, Mirror
from balancer.processes.protocol import FleetView, Known, encode, from_brain
from hashing.example import ExampleKeys
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.index import ReplicaId

A, B, C = (ReplicaId(name) for name in ("a:1", "b:1", "c:1"))
LORA = Lora("l", "/p")
RECIPE, LEARNED = Recipe(), LearnedKeys(16)


def known(
    name: ReplicaId, recipe: int | None = 0, *, is_available: bool = True, adapters: tuple[Lora, ...] = ()
) -> Known:
    models = ("m", *(adapter.name for adapter in adapters))
    return Known(Replica(name, f"http://{name}", models=models, adapters=adapters), recipe, is_available, -math.inf)


def mirror(*fleet: Known) -> Mirror:
    made = Mirror()
    made.apply(FleetView(list(fleet), {0: RECIPE}, {1: LEARNED}, {}, True))
    return made


def test_nobody_can_be_asked_before_anything_is_known() -> None:
    empty = Mirror()
    assert not empty.is_ready()
    with pytest.raises(NoReplica):
        empty.usable(RouteRequest("m"), 0.0)


def test_a_prompt_is_hashed_in_each_way_that_its_model_needs() -> None:
    fleet = mirror(known(A, adapters=(LORA,)), known(B, 1), known(C, None))
    assert fleet.ways("m") == [(0, RECIPE, None), (1, LEARNED, None)]
    assert fleet.ways("l") == [(0, RECIPE, LORA)]
    assert fleet.ways("nobody's") == []
    fleet.apply(FleetView([known(C, 7)], {}, {}, {}, True))
    assert fleet.ways("m") == [], "a number that was not explained"


def test_who_cannot_be_used_is_not() -> None:
    fleet = mirror(known(A), known(B), known(C, is_available=False))

    def names(request: RouteRequest) -> list[str]:
        return [each.id for each in fleet.usable(request, 0.0)]

    assert names(RouteRequest("m")) == [A, B]
    assert names(RouteRequest("m", excluded=frozenset({A}))) == [B]
    assert fleet.can_route(RouteRequest("m", excluded=frozenset({A})), 0.0)
    assert not fleet.can_route(RouteRequest("m", excluded=frozenset({A, B})), 0.0)
    with pytest.raises(NoReplica):
        names(RouteRequest("m", excluded=frozenset({A, B})))
    with pytest.raises(UnknownModel):
        names(RouteRequest("n"))


def test_an_endpoint_where_nobody_was_is_spared_unless_there_is_no_other() -> None:
    fleet = mirror(known(A), known(B))
    fleet.spare("http://a:1", 10.0, is_told=False)
    assert [each.id for each in fleet.usable(RouteRequest("m"), 10.0)] == [B]
    assert len(fleet.usable(RouteRequest("m"), 10.0 + SPARED_SECONDS)) == 2
    fleet.spare("http://b:1", 10.0, is_told=False)
    assert len(fleet.usable(RouteRequest("m"), 10.0)) == 2
    fleet.spare("http://a:1", 10.0, is_told=True)
    assert [each.id for each in fleet.usable(RouteRequest("m"), 99.0)] == [B], "until the brain says otherwise"


def test_loads_are_those_of_the_fleet_that_they_were_told_of() -> None:
    fleet = mirror(known(A), known(B))
    fleet.load([3, 1])
    assert [live.in_flight for live in fleet.fleet] == [3, 1]
    fleet.load([9])
    fleet.apply(FleetView([known(B), known(C)], {0: RECIPE}, {}, {}, True))
    assert [live.in_flight for live in fleet.fleet] == [1, 0]


def test_a_prompt_is_hashed_for_stores_besides() -> None:
    made, example = Mirror(), ExampleKeys(32)
    fleet = [known(A, adapters=(LORA,)), known(B, 1)]
    view = FleetView(fleet, {0: RECIPE}, {1: LEARNED}, {}, True, also=[2], examples={2: example})
    told = from_brain(encode(view)[4:])
    assert isinstance(told, FleetView)
    made.apply(told)
    assert made.ways("m") == [(0, RECIPE, None), (1, LEARNED, None), (2, example, None)]
    assert made.ways("l") == [(0, RECIPE, LORA), (2, example, LORA)]
    assert type(made.ways("m")[2][1]) is ExampleKeys


def test_who_comes_next_is_whoever_has_less_to_do() -> None:
    fleet = mirror(known(A), known(B), known(C))
    fleet.load([3, 1, 2])
    assert [each.id for each in fleet.by_load(RouteRequest("m"), B, 0.0)] == [C, A]
    assert [each.id for each in fleet.by_load(RouteRequest("m", excluded=frozenset({C})), A, 0.0)] == [B]
