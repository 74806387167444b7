"""What a watcher of windows delivers, and what it does not."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from airflow.providers.watermark.events import read_window
from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.testing.contract import needs
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.testing.watching.windowing import WindowSourceContract
from airflow.providers.watermark.triggers import watching

__all__ = ["WindowsContract"]

HELD = 0.2
"""Seconds for which the event loop may not be held: far less than a blocking call that waits for anything."""


class WindowsContract(WindowSourceContract):
    """Windows are final, contiguous and disjoint, and tell how much is in them."""

    async def test_what_is_put_is_in_one_window(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            events = await watcher.deliver()
            assert len(events) == 1
            self.check(source, events, "a", "b")
            assert await watcher.deliver() == []

    async def test_windows_follow_one_another_without_gap_or_overlap(self, source: WatchedSource) -> None:
        names = ["b", "a", "c"]
        events = []
        async with self.watch(source) as watcher:
            for name in names:
                await self.put(source, name)
                new = await watcher.deliver()
                assert self.names(source, new) == [name]
                events += new
        self.check(source, events, *names)

    async def test_without_anything_new_there_is_no_event_and_the_watermark_stays(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.deliver()
            await watcher.deliver()
            saved = len(watcher.recorder.saved)
            assert await watcher.deliver(2) == []
            assert len(watcher.recorder.saved) == saved
            state = await watcher.stored()
            assert state is not None
            assert (state.low, state.high) == (event.high, None)
            await self.put(source, "b")
            self.check(source, [event, *await watcher.deliver()], "a", "b")

    async def test_what_is_younger_than_late_arrival_waits(self, source: WatchedSource) -> None:
        await source.put("a")
        await source.advance(source.late_arrival)
        async with self.watch(source, late_arrival=1000 * source.late_arrival + 1000) as watcher:
            assert await watcher.deliver(2) == []
            state = await watcher.stored()
            assert state is not None
            assert state.high is None

    @needs("stamps")
    async def test_what_arrives_late_within_the_margin_falls_in_no_delivered_window(
        self, source: WatchedSource
    ) -> None:
        await source.put("b")
        await source.advance(source.late_arrival)
        await source.put("c")
        async with self.watch(source) as watcher:
            events = await watcher.deliver()
            await source.put("a", ago=source.late_arrival - source.step)
            events += await watcher.deliver(2)
        self.check(source, events, "a", "b", "c")

    @needs("accesses")
    @pytest.mark.parametrize("accesses", range(4))
    async def test_what_lands_meanwhile_falls_in_a_later_window(
        self, source: WatchedSource, accesses: int
    ) -> None:
        landed = 0

        async def land() -> None:
            nonlocal landed
            landed += 1
            if landed <= accesses:
                source.between_accesses(land)
                return
            await source.put("a")
            await source.advance(source.late_arrival + 3 * source.step)

        await self.put(source, "m")
        async with self.watch(source) as watcher:
            source.between_accesses(land)
            events = await watcher.deliver()
            while landed <= accesses:
                events += await watcher.deliver()
            events += await watcher.deliver(2)
        self.check(source, events, "a", "m")

    @needs("stamps")
    async def test_what_is_dated_in_the_future_waits_and_hides_nothing(self, source: WatchedSource) -> None:
        ahead = 9 * source.late_arrival + 3
        await source.put("b", ago=-ahead)
        async with self.watch(source) as watcher:
            assert await watcher.deliver() == []
            await self.put(source, "a")
            events = await watcher.deliver()
            assert self.names(source, events) == ["a"]
            await source.advance(ahead)
            events += await watcher.deliver(2)
        self.check(source, events, "a", "b")

    @needs("overwrites")
    async def test_what_is_overwritten_is_in_a_later_window_too(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            (first,) = await watcher.deliver()
            await self.put(source, "a", version=2)
            (second,) = await watcher.deliver()
            assert second.low == first.high
            assert self.inside(source, second) == ["a"]
            assert (first.payload["count"], second.payload["count"]) == (2, 1)

    @needs("late")
    async def test_what_was_begun_long_ago_falls_in_no_delivered_window(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            finish = await source.begin("slow")
            await self.put(source, "b")
            events = await watcher.deliver(2)
            assert self.names(source, events) == ["a"]
            await finish()
            events += await watcher.deliver(2)
        self.check(source, events, "a", "b", "slow")

    # -- Limits ---------------------------------------------------------------------------------------

    async def test_a_backlog_is_split_by_the_limit_and_drains_in_one_sweep(
        self, source: WatchedSource
    ) -> None:
        names = [f"n-{number}" for number in range(7)]
        await self.put_apart(source, *names)
        await source.settle()
        async with self.watch(source, count_limit=3) as watcher:
            events = await watcher.deliver()
        assert [event.payload["count"] for event in events] == [3, 3, 1]
        self.check(source, events, *names)

    async def test_ties_are_never_split(self, source: WatchedSource) -> None:
        await self.put_apart(source, "a")
        await source.put("b", "c", "d", "e")
        await source.advance(source.step)
        await self.put(source, "f")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.deliver()
        assert [event.payload["count"] for event in events] == [5, 1]
        self.check(source, events, "a", "b", "c", "d", "e", "f")

    async def test_ties_behind_the_limit_are_left_for_the_next_window(self, source: WatchedSource) -> None:
        await self.put_apart(source, "a", "b")
        await source.put("c", "d")
        await source.advance(source.step)
        await self.put(source, "e")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.deliver()
        assert [event.payload["count"] for event in events] == [2, 2, 1]
        self.check(source, events, "a", "b", "c", "d", "e")

    async def test_the_event_loop_is_not_held(self, source: WatchedSource) -> None:
        longest = []
        for number in range(3):  # a busy machine may hold it once
            await self.put(source, *(f"n-{number}-{index}" for index in range(50)))
            async with self.watch(source, count_limit=10) as watcher:
                ticker = asyncio.create_task(_tick())
                await watcher.deliver()
                ticker.cancel()
                gaps = await asyncio.gather(ticker, return_exceptions=True)
                assert isinstance(gaps[0], _Longest)
                longest.append(gaps[0].seconds)
        assert min(longest) < HELD

    # -- Events ---------------------------------------------------------------------------------------

    async def test_payloads_are_strict_json_in_the_published_shape(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            (event,) = await watcher.deliver()
            payload = event.payload
            assert len(json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()) < 8192
            assert payload.keys() == {"watermark", "count", "cursor_column"}
            assert payload["watermark"].keys() == {
                *("version", "event_id", "epoch", "watcher", "source", "low", "high")
            }
            assert payload["watermark"]["watcher"] == watcher.trigger.watcher_name
            assert payload["watermark"]["source"] == watcher.trigger.source

    async def test_a_consumer_reads_all_windows_as_one(self, source: WatchedSource) -> None:
        from airflow.sdk import Asset

        names = ["a", "b", "c"]
        await self.put_apart(source, *names)
        await source.settle()
        async with self.watch(source, count_limit=1) as watcher:
            events = await watcher.deliver()
        asset = Asset(name="contract")
        stored = [SimpleNamespace(extra={"from_trigger": True, "payload": event.payload}) for event in events]
        window = read_window({asset: [*reversed(stored), *stored]}, asset)
        assert window is not None
        assert (window.low, window.high, window.count) == (events[0].low, events[-1].high, 3)

    async def test_an_event_without_anything_follows_a_burst_once(self, source: WatchedSource) -> None:
        await self.put_apart(source, "a", "b")
        await source.settle()
        async with self.watch(source, count_limit=1) as watcher:
            events = await watcher.deliver()
            assert len(events) == 2
            assert await watcher.deliver() == []
            await watcher.crash()
            with patch.object(watching, "WAKE_AFTER", 0.0):  # as if that long had gone by
                (wake_up,) = await watcher.deliver()
                assert await watcher.deliver() == []
            assert wake_up.payload["count"] == 0
            assert wake_up.low == wake_up.high == events[-1].high
            assert not is_after(wake_up.high, events[-1].high)
            assert wake_up.event_id not in {event.event_id for event in events}
            await self.put(source, "c")
            self.check(source, [*events, *await watcher.deliver()], "a", "b", "c")


class _Longest(Exception):  # noqa: N818 - what a task ends with
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


async def _tick() -> None:
    longest, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        raise _Longest(longest) from None
