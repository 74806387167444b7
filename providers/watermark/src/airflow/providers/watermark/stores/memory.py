"""Watermarks in the memory of this process, for tests: they are gone when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey

__all__ = ["MemoryStore"]


class MemoryStore(BaseWatermarkStore):
    """Keeps watermarks as JSON text in a dictionary. For tests only: it survives nothing."""

    compare_and_set = True
    durable: ClassVar[bool] = False

    def __init__(self) -> None:
        self._texts: dict[WatermarkKey, str] = {}

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark."""
        await asyncio.sleep(0)
        return self._load(key)

    def _load(self, key: WatermarkKey) -> dict[str, Any] | None:
        text = self._texts.get(key)
        return None if text is None else json.loads(text)

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Write a watermark."""
        text = json.dumps(value, allow_nan=False)
        await asyncio.sleep(0)
        self.compare(key, self._load(key), expected)
        self._texts[key] = text

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """Remove a watermark."""
        await asyncio.sleep(0)
        self.compare(key, self._load(key), expected)
        self._texts.pop(key, None)

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks."""
        await asyncio.sleep(0)
        return list(self._texts)
