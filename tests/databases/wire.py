"""A wire to a Postgres server that can be stopped between two answers, cut, and look like a pooler's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devtools.databases import Postgres

_NO_TLS = b"N"
_READY = b"Z"
_BACKEND_KEY = b"K"


class Wire:
    """
    Passes on what both sides say, from a port of its own; it must be opened in a running event loop.

    :param port: The server's.
    :ivar after_answer: Called once, before the end of the server's next answer is passed on.
    :ivar pooled: Whether clients are told another backend's number, as poolers do.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.after_answer: Callable[[], Awaitable[None]] | None = None
        self.pooled = False
        self._connections: set[asyncio.StreamWriter] = set()

    def in_front_of(self, database: Postgres) -> Postgres:
        """Give the same database, as reached through this wire."""
        return replace(database, port=self.port)

    @contextlib.asynccontextmanager
    async def opened(self):
        """Be reachable."""
        server = await asyncio.start_server(self._connected, sock=self._socket)
        try:
            yield self
        finally:
            server.close()
            self.break_connections()

    def break_connections(self) -> None:
        """End all connections, without a word."""
        for writer in self._connections:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio does so by itself only where it has made the socket; else an answer takes 40 ms.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        both = {writer, server_writer}
        self._connections |= both
        ways = [
            asyncio.create_task(self._pass(reader, server_writer)),
            asyncio.create_task(self._answer(server_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the test is over; the callback of asyncio's server would complain
        finally:
            self._connections -= both
            for each in both:
                each.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = await reader.readexactly(1)
        if kind == _NO_TLS:  # an answer without a length
            writer.write(kind)
            kind = await reader.readexactly(1)
        while True:
            length = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(length, "big") - 4)
            if kind == _BACKEND_KEY and self.pooled:
                body = b"\x00\x00\x00\x07" + body[4:]
            if kind == _READY and self.after_answer is not None:
                action, self.after_answer = self.after_answer, None
                await action()
            writer.write(kind + length + body)
            await writer.drain()
            kind = await reader.readexactly(1)
