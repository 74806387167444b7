"""A store around a store, which tells what was saved, and can be broken, held and cut off."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey

__all__ = ["RecordingStore"]


class RecordingStore(BaseWatermarkStore):
    """
    Passes everything on to another store, as long as the test lets it.

    :param inner: The store that holds the watermark; it outlives this one, as a database outlives a process.
    :param broken: Whether it is broken from the start.
    :ivar saved: What was written, oldest first.
    :ivar asked: How many saves were begun.
    :ivar broken: While true, every call is a
        :class:`~airflow.providers.watermark.exceptions.StoreError`, and nothing is written.
    :ivar held: While cleared, saves wait before they write.
    :ivar waiting: Set once a save waits because of that.
    """

    compare_and_set: ClassVar[bool] = True

    def __init__(self, inner: BaseWatermarkStore, *, broken: bool = False) -> None:
        self._inner = inner
        self._cut = False
        self.saved: list[dict[str, Any]] = []
        self.asked = 0
        self.broken = broken
        self.held = asyncio.Event()
        self.held.set()
        self.waiting = asyncio.Event()

    def cut(self) -> None:
        """From now on nothing comes through, as after SIGKILL: whoever calls is cancelled."""
        self._cut = True

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark."""
        await self._pass()
        return await self._inner.load(key)

    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        """Write a watermark."""
        self.asked += 1
        await self._pass()
        if not self.held.is_set():
            self.waiting.set()
            await self.held.wait()
        await self._inner.save(key, value, expected=expected)
        self.saved.append(value)

    async def _pass(self) -> None:
        if self._cut:
            raise asyncio.CancelledError
        if self.broken:
            msg = "the test has broken the store"
            raise StoreError(msg)
