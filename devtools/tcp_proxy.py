"""A bad network on loopback: it refuses, hangs, delays, cuts off and denies, when it is told to.

It counts what it did, so that a test can tell whether its harm reached anybody.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any, Self

from devtools.s3_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

_CHUNK = 4096

Place = int | bytes
"""Where in an answer a connection ends: behind so many bytes, or behind the first occurrence of these."""


class TcpProxy:
    """Stands between clients and one server: a context manager.

    :param port: of the server, on loopback
    :ivar port: where clients connect
    :ivar cut_off: of each connection that was ended in the middle of an answer, what of the answer had passed
    :ivar delayed: how many pieces had to wait, each of a few kilobytes at most
    :ivar held: how many pieces were held back until the network was healed
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.cut_off: list[bytes] = []
        self.delayed = self.held = 0
        self._target = port
        self._delay = 0.0
        self._places: Iterator[Place] | None = None
        self._denial: tuple[bytes, bytes] | None = None
        self._flows = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refuse(self) -> None:
        """Be gone: end all connections, and refuse new ones."""
        self._run(self._stop())

    def hang(self) -> None:
        """Let connections stand, and new ones be made, but nothing pass, in neither direction.

        So does a firewall that drops packets. What was sent meanwhile passes once the network is healed, as
        TCP would send it again.
        """
        self._run(self._hold())

    def slow(self, delay: float) -> None:
        """Wait before each few kilobytes that pass, in either direction.

        :param delay: seconds
        """
        self._delay = delay

    def cut(self, *places: Place) -> None:
        """End connections in the middle of an answer, each at the next of these places, over and over.

        An answer is what comes between two pieces of requests. One that ends before its place, or just there,
        passes; so a login passes on its way to the rows.

        :param places: where; bytes that never come do no harm
        """
        self._places = itertools.cycle(places)

    def deny(self, answer: bytes, *, unless: bytes) -> None:
        """Answer in place of the server, and hang up, unless a request has something in it.

        :param answer: all of the answer
        :param unless: what a request that passes has near its beginning, such as a part of its credentials
        """
        self._denial = answer, unless

    def heal(self) -> None:
        """Do no more harm."""
        self._delay, self._places, self._denial = 0.0, None, None
        self._run(self._start())

    def forget(self) -> None:
        """Count from nothing again."""
        self.cut_off, self.delayed, self.held = [], 0, 0

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> None:
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _hold(self) -> None:
        self._flows.clear()

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # told to refuse meanwhile
            writer.transport.abort()
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._serving.discard(task)
            if task.cancelled():
                writer.transport.abort()

        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        answer = _Answer()
        pumps = {
            asyncio.create_task(self._ask(reader, requests, writer, answer)),
            asyncio.create_task(self._answer(answers, writer, answer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)  # both ways end together
        finally:
            requests.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()  # what was written still arrives

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        answer: _Answer,
    ) -> None:
        while data := await self._read(reader):
            answer.passed.clear()
            if self._denial is not None and self._denial[1] not in data:
                client.write(self._denial[0])
                await client.drain()
                return
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: _Answer
    ) -> None:
        while data := await self._read(reader):
            before = len(answer.passed)
            answer.passed += data
            end = answer.end(self._places, before)
            if end is not None:
                del answer.passed[end:]
                self.cut_off.append(bytes(answer.passed))
            writer.write(bytes(answer.passed[before:]))
            await writer.drain()
            if end is not None:
                return

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(_CHUNK)
        if data and self._delay:
            self.delayed += 1
            await asyncio.sleep(self._delay)
        if not self._flows.is_set():
            self.held += bool(data)
            await self._flows.wait()
        return data


class _Answer:
    """The present answer of one connection, and where it is to end.

    :ivar passed: what has come of it so far
    """

    def __init__(self) -> None:
        self.passed = bytearray()
        self._places: Iterator[Place] | None = None
        self._place: Place = 0

    def end(self, places: Iterator[Place] | None, before: int) -> int | None:
        """Tell behind how many bytes the answer is to end, or None if it goes on.

        :param places: where connections end now; each takes one, the first time that it is asked
        :param before: how many bytes have passed for good
        """
        if places is None:
            return None
        if places is not self._places:
            self._places, self._place = places, next(places)
        end = self._place
        if isinstance(end, bytes):
            found = self.passed.find(end)
            end = found + len(end) if found >= 0 else len(self.passed)
        return max(end, before) if end < len(self.passed) else None
