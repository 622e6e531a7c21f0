"""``balancer/commands/listening.py``: several sockets at one address, and nobody else's among them."""

import socket

import pytest

from balancer.commands.listening import bind, bind_many
from balancer.errors import ConfigError
from balancer.settings import ServerSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_listen_at_one_address_and_share_who_comes(host: str) -> None:
    listeners = bind_many(ServerSettings(host=host, port=0), 3)
    address = listeners[0].getsockname()
    assert {each.getsockname() for each in listeners} == {address}
    clients = [socket.create_connection(address[:2]) for _ in range(60)]
    taken = []
    for each in listeners:
        each.setblocking(False)
        taken.append(0)
        while True:
            try:
                each.accept()[0].close()
            except BlockingIOError:
                break
            taken[-1] += 1
    for each in (*clients, *listeners):
        each.close()
    assert sum(taken) == 60
    assert min(taken) > 0


def test_an_address_is_not_shared_with_another_kvlb() -> None:
    listeners = bind_many(ServerSettings(port=0), 2)
    server = ServerSettings(port=listeners[0].getsockname()[1])
    with pytest.raises(ConfigError, match="is in use; choose another one with --port"):
        bind_many(server, 2)
    with pytest.raises(ConfigError, match="is in use; choose another one with --port"):
        bind(server)
    for each in listeners:
        each.close()
