"""Read and set a watermark by hand: in a task, a trigger or a test."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from airflow.providers.watermark.exceptions import ConfigurationError, StateError, WatermarkConflictError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store
from airflow.providers.watermark.watermark import WatermarkState, is_reset

if TYPE_CHECKING:
    from airflow.providers.watermark.position import Position
    from airflow.sdk import Asset

__all__ = ["AssetWatermark"]

_T = TypeVar("_T")
_TRIES: Final = 5
SETTLE_SECONDS: Final = 2.0
"""After this time a watcher that had read before a save has written, so that it is seen."""


@dataclass(frozen=True)
class AssetWatermark:
    """
    The watermark of an asset.

    Each method has an ``a...`` form for asynchronous code; the others must not be called while an event
    loop runs in the same thread.

    :param asset_name: The watched asset.
    :param namespace: By default the watcher's short name.
    :param key: By default a digest of what is watched; :meth:`of` finds it.
    :param store: Where it is kept: a class path, or what makes the store; by default the configured store.
    """

    asset_name: str
    namespace: str
    key: str
    store: str | Callable[[], BaseWatermarkStore] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, asset: Asset) -> Self:
        """
        Find the watermark of an asset with one of our watchers.

        :raises ConfigurationError: It has none, or several.
        """
        found = {
            key: getattr(watcher.trigger, "store", None)
            for watcher in asset.watchers
            if isinstance(key := getattr(watcher.trigger, "key", None), WatermarkKey)
        }
        if len(found) != 1:
            msg = f"asset {asset.name!r} has {len(found)} watermark watchers; name the watermark's key"
            raise ConfigurationError(msg)
        (key, store) = found.popitem()
        return cls(*key, store=store)

    async def aget_value(self, store: BaseWatermarkStore | None = None) -> Position | None:
        """
        Read the low watermark: an inclusive cut, everything at or before it has been delivered.

        :param store: By default the configured store.
        :return: ``None`` if no watermark is stored.
        :raises StoreError: It cannot be found out.
        :raises StateError: What is stored cannot be used.
        """
        value = await (store or self.make_store()).load(self._store_key)
        return None if value is None or is_reset(value) else WatermarkState.from_wire(value).low

    async def aset_value(self, value: Position, store: BaseWatermarkStore | None = None) -> None:
        """
        Set the low watermark, which is a rewind: what comes after it is delivered, again if need be.

        A running watcher adopts it with its next poll. In a store without compare-and-set this takes two
        seconds: what is written is read back, and written again if the watcher has overwritten it.

        :param value: The new cut, inclusive.
        :param store: By default the configured store.
        :raises StateError: No watermark is stored, or it cannot be used, or has another type of position.
        :raises WatermarkConflictError: The watcher saves all the time, and nothing lasts.
        :raises StoreError: The store does not answer.
        """
        store = store or self.make_store()
        for attempt in range(_TRIES):
            stored = await store.load(self._store_key)
            if stored is None or is_reset(stored):
                msg = f"no watermark {'/'.join(self._store_key)} is stored, so there is nothing to rewind"
                raise StateError(msg)
            wire = WatermarkState.from_wire(stored).rewind(value).to_wire()
            try:
                new = {**wire, "revision": wire["revision"] + 1}
                await save_lasting(store, self._store_key, new, expected=stored)
            except WatermarkConflictError:
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def get_value(self) -> Position | None:
        """Read the low watermark; see :meth:`aget_value`."""
        return self._run(self.aget_value)

    def set_value(self, value: Position) -> None:
        """Set the low watermark; see :meth:`aset_value`."""
        self._run(functools.partial(self.aset_value, value))

    def make_store(self) -> BaseWatermarkStore:
        """
        Build the store that keeps the watermark.

        :raises ConfigurationError: It cannot be built.
        """
        return self.store() if callable(self.store) else configured_store(self.store)

    def _run(self, work: Callable[[BaseWatermarkStore], Awaitable[_T]]) -> _T:
        alone = self._alone(work)
        try:
            return asyncio.run(alone)
        finally:
            alone.close()  # it has not begun if a loop runs here already

    async def _alone(self, work: Callable[[BaseWatermarkStore], Awaitable[_T]]) -> _T:
        """Do something in an event loop that ends with it."""
        store = self.make_store()
        try:
            return await work(store)
        finally:
            await store.close()

    @property
    def _store_key(self) -> WatermarkKey:
        return WatermarkKey(self.asset_name, self.namespace, self.key)


async def save_lasting(
    store: BaseWatermarkStore, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any]
) -> None:
    """
    Save what begins a new epoch, and see to it that it lasts.

    Where a store has no compare-and-set, a watcher that has read before this save and writes after it
    overwrites it, and neither notices. So it is read back once such a watcher has written.

    :param key: Which watermark.
    :param value: What begins the epoch.
    :param expected: What must be stored now, of an older epoch.
    :raises WatermarkConflictError: Something else was stored, or is stored now; to do it again is safe.
    :raises StoreError: It may or may not have been written.
    """
    await store.save(key, value, expected=expected)
    if store.compare_and_set:
        return
    await asyncio.sleep(SETTLE_SECONDS)
    found = await store.load(key)
    same_save = found is not None and found.get("revision") == value["revision"]
    if found is None or found.get("epoch") == expected.get("epoch") or (same_save and found != value):
        how = "deleted" if found is None else "overwritten"
        msg = (
            f"what was written to the watermark {'/'.join(key)} was {how} by another writer, most likely its "
            f"watcher: a {type(store).__name__} cannot prevent that. Do it again, or while the triggerer is "
            "stopped"
        )
        raise WatermarkConflictError(msg)
