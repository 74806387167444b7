"""A store around a store, which tells what was saved, and can be broken, held and cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey

__all__ = ["RecordingStore", "Trouble"]


@dataclass(slots=True)
class Trouble:
    """
    What befalls one of the next accesses to a store.

    :param accesses: How many go well before.
    :param done: Whether the access still reaches the store, and only its answer is lost.
    :param deadly: Whether the process dies of it, as of SIGKILL; else it is a
        :class:`~airflow.providers.watermark.exceptions.StoreError`.
    :param happened: Whether it has happened.
    """

    accesses: int
    done: bool
    deadly: bool
    happened: bool = False


class RecordingStore(BaseWatermarkStore):
    """
    Passes everything on to another store, as long as the test lets it.

    :param inner: The store that holds the watermark; it outlives this one, as a database outlives a process.
    :param broken: Whether it is broken from the start.
    :ivar saved: What was written, oldest first.
    :ivar asked: How many saves were begun.
    :ivar broken: While true, every call is a
        :class:`~airflow.providers.watermark.exceptions.StoreError`, and nothing is written.
    :ivar trouble: What befalls a coming access, once; ``None`` afterwards.
    :ivar is_cut: Whether nothing comes through any more.
    :ivar held: While cleared, saves wait before they write.
    :ivar waiting: Set once a save waits because of that.
    """

    compare_and_set = True

    def __init__(self, inner: BaseWatermarkStore, *, broken: bool = False) -> None:
        self._inner = inner
        self.is_cut = False
        self.saved: list[dict[str, Any]] = []
        self.asked = 0
        self.broken = broken
        self.trouble: Trouble | None = None
        self.held = asyncio.Event()
        self.held.set()
        self.waiting = asyncio.Event()

    def cut(self) -> None:
        """From now on nothing comes through, as after SIGKILL: whoever calls is cancelled."""
        self.is_cut = True

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark."""
        async with self._access():
            return await self._inner.load(key)

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Write a watermark."""
        self.asked += 1
        async with self._access():
            if not self.held.is_set():
                self.waiting.set()
                await self.held.wait()
            await self._inner.save(key, value, expected=expected)
            self.saved.append(value)

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """Remove a watermark."""
        async with self._access():
            await self._inner.delete(key, expected=expected)

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks."""
        async with self._access():
            return await self._inner.keys()

    @asynccontextmanager
    async def _access(self) -> AsyncIterator[None]:
        if self.is_cut:
            raise asyncio.CancelledError
        if self.broken:
            msg = "the test has broken the store"
            raise StoreError(msg)
        trouble = self._trouble_now()
        if trouble is not None and not trouble.done:
            self._befall(trouble)
        yield
        if trouble is not None:
            self._befall(trouble)

    def _trouble_now(self) -> Trouble | None:
        trouble = self.trouble
        if trouble is not None and trouble.accesses > 0:
            trouble.accesses -= 1
            return None
        self.trouble = None
        return trouble

    def _befall(self, trouble: Trouble) -> None:
        trouble.happened = True
        if trouble.deadly:
            self.cut()
            raise asyncio.CancelledError
        msg = "the store's answer was lost" if trouble.done else "the store did not answer"
        raise StoreError(msg)
