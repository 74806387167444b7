"""The two questions that a watcher answers, asked directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from airflow.providers.watermark.change import Change, Page
from airflow.providers.watermark.position import BEGINNING, Position, is_after
from airflow.providers.watermark.testing.contract import SourceContract, needs
from airflow.providers.watermark.testing.harness import revive
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.watermark import Sweep, WatermarkState

__all__ = ["AnsweringContract", "BoundContract"]

NAMES = [f"n-{number}" for number in range(8)]


class BoundContract(SourceContract):
    """How far the source is settled."""

    @needs("clock")
    async def test_the_bound_keeps_the_margin_by_the_sources_clock(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        before = source.now()
        async with self._opened(source) as trigger:
            bounds = await trigger.get_high_watermark()
        assert not is_after(bounds.bound, source.now() - timedelta(seconds=source.late_arrival))
        assert bounds.due is not None
        assert not is_after(bounds.due, source.now())
        assert is_after(bounds.bound, before - timedelta(seconds=source.late_arrival + 2 * source.grain))

    @asynccontextmanager
    async def _opened(self, source: WatchedSource) -> AsyncIterator[BaseWatermarkTrigger]:
        trigger = revive(source.make_trigger(**self.arguments(source)))
        await trigger.open()
        try:
            yield trigger
        finally:
            await trigger.close()


class AnsweringContract(BoundContract):
    """And what is visible, in reading order."""

    async def test_reading_only_goes_forward(self, source: WatchedSource) -> None:
        await self.put(source, *NAMES)
        async with self._opened(source) as trigger:
            pages = await self._read(trigger)
        cursors: list[Position] = []
        for page in pages:
            cursors += [change.cursor for change in page.changes]
            if page.cursor is not None:
                cursors.append(page.cursor)
        assert not [one for one, two in pairwise(cursors) if is_after(one, two)]

    async def test_reading_goes_on_right_behind_the_cursor(self, source: WatchedSource) -> None:
        await self.put(source, *NAMES)
        async with self._opened(source) as trigger:
            changes = self._changes(await self._read(trigger))
            assert len(changes) == len(NAMES)
            for index, change in enumerate(changes):
                rest = self._changes(await self._read(trigger, change.cursor))
                assert [entry.identity for entry in rest] == [
                    entry.identity for entry in changes[index + 1 :]
                ]

    async def test_a_change_has_the_same_id_whenever_it_is_read(self, source: WatchedSource) -> None:
        await self.put(source, *NAMES)
        async with self._opened(source) as trigger:
            first = [change.id for change in self._changes(await self._read(trigger))]
        async with self._opened(source) as trigger:
            second = [change.id for change in self._changes(await self._read(trigger))]
        assert first == second
        assert len(set(first)) == len(NAMES)

    @staticmethod
    async def _read(trigger: BaseWatermarkTrigger, cursor: Position | None = None) -> list[Page]:
        state = WatermarkState(source=trigger.fingerprint, low=BEGINNING)
        bounds = await trigger.get_high_watermark()
        if cursor is not None:
            state = replace(state, high=bounds.bound, cursor=cursor)
        async with aclosing(trigger.read_changes(Sweep(state, bounds, 100))) as pages:
            return [page async for page in pages]

    @staticmethod
    def _changes(pages: list[Page]) -> list[Change]:
        return [change for page in pages for change in page.changes]
