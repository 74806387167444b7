"""A bad network on loopback: a proxy that refuses, delays, throttles and cuts off, when it is told to."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

from devtools.s3_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine

_CHUNK = 4096


class TcpProxy:
    """Stands between clients and one server: a context manager.

    :param port: of the server, on loopback
    :ivar port: where clients connect
    :ivar cut_off: connections that were ended in the middle of an answer
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.cut_off = 0
        self._target = port
        self._delay = 0.0
        self._cut_after: int | None = None
        self._denial: tuple[bytes, bytes] | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
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

    def slow(self, delay: float) -> None:
        """Wait before each few kilobytes that pass, in either direction.

        :param delay: seconds
        """
        self._delay = delay

    def cut(self, after: int) -> None:
        """End each connection in the middle of an answer.

        :param after: bytes of an answer that still pass
        """
        self._cut_after = after

    def deny(self, answer: bytes, *, unless: bytes) -> None:
        """Answer in place of the server, and hang up, unless a request has something in it.

        :param answer: all of the answer
        :param unless: what a request that passes has near its beginning, such as a part of its credentials
        """
        self._denial = answer, unless

    def heal(self) -> None:
        """Do no more harm."""
        self._delay, self._cut_after, self._denial = 0.0, None, None
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, requests}
        if self._server is None:  # told to refuse meanwhile
            for each in both:
                each.transport.abort()
            return
        self._writers |= both
        passed = _Passed()
        pumps = {
            asyncio.create_task(self._ask(reader, requests, writer, passed)),
            asyncio.create_task(self._answer(answers, writer, passed)),
        }
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)  # both ways end together
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._writers -= both
        requests.transport.abort()
        writer.close()  # what was written still arrives

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        passed: _Passed,
    ) -> None:
        while data := await self._read(reader):
            passed.answered = 0
            if self._denial is not None and self._denial[1] not in data:
                client.write(self._denial[0])
                await client.drain()
                client.close()
                return
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: _Passed
    ) -> None:
        while data := await self._read(reader):
            if self._cut_after is not None and passed.answered + len(data) > self._cut_after:
                writer.write(data[: self._cut_after - passed.answered])
                await writer.drain()
                self.cut_off += 1
                return
            passed.answered += len(data)
            writer.write(data)
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(_CHUNK)
        if data and self._delay:
            await asyncio.sleep(self._delay)
        return data


class _Passed:
    """How many bytes of the present answer have passed."""

    answered = 0
