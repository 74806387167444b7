import socket

import pytest

from devtools import s3_servers
from devtools.s3_servers import ServerStartError, free_port


def test_a_free_port_is_none_that_outgoing_connections_are_given(monkeypatch):
    monkeypatch.setattr(s3_servers, "_outgoing_ports", lambda: (10100, 65435))
    ports = {free_port() for _ in range(50)}
    assert ports <= {*range(10000, 10100), *range(65436, 65536)}


def test_the_kernel_is_asked_for_the_ports_of_outgoing_connections():
    first, last = s3_servers._outgoing_ports()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as outgoing,
    ):
        assert first <= outgoing.getsockname()[1] <= last


def test_a_free_port_can_be_bound_again_and_again():
    port = free_port()
    for _ in range(3):
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_ports_differ_even_for_those_who_choose_at_once():
    # Of some 27,000: that three of 20 are the same has a chance of one in a million.
    assert len({free_port() for _ in range(20)}) >= 18


def test_a_port_that_is_taken_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(s3_servers, "_outgoing_ports", lambda: (port + 1, 65535))
        monkeypatch.setattr(s3_servers, "_FIRST_PORT", port)
        with pytest.raises(ServerStartError):
            free_port()


def test_where_outgoing_connections_are_given_all_ports_it_is_one_of_them(monkeypatch):
    monkeypatch.setattr(s3_servers, "_outgoing_ports", lambda: (1024, 65535))
    assert 10000 <= free_port() <= 65535
