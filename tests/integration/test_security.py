"""Keys and TLS of a gateway as it is run: files that change under it, SIGHUP, and commands that bring a key."""

import json
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from simulations.demo import free_ports
from tests.support.certificates import Authority, needs_openssl
from tests.support.processes import SECONDS, finished, started, stopped, wait_for

KEY, OTHER, OPS = "sk-aaaaaaaaaaaaaaaa", "sk-bbbbbbbbbbbbbbbb", "sk-cccccccccccccccc"


def write_keys(file: Path, *keys: str) -> None:
    lines = [f'[[keys]]\nkey = "{key}"\ntenant = "a"\nadmin = {str(key == OPS).lower()}\n' for key in keys]
    fresh = file.with_suffix(".new")
    fresh.write_text("".join(lines))
    fresh.rename(file)


def config(folder: Path, replica: int, **sections: Any) -> str:
    keys, file = folder / "keys.toml", folder / "kvlb.toml"
    write_keys(keys, KEY, OPS)
    text = f'[auth]\nkeys_file = "{keys}"\n[[replicas]]\nurl = "http://127.0.0.1:{replica}"\n'
    for name, fields in sections.items():
        text += f"[{name}]\n" + "".join(f"{field} = {json.dumps(value)}\n" for field, value in fields.items())
    file.write_text(text)
    return str(file)


def status(url: str, key: str, context: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def wait_until_served(process: "subprocess.Popen[str]", url: str, key: str, context: ssl.SSLContext) -> None:
    """Return once somebody whom ``context`` trusts answers, and then with 200."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            assert status(url, key, context) == 200
        except urllib.error.URLError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@needs_openssl
def test_certificates_and_keys_are_read_again_on_sighup_and_requests_go_on(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    cert, key = old.signed("gateway")
    other_cert, other_key = new.signed("gateway")
    port, replica = free_ports(2)
    file = config(tmp_path, replica, tls={"cert_file": cert, "key_file": key})
    url = f"https://127.0.0.1:{port}/v1/models"
    with started("serve", "--config", file, "--port", str(port)) as process:
        before, after = (ssl.create_default_context(cafile=each.file) for each in (old, new))
        wait_until_served(process, url, KEY, before)
        assert status(url, OTHER, before) == 401
        write_keys(tmp_path / "keys.toml", OTHER)
        shutil.copy(other_cert, cert)
        shutil.copy(other_key, key)
        process.send_signal(signal.SIGHUP)
        wait_until_served(process, url, OTHER, after)
        assert status(url, KEY, after) == 401
        code, told = stopped(process)
    assert code == 0
    assert not any(key in told for key in (KEY, OTHER, OPS))


def test_commands_bring_the_key_of_an_admin(tmp_path: Path) -> None:
    port, engine, events, replay = free_ports(4)
    engines = ["--port", str(engine), "--event-port", str(events), "--replay-port", str(replay)]
    gateway = f"http://127.0.0.1:{port}"
    with started("fake-engine", *engines) as replica:
        wait_for(f"http://127.0.0.1:{engine}/health", replica)
        with started("serve", "--config", config(tmp_path, engine), "--port", str(port)) as process:
            wait_for(f"{gateway}/ready", process)
            assert finished("doctor", "--gateway", gateway, "--api-key", OPS)[0] == 0
            assert finished("explain", "--gateway", gateway, "--api-key", OPS, "--prompt", "a b c")[0] == 0
            for key, said in ((KEY, "admin = true"), (OTHER, "API key")):
                code, told = finished("doctor", "--gateway", gateway, "--api-key", key)
                assert (code, said in told[-1]) == (3, True), told
            assert status(f"{gateway}/metrics", KEY) == 403


def test_a_file_of_keys_that_cannot_be_used_ends_the_start_in_one_line(tmp_path: Path) -> None:
    file = config(tmp_path, 9)
    (tmp_path / "keys.toml").write_text(f'[[keys]]\nkey = "{KEY}"\n')
    code, told = finished("serve", "--config", file, "--port", "0")
    assert (code, len(told)) == (2, 1)
    assert told[0].startswith("kvlb: auth.keys_file: keys[0]: ")
    assert KEY not in told[0]
