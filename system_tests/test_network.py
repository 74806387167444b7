"""The bad network does what it is told: else the tests of sources would test nothing."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from devtools.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = b"x" * 100_000
REQUEST = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n"

pytestmark = pytest.mark.quick


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def network() -> Iterator[TcpProxy]:
    """Put a network in front of a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with TcpProxy(server.server_port) as network:
            yield network
        server.shutdown()
        thread.join()


def _get(network: TcpProxy, key: str = "old") -> tuple[int, int]:
    connection = http.client.HTTPConnection("127.0.0.1", network.port, timeout=20)
    try:
        connection.request("GET", "/", headers={"Key": key})
        response = connection.getresponse()
        return response.status, len(response.read())
    finally:
        connection.close()


def _connected(network: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", network.port), timeout=20)


def _read_answer(connection: socket.socket, *, asked: bool = False) -> int:
    """Ask, unless it was, and return the length of the body that came."""
    if not asked:
        connection.sendall(REQUEST)
    response = http.client.HTTPResponse(connection)
    response.begin()
    return len(response.read())


def _wait_until(answer: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not answer():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_passes_what_it_is_given(network: TcpProxy) -> None:
    """No harm is done before it is told to."""
    assert _get(network) == (200, len(BODY))
    assert (network.cut_off, network.delayed, network.held) == ([], 0, 0)


def test_it_refuses_until_it_is_healed(network: TcpProxy) -> None:
    """Nobody listens meanwhile, and connections that stand are ended."""
    with _connected(network) as connection:
        connection.sendall(REQUEST)
        assert connection.recv(1)
        network.refuse()
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
    with pytest.raises(ConnectionRefusedError):
        _get(network)
    network.heal()
    assert _get(network) == (200, len(BODY))


def test_it_is_slow(network: TcpProxy) -> None:
    """Each few kilobytes wait."""
    network.slow(0.05)
    began = time.monotonic()
    assert _get(network) == (200, len(BODY))
    assert time.monotonic() - began >= 0.05 * network.delayed
    assert network.delayed > len(BODY) / 4096


def test_it_hangs_until_it_is_healed(network: TcpProxy) -> None:
    """Connections stand, and new ones are made, but nothing passes; then all that was sent meanwhile."""
    with _connected(network) as old:
        assert _read_answer(old) == len(BODY)
        network.hang()
        with _connected(network) as new:
            for connection in (old, new):
                connection.sendall(REQUEST)
                connection.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(20)
            assert network.held == 2
            network.heal()
            for connection in (old, new):
                assert _read_answer(connection, asked=True) == len(BODY)


def test_it_refuses_while_it_hangs(network: TcpProxy) -> None:
    """What is held back does not keep it."""
    network.hang()
    with _connected(network) as connection:
        connection.sendall(REQUEST)
        _wait_until(lambda: network.held == 1)
        network.refuse()
        assert not connection.recv(1)
    network.heal()
    assert _get(network) == (200, len(BODY))


def test_it_cuts_off_answers_at_one_place_after_the_other(network: TcpProxy) -> None:
    """In the status line, in the body behind so many bytes, and in the body behind a word."""
    network.cut(10, 1000, b"x" * 5000)
    with pytest.raises(http.client.BadStatusLine):
        _get(network)
    for length in (1000, None):
        with pytest.raises(http.client.IncompleteRead) as caught:
            _get(network)
        assert length is None or len(network.cut_off[-1]) == length
        assert caught.value.partial == network.cut_off[-1].partition(b"\r\n\r\n")[2]
    assert caught.value.partial == b"x" * 5000
    with pytest.raises(http.client.BadStatusLine):
        _get(network)
    assert len(network.cut_off) == 4


def test_it_cuts_off_no_answer_that_ends_before_the_place(network: TcpProxy) -> None:
    """Nor one that ends just there: nothing would be missing."""
    network.cut(BODY + b"x")
    assert _get(network) == (200, len(BODY))
    network.cut(BODY)
    assert _get(network) == (200, len(BODY))
    assert not network.cut_off


def test_it_counts_from_the_last_request(network: TcpProxy) -> None:
    """A connection that has had many an answer is cut within the next one."""
    with _connected(network) as connection:
        _read_answer(connection)
        network.cut(100)
        connection.sendall(REQUEST)
        with connection.makefile("rb") as file:
            assert file.read() == network.cut_off[0]
    assert len(network.cut_off[0]) == 100
    assert network.cut_off[0].startswith(b"HTTP/1.1 200 OK\r\n")


def test_it_denies_all_but_a_new_key(network: TcpProxy) -> None:
    """The server does not hear of the others."""
    network.deny(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", unless=b"new")
    assert _get(network) == (403, 2)
    assert _get(network, key="new") == (200, len(BODY))
