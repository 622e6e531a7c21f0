"""``balancer/warm.py``: files that are whole or not there, and gateways that serve whatever becomes of them."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from balancer import snapshot_file, warm
from balancer.handover import Handover
from balancer.settings import SnapshotSettings
from balancer.warm import CONTENT_TYPE, PATH, WarmStart
from indexer.index import ReplicaId
from indexer.snapshot import Image, Restored
from tests.support.handovers import URLS, A, B, fed, member, router
from tests.support.waiting import eventually, run


def about(*replicas: ReplicaId, **settings: Any) -> WarmStart:
    """Snapshots of a router that knows two blocks of each of these."""
    made = WarmStart(SnapshotSettings(**settings), Handover(fed(*map(member, replicas)), URLS), contextlib.nullcontext)
    made.is_loaded = True
    return made


def blank(**settings: Any) -> tuple[WarmStart, Handover]:
    handover = Handover(router(), URLS)
    return WarmStart(SnapshotSettings(**settings), handover, contextlib.nullcontext), handover


async def load(into: WarmStart) -> None:
    async with aiohttp.ClientSession() as session:
        await into.load(session)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    after, handover = blank(path=path)

    async def scenario() -> None:
        before = about(A, B, path=path)
        await before.save()
        assert (before.saves, before.failures, before.size) == (1, 0, (tmp_path / "index").stat().st_size)
        await load(after)

    run(scenario())
    assert (after.restored_blocks, set(handover.waiting)) == (4, {A, B})
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_file_that_is_too_old_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "index")
    after, _ = blank(path=path, max_age_seconds=1e-9)

    async def scenario() -> None:
        await about(A, path=path).save()
        await load(after)

    run(scenario())
    assert after.restored_blocks == 0
    assert "older than snapshots may be" in caplog.text


def test_a_first_start_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    after, _ = blank(path=str(tmp_path / "index"))
    with caplog.at_level(logging.INFO):
        run(load(after))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    after, _ = blank(path=str(tmp_path))
    run(load(after))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path) in caplog.text


def test_a_folder_that_is_gone_is_one_warning_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    saving = about(A, path=str(folder / "index"))

    async def scenario() -> None:
        for _ in range(3):
            await saving.save()
        assert (saving.saves, saving.failures) == (0, 3)
        await asyncio.to_thread(folder.mkdir)
        await saving.save()
        assert (saving.saves, saving.failures) == (1, 3)

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No such file or directory" in caplog.text


def test_a_full_disk_leaves_the_last_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index"
    saving = about(A, path=str(path))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    async def scenario() -> bytes:
        await saving.save()
        first = await asyncio.to_thread(path.read_bytes)
        monkeypatch.setattr(os, "fsync", full)
        await saving.save()
        return first

    first = run(scenario())
    assert (saving.saves, saving.failures) == (1, 1)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_is_cancelled_leaves_the_last_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "index"
    saving = about(A, path=str(path))

    async def scenario() -> bytes:
        await saving.save()
        first = await asyncio.to_thread(path.read_bytes)
        for turns in range(40):
            task = asyncio.create_task(saving.save())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert [entry.name for entry in os.scandir(tmp_path)] == ["index"]
        await saving.save()
        return first

    first = run(scenario())
    again, _ = blank(path=str(path))
    run(load(again))
    assert again.restored_blocks == 2
    assert len(path.read_bytes()) == len(first)


def test_two_gateways_with_one_file_do_not_write_into_each_others(tmp_path: Path) -> None:
    path = str(tmp_path / "index")

    async def scenario() -> None:
        both = about(A, path=path), about(B, path=path)
        await asyncio.gather(*(each.save() for _ in range(10) for each in both))
        after, handover = blank(path=path)
        await load(after)
        assert len(handover.waiting) == 1

    run(scenario())
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


def test_drafts_of_killed_gateways_are_removed(tmp_path: Path) -> None:
    """However young they are: a gateway that is killed again and again must not fill the disk. Drafts under way are locked."""
    left, written, foreign = (tmp_path / name for name in ("[index].1.ab.tmp", "[index].2.cd.tmp", "other.1.ab.tmp"))
    for draft in (left, foreign):
        draft.write_bytes(b"")
    with snapshot_file._create(written):
        run(load(blank(path=str(tmp_path / "[index]"))[0]))
        assert (left.exists(), written.exists(), foreign.exists()) == (False, True, True)


def test_where_there_are_no_locks_a_draft_is_left_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", nowhere)
    old, young = (tmp_path / name for name in ("index.1.ab.tmp", "index.2.cd.tmp"))
    for draft in (old, young):
        snapshot_file._create(draft).close()
    os.utime(old, (1, 1))
    snapshot_file.remove_leftovers(tmp_path / "index")
    assert (old.exists(), young.exists()) == (False, True)


def test_a_pipe_is_no_file_to_save_to_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "index"
    os.mkfifo(path)
    assert snapshot_file.problem(path) == "it is there, and is no regular file"
    run(load(blank(path=str(path))[0]))


def test_it_saves_every_so_often_and_drops_what_nobody_comes_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "index")
    monkeypatch.setattr(warm, "UNCLAIMED_SECONDS", 0.0)

    async def scenario() -> None:
        await about(A, path=path).save()
        after, handover = blank(path=path, interval_seconds=0.01)
        await load(after)
        assert set(handover.waiting) == {A}
        running = asyncio.create_task(after.run())
        await eventually(lambda: after.saves > 1)
        running.cancel()
        assert not handover.waiting

    run(scenario())


def test_only_one_snapshot_is_made_at_a_time(tmp_path: Path) -> None:
    saving = about(A, path=str(tmp_path / "index"))

    async def scenario() -> None:
        async with contextlib.aclosing(saving.pieces()) as pieces:
            await anext(pieces)
            other = asyncio.create_task(saving.save())
            await asyncio.sleep(0.05)
            assert not other.done()
        await other

    run(scenario())
    assert saving.saves == 1


def test_events_wait_while_the_copy_is_made_and_no_longer() -> None:
    held: list[bool] = []

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        held.append(True)
        yield
        held.append(False)

    class Watched(Handover):
        def take(self, now: float) -> Generator[None, None, Image]:
            image = yield from super().take(now)
            assert held == [True]
            return image

    async def scenario() -> None:
        giving = WarmStart(SnapshotSettings(), Watched(fed(member(A)), URLS), hold)
        async with contextlib.aclosing(giving.pieces()) as pieces:
            assert await anext(pieces)
            assert held == [True, False]

    run(scenario())


class Faulty(Handover):
    """Nothing of it works."""

    def take(self, now: float) -> Generator[None, None, Image]:
        yield
        raise KeyError("a fault")

    def accept(self, restored: Sequence[Restored]) -> int:
        raise KeyError("a fault")


def test_a_fault_of_ours_costs_the_snapshot_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "index")
    made = router()
    faulty = WarmStart(SnapshotSettings(path=path), Faulty(made, URLS), contextlib.nullcontext)

    async def scenario() -> None:
        await about(A, path=path).save()
        await load(faulty)
        await faulty.save()

    run(scenario())
    assert (faulty.saves, faulty.failures, faulty.restored_blocks, made.caches.index.size) == (0, 1, 0, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


# Siblings -------------------------------------------------------------------------------------------------------------


async def _give(data: bytes, content_type: str = CONTENT_TYPE, status: int = 200) -> web.Response:
    return web.Response(body=data, content_type=content_type, status=status)


async def whole(*replicas: ReplicaId) -> bytes:
    async with contextlib.aclosing(about(*replicas).pieces()) as pieces:
        return b"".join([piece async for piece in pieces])


async def old(_: web.Request) -> web.Response:
    return await _give(b"{}", "application/json", 404)


async def other(_: web.Request) -> web.Response:
    return await _give(b"hello", "text/html")


async def damaged(_: web.Request) -> web.Response:
    return await _give(b"kvlbsnap\1\0 and then nonsense")


async def never(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    await response.prepare(request)
    await response.write((await whole(B))[:-20])
    assert request.transport is not None
    request.transport.abort()
    return response


@contextlib.asynccontextmanager
async def sibling(handler: Callable[[web.Request], Any]) -> Any:
    app = web.Application()
    app.router.add_get(PATH, handler)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


BAD: dict[str, Callable[[web.Request], Any]] = {
    "too old to know the path": old,
    "something else": other,
    "damaged": damaged,
    "cut off": cut,
    "silent": never,
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_bad_sibling_gives_is_forgotten_and_the_next_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warm, "SIBLING_SILENCE_SECONDS", 1.0 if name == "silent" else 10.0)

    async def good(_: web.Request) -> web.Response:
        return await _give(await whole(A))

    async def scenario() -> None:
        async with sibling(BAD[name]) as bad, sibling(good) as next_one:
            after, handover = blank(siblings=(bad, next_one))
            await load(after)
            assert (after.restored_blocks, set(handover.waiting)) == (2, {A})

    run(scenario())
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "the snapshot is not used: " in warnings[0].getMessage()


def test_a_sibling_that_asks_for_a_key_gets_it() -> None:
    async def careful(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer ours"
        return await _give(await whole(A))

    async def scenario() -> None:
        async with sibling(careful) as url:
            after, handover = blank(siblings=(url,), sibling_api_key="ours")
            await load(after)
            assert set(handover.waiting) == {A}

    run(scenario())


def test_a_sibling_that_knows_nothing_leaves_it_to_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "index")

    async def empty(_: web.Request) -> web.Response:
        return await _give(await whole())

    async def scenario() -> None:
        await about(B, path=path).save()
        async with sibling(empty) as url:
            after, handover = blank(siblings=(url,), path=path)
            await load(after)
            assert set(handover.waiting) == {B}

    run(scenario())


def test_what_was_not_loaded_yet_is_not_saved_over(tmp_path: Path) -> None:
    path = tmp_path / "index"

    async def scenario() -> None:
        await about(A, path=str(path)).save()
        first = await asyncio.to_thread(path.read_bytes)
        async with sibling(never) as url:
            after, _ = blank(path=str(path), siblings=(url,))
            loading = asyncio.create_task(load(after))
            await asyncio.sleep(0.05)
            assert not after.is_loaded
            loading.cancel()
            await asyncio.wait([loading])
            await after.save()
        assert (after.saves, await asyncio.to_thread(path.read_bytes)) == (0, first)

    run(scenario())


def test_the_log_and_the_status_tell_what_was_saved_and_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "index")
    after, _ = blank(path=path)

    async def scenario() -> None:
        before = about(A, B, path=path)
        assert before.told().saved_at is None
        with caplog.at_level(logging.INFO):
            await before.save()
            assert not caplog.records
            await before.save(logging.INFO)
            assert f"saved 4 blocks of 2 replicas to {path}" in caplog.text
        saved_at = before.told().saved_at
        assert saved_at is not None
        assert abs(saved_at - time.time()) < 5
        await load(after)

    run(scenario())
    told = after.told()
    assert (told.is_loaded, told.taken_over_from, told.taken_over_blocks) == (True, path, 4)
