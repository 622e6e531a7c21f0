"""``kvlb doctor`` before fleets whose caches go from one to another: what engines tell, and what a probe leaves behind."""

import pytest

from balancer.checks.finding import Verdict
from simulations.fake.transfers import ConnectorName
from tests.integration.test_doctor import Doctor
from tests.support.disaggregated import pair
from tests.support.engines import config, fleet
from tests.support.waiting import eventually, run

CHECKS = ("roles", "ends", "connector", "channel", "stores")


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


async def told(doctor: Doctor, *words: str) -> dict[tuple[str, Verdict], str]:
    _, found = await doctor(*words)
    return {key: text for key, text in found.items() if key[0] in CHECKS}


@pytest.mark.parametrize("connector", ["nixl", "nixl_push"])
def test_a_probe_finds_out_how_blocks_are_fetched_and_leaves_none_behind(
    doctor: Doctor, connector: ConnectorName
) -> None:
    async def check() -> None:
        async with pair(connector, prefills=2) as two:
            found = await told(doctor, "--gateway", two.front.url)
            assert set(found) == {
                ("roles", Verdict.OK),
                ("ends", Verdict.SKIPPED),
                ("ends", Verdict.OK),
                ("connector", Verdict.OK),
                ("channel", Verdict.SKIPPED),
            }
            assert found["connector", Verdict.OK].startswith("NixlConnector, by its metrics or the settings")
            assert found["roles", Verdict.OK].startswith("2 prefill, 1 decode")
            found = await told(doctor, "--gateway", two.front.url, "--probe")
            assert {verdict for check, verdict in found if check == "connector"} == {Verdict.OK}
            # Fake engines name an address at which nobody listens.
            address = f"127.0.0.1:{two.prefills[1].process.transfers.port}"
            assert f"{address}, where others reach its cache, cannot be reached" in found["channel", Verdict.DEGRADED]
            await eventually(two.is_at_rest)

    run(check())


def test_engines_that_do_not_transfer_are_found_out_by_a_probe(doctor: Doctor) -> None:
    async def check() -> None:
        async with pair("shared", name="nixl") as two:
            found = await told(doctor, "--gateway", two.front.url, "--probe")
            assert "without what it takes to fetch the blocks" in found["connector", Verdict.BROKEN]
            await eventually(two.is_at_rest)

    run(check())


def test_bootstrap_servers_are_asked_for_who_is_behind_them(doctor: Doctor) -> None:
    async def check() -> None:
        async with pair("mooncake") as two:
            found = await told(doctor, "--gateway", two.front.url, "--probe")
            # The fake one names a worker at a port where nobody listens.
            assert "127.0.0.1:1, where others reach its cache, cannot be reached" in found["channel", Verdict.DEGRADED]
            assert ("roles", Verdict.OK) in found

    run(check())


def test_what_travels_by_a_store_needs_no_address(doctor: Doctor) -> None:
    async def check() -> None:
        async with pair("shared") as two:
            found = await told(doctor, "--gateway", two.front.url, "--probe")
            assert not [key for key in found if key[0] == "channel"]
            assert ("ends", Verdict.OK) in found

    run(check())


def test_replicas_that_share_a_store_and_hash_otherwise_are_named(doctor: Doctor) -> None:
    async def check() -> None:
        store = {"name": "files", "connector": "events", "tiers": ["STORAGE/REMOTE"]}
        async with fleet(config(), config(block_size=32), config(), stores=[store]) as over:
            found = await told(doctor, "--gateway", over.front.url)
            names = [engine.url[7:] for engine in over.engines]
            text = found["stores", Verdict.DEGRADED]
            assert f"differ in block size: 16 ({names[0]}, {names[2]}); 32 ({names[1]})" in text
        async with fleet(config(), config(), stores=[store]) as over:
            found = await told(doctor, "--gateway", over.front.url)
            assert set(found) == {("stores", Verdict.OK)}

    run(check())
