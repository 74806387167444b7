"""A connection to Postgres that outlives its server: whoever uses it is told of an outage, and can go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Self

import asyncpg  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_OUTAGE = 120.0
"""Seconds for which the server may be away; an error thereafter is raised."""
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # for the next statement, if the server says in between that it ends
    OSError,
)
"""What is raised where the server ends, or is away."""


class OutageError(Exception):
    """No answer came, for the server ended, or is away."""


class Session:
    """A connection that can be made again: an asynchronous context manager."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    async def __aenter__(self) -> Self:
        self._connection = await asyncpg.connect(self._uri)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.terminate()

    async def execute(self, statement: str) -> None:
        """Run a statement.

        :raises OutageError: no answer came; whether the statement took effect is not known
        """
        with self._outages():
            await self._connection.execute(statement)

    async def fetch(self, query: str, *values: object) -> list[Any]:
        """Run a query, and return its rows.

        :raises OutageError: no answer came
        """
        with self._outages():
            rows: list[Any] = await self._connection.fetch(query, *values)
        return rows

    async def ask(self, query: str, *values: object) -> list[Any]:
        """Run a query, which only reads, until it is answered, if need be by a new connection."""
        while True:
            try:
                return await self.fetch(query, *values)
            except OutageError:
                await self.reconnect()

    async def reconnect(self) -> None:
        """Connect anew, and wait for the server meanwhile, but not for ever."""
        self._connection.terminate()
        deadline = time.monotonic() + _LONGEST_OUTAGE
        while True:
            try:
                self._connection = await asyncpg.connect(self._uri)
            except _LOST:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    @contextlib.contextmanager
    def _outages(self) -> Iterator[None]:
        try:
            yield
        except _LOST as error:
            if isinstance(error, asyncpg.InterfaceError) and not self._connection.is_closed():
                raise  # a mistake of ours
            raise OutageError from error
