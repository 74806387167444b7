"""What our own servers share: they listen on loopback, from a thread and an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Self


class StubServer(ABC):
    """A context manager that serves.

    :param name: of the thread.
    :param port: the loopback port; 0 takes a free one, and keeps it over :meth:`stop` and :meth:`start`.
    """

    def __init__(self, name: str, port: int) -> None:
        self.port = port
        self._thread_name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; a server that was stopped listens on its former port, with all it had stored."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name=self._thread_name, daemon=True
        )
        self._thread.start()
        ready.result()

    def stop(self) -> None:
        """Break every connection and refuse new ones."""
        if self._loop and self._thread:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = self._thread = None

    async def _serve(self, ready: Future[None]) -> None:
        try:
            server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        except OSError as error:
            ready.set_exception(error)
            return
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self.port = server.sockets[0].getsockname()[1]
        ready.set_result(None)
        await self._stopping.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        # Cancelled when the loop ends; a task of start_server that says so is reported as failed.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    @abstractmethod
    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection goes on."""
