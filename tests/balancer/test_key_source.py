"""``balancer/key_source.py``: keys and secrets are read at the start or not at all, and later changes never take keys away."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from balancer import key_source
from balancer.errors import ConfigError
from balancer.key_source import Watched, kept_fresh, read_keys, read_salts
from balancer.security import AuthSettings, TenantSettings
from tests.support.waiting import eventually, run

KEY = "sk-0123456789abcdef"
OTHER = "sk-fedcba9876543210"


def test_keys_come_from_a_file_and_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\n')
    monkeypatch.setenv("KVLB_TEST_KEYS", f"b:{OTHER}")
    ring = read_keys(AuthSettings(keys_file=str(file), keys_variable="KVLB_TEST_KEYS"))
    assert ring is not None
    assert [ring.caller(KEY).tenant, ring.caller(OTHER).tenant] == ["a", "b"]
    assert read_keys(AuthSettings()) is None


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLB_TEST_KEYS", "")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("")
    for auth, said in (
        (AuthSettings(keys_file=str(tmp_path / "none")), r"auth\.keys_file: cannot read"),
        (AuthSettings(keys_file=str(tmp_path)), r"auth\.keys_file: cannot read"),
        (AuthSettings(keys_file="\0"), r"auth\.keys_file: cannot read"),
        (AuthSettings(keys_file=str(tmp_path / "binary")), r"auth\.keys_file: cannot read"),
        (AuthSettings(keys_file=str(tmp_path / "empty")), r"auth\.keys_file: keys: none"),
        (AuthSettings(keys_variable="KVLB_TEST_KEYS"), r"auth\.keys_variable: .* not set"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_keys(auth)


def test_the_secret_of_salts_comes_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    monkeypatch.setenv("KVLB_TEST_SECRET", "0123456789abcdef")
    salts = read_salts(TenantSettings(isolation=True, secret_file=str(file)))
    same = read_salts(TenantSettings(isolation=True, secret_variable="KVLB_TEST_SECRET"))
    assert salts is not None
    assert same is not None
    assert salts.salt("a") == same.salt("a")
    assert read_salts(TenantSettings(secret_file=str(file))) is None
    with pytest.raises(ConfigError, match="not set"):
        read_salts(TenantSettings(isolation=True, secret_variable="KVLB_TEST_NONE"))


def test_a_hangup_ends_nobody_who_has_nothing_to_read_again() -> None:
    async def check() -> None:
        async with kept_fresh([]):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

    run(check())


def test_a_changed_file_is_read_again_and_a_bad_one_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_source, "LOOK_SECONDS", 0.01)
    file = tmp_path / "keys.toml"
    read: list[str] = []

    def reload() -> None:
        text = file.read_text()
        if text == "bad":
            raise ConfigError("is bad")
        read.append(text)

    async def check() -> None:
        file.write_text("one")
        watched = asyncio.create_task(Watched([str(file)], reload, "keys").run())
        for text in ("two", "bad", "three"):
            fresh = tmp_path / "fresh"
            fresh.write_text(text)
            fresh.rename(file)
            await eventually(lambda: file.read_text() in read or "is bad" in caplog.text)
        await eventually(lambda: read[-1] == "three")
        watched.cancel()

    with caplog.at_level(logging.INFO):
        run(check())
    assert read == ["two", "three"]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
