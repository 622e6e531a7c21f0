"""Releases: what the ends of the range have, and texts that are no release."""

import pytest

from simulations.fake.releases import Release


def test_the_newest_release_has_everything() -> None:
    newest = Release()
    assert newest.has_map_events
    assert newest.has_replay_topic
    assert newest.has_event_sources
    assert newest.has_render
    assert newest.has_generate
    assert newest.has_rank_header
    assert not newest.has_gpu_metric_names


def test_the_oldest_release_lacks_what_came_later() -> None:
    oldest = Release("0.11.0")
    assert not oldest.has_map_events
    assert oldest.num_stored_fields == 6
    assert not oldest.has_replay_topic
    assert not oldest.has_event_sources
    assert not oldest.has_render
    assert not oldest.has_generate
    assert not oldest.has_rank_header
    assert oldest.has_gpu_metric_names


@pytest.mark.parametrize(("version", "arrays"), [("0.14.0", 7), ("0.18.0", 8), ("0.22.1", 11)])
def test_arrays_grow_with_the_releases(version: str, arrays: int) -> None:
    assert Release(version).num_stored_fields == arrays


@pytest.mark.parametrize("version", ["0.10.2", "0.8.5", "", "latest"])
def test_what_cannot_be_imitated_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"use 0\.11\.0 or later|is not a vLLM version"):
        Release(version)
