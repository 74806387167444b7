"""The bad network does what it is told: else the tests of sources would test nothing."""

from __future__ import annotations

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from devtools.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = b"x" * 100_000

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


def test_it_passes_what_it_is_given(network: TcpProxy) -> None:
    """No harm is done before it is told to."""
    assert _get(network) == (200, len(BODY))
    assert network.cut_off == 0


def test_it_refuses_until_it_is_healed(network: TcpProxy) -> None:
    """Nobody listens meanwhile."""
    network.refuse()
    with pytest.raises(ConnectionRefusedError):
        _get(network)
    network.heal()
    assert _get(network) == (200, len(BODY))


def test_it_is_slow(network: TcpProxy) -> None:
    """Each few kilobytes wait."""
    network.slow(0.05)
    began = time.monotonic()
    assert _get(network) == (200, len(BODY))
    assert time.monotonic() - began > 1


def test_it_cuts_off_an_answer(network: TcpProxy) -> None:
    """Half an answer arrives."""
    network.cut(after=1000)
    with pytest.raises(http.client.IncompleteRead) as caught:
        _get(network)
    assert 0 < len(caught.value.partial) < 1000
    assert network.cut_off == 1


def test_it_denies_all_but_a_new_key(network: TcpProxy) -> None:
    """The server does not hear of the others."""
    network.deny(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", unless=b"new")
    assert _get(network) == (403, 2)
    assert _get(network, key="new") == (200, len(BODY))
