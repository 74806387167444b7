"""
Clients that watchers share: building one takes time and memory, and one serves many.

Each event loop has its own, since a client's sockets and locks belong to a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["SharedClients"]


class Closable(Protocol):
    """What can be shared."""

    async def close(self) -> None:
        """Release what the client holds."""


C = TypeVar("C", bound=Closable)


class _Entry(Generic[C]):
    """A client, maybe still being built, and how many use it or wait for it."""

    def __init__(self, build: Callable[[], Awaitable[C]]) -> None:
        self.building = asyncio.ensure_future(_call(build))
        self.users = 0

    @property
    def client(self) -> C | None:
        """The client, once it is built."""
        task = self.building
        return task.result() if task.done() and not task.cancelled() and not task.exception() else None

    async def close(self) -> None:
        """Close the client, or give up building it."""
        # Without waiting for one that is built: a cancellation meanwhile would leave it open.
        if self.building.cancel():
            await asyncio.wait([self.building])
        if self.client is not None:
            await self.client.close()


class SharedClients(Generic[C]):
    """Clients by what they are made from; each is closed with its last user."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Entry[C]]] = (
            WeakKeyDictionary()
        )

    @asynccontextmanager
    async def use(self, key: Hashable, build: Callable[[], Awaitable[C]]) -> AsyncGenerator[C, None]:
        """
        Give the client of a key, and build it if there is none; those who ask meanwhile wait for the same.

        :param key: All that the client is made from: another key is another client.
        :param build: Builds one; must leave nothing behind when it fails or is cancelled.
        :raises Exception: Whatever ``build`` raises.
        """
        entries = self._entries()
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry(build)
        entry.users += 1
        try:
            # Shielded: one who gives up waiting must not take the client from the others.
            yield await asyncio.shield(entry.building)
        finally:
            entry.users -= 1
            failed = entry.building.done() and entry.client is None
            if entries.get(key) is entry and (failed or not entry.users):
                del entries[key]
            if not entry.users:
                await entry.close()

    def retire(self, client: C) -> None:
        """Give a client to nobody else from now on, since its credentials were refused, say."""
        entries = self._entries()
        for key in [key for key, entry in entries.items() if entry.client is client]:
            del entries[key]

    def _entries(self) -> dict[Hashable, _Entry[C]]:
        return self._loops.setdefault(asyncio.get_running_loop(), {})


async def _call(build: Callable[[], Awaitable[C]]) -> C:
    return await build()
