"""What is delivered, and what is not."""

from __future__ import annotations

import json

from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.testing.contract import SourceContract, needs
from airflow.providers.watermark.testing.source import WatchedSource

__all__ = ["DeliveringContract"]


class DeliveringContract(SourceContract):
    """Everything once, whenever and wherever it lands."""

    async def test_what_is_put_is_delivered_once(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            assert sorted(self.names(source, await watcher.deliver())) == ["a", "b"]
            assert await watcher.deliver(2) == []

    async def test_what_is_put_later_is_delivered_by_a_later_sweep(self, source: WatchedSource) -> None:
        async with self.watch(source) as watcher:
            assert await watcher.deliver() == []
            for name in ("b", "a", "c"):
                await self.put(source, name)
                assert self.names(source, await watcher.deliver()) == [name]

    async def test_things_at_one_position_are_all_delivered(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c", "d", "e")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.deliver()
            await source.advance(source.late_arrival)
            events += await watcher.deliver(2)
        assert sorted(self.names(source, events)) == ["a", "b", "c", "d", "e"]

    @needs("stamps")
    async def test_a_tie_with_what_was_delivered_is_news(self, source: WatchedSource) -> None:
        await self.put(source, "b")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            await source.put("a", ago=source.step)
            await source.put("c", ago=source.step)
            assert sorted(self.names(source, await watcher.deliver())) == ["a", "c"]

    @needs("stamps")
    async def test_what_arrives_late_within_the_margin_is_delivered(self, source: WatchedSource) -> None:
        await source.put("b")
        await source.advance(source.late_arrival)
        async with self.watch(source) as watcher:
            await watcher.deliver(2)
            await source.put("a", ago=source.late_arrival - source.step)
            assert self.names(source, await watcher.deliver()) == ["a"]

    @needs("accesses")
    async def test_what_lands_between_the_bound_and_the_reading_is_not_lost(
        self, source: WatchedSource
    ) -> None:
        async def land() -> None:
            await source.put("a")
            await source.advance(source.late_arrival + 3 * source.step)

        await self.put(source, "m")
        async with self.watch(source) as watcher:
            source.between_accesses(land)
            events = await watcher.deliver(2)
        assert sorted(self.names(source, events)) == ["a", "m"]

    @needs("accesses")
    async def test_what_lands_behind_the_reading_is_not_lost(self, source: WatchedSource) -> None:
        names = [f"m-{number}" for number in range(10)]
        accesses = 0

        async def land() -> None:
            nonlocal accesses
            accesses += 1
            if accesses < 4:
                source.between_accesses(land)
            else:
                await source.put("a")
                await source.advance(source.late_arrival + 3 * source.step)

        await self.put(source, *names)
        async with self.watch(source) as watcher:
            source.between_accesses(land)
            events = await watcher.deliver()
            while accesses < 4:
                events += await watcher.deliver()
            events += await watcher.deliver()
        assert sorted(self.names(source, events)) == ["a", *names]

    @needs("overwrites")
    async def test_what_is_overwritten_is_delivered_again(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            first = await watcher.deliver()
            await self.put(source, "a", version=2)
            second = await watcher.deliver()
            assert self.names(source, second) == ["a"]
            assert self.ids(first) != self.ids(second)
            assert await watcher.deliver() == []

    @needs("overwrites", "stamps")
    async def test_another_version_at_the_same_position_is_delivered_too(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            await source.put("a", ago=source.step, version=2)
            assert self.names(source, await watcher.deliver()) == ["a"]

    @needs("overwrites")
    async def test_the_last_of_several_versions_in_one_step_is_delivered_last(
        self, source: WatchedSource
    ) -> None:
        events = []
        async with self.watch(source) as watcher:
            for version in (1, 2, 1):
                await source.put("a", version=version)
                events += await watcher.deliver()
            await source.advance(source.step)
            events += await watcher.deliver()
        async with self.watch(source, asset_name="fresh") as fresh:
            assert self.ids(events)[-1:] == self.ids(await fresh.deliver())

    @needs("stamps", "clock")
    async def test_what_is_dated_in_the_future_waits_and_hides_nothing(self, source: WatchedSource) -> None:
        await source.put("b", ago=-3 * source.late_arrival)
        async with self.watch(source) as watcher:
            assert await watcher.deliver(2) == []
            await self.put(source, "a")
            assert self.names(source, await watcher.deliver()) == ["a"]
            state = await watcher.stored()
            assert state is not None
            assert is_after(source.now(), state.low)
            assert sum("future" in record.getMessage() for record in watcher.records) == 1
            await source.advance(3 * source.late_arrival)
            assert self.names(source, await watcher.deliver()) == ["b"]

    async def test_nothing_new_is_neither_an_event_nor_a_write(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver(2)
            saved = len(watcher.recorder.saved)
            assert await watcher.deliver(3) == []
            assert len(watcher.recorder.saved) == saved

    async def test_settled_delivery_waits_for_the_bound_and_remembers_nothing(
        self, source: WatchedSource
    ) -> None:
        async with self.watch(source, delivery="settled") as watcher:
            await watcher.deliver()  # to connect may take longer than things take to settle
            await self.put(source, "a")
            assert await watcher.deliver() == []
            await source.settle()
            assert self.names(source, await watcher.deliver()) == ["a"]
            state = await watcher.stored()
            assert state is not None
            assert not state.seen
            warnings = [record.getMessage() for record in watcher.records if record.levelname == "WARNING"]
            assert not [warning for warning in warnings if "max_seen" in warning]


class LimitsContract(SourceContract):
    """Limits bound events, state and memory, and starve nothing."""

    async def test_no_event_carries_more_changes_than_allowed(self, source: WatchedSource) -> None:
        names = [f"n-{number}" for number in range(7)]
        await self.put(source, *names)
        async with self.watch(source, count_limit=3) as watcher:
            events = await watcher.deliver()
        assert [event.payload["count"] for event in events] == [3, 3, 1]
        assert sorted(self.names(source, events)) == names

    async def test_no_event_has_more_bytes_than_allowed(self, source: WatchedSource) -> None:
        names = [f"{number:03}-{'long' * 20}" for number in range(80)]
        await self.put(source, *names)
        async with self.watch(source, max_event_bytes=8192) as watcher:
            events = await watcher.deliver()
        sizes = [len(json.dumps(event.payload)) for event in events]
        assert len(sizes) > 1
        assert max(sizes) <= 8192
        assert sorted(self.names(source, events)) == names

    async def test_old_news_starves_nothing(self, source: WatchedSource) -> None:
        await self.put(source, *(f"a-{number}" for number in range(10)))
        async with self.watch(source, count_limit=2) as watcher:
            await watcher.deliver()
            await self.put(source, "b")
            assert self.names(source, await watcher.deliver()) == ["b"]

    async def test_a_backlog_of_many_events_drains_in_one_sweep(self, source: WatchedSource) -> None:
        names = [f"n-{number:02}" for number in range(70)]
        await self.put(source, *names)
        async with self.watch(source, count_limit=1) as watcher:
            assert sorted(self.names(source, await watcher.deliver())) == names

    async def test_what_is_remembered_is_bounded(self, source: WatchedSource) -> None:
        names = [f"n-{number}" for number in range(10)]
        await self.put(source, *names)
        async with self.watch(source, max_seen=3) as watcher:
            events = await watcher.deliver(2)
            state = await watcher.stored()
            assert state is not None
            assert len(state.seen) <= 3
            await source.settle()
            events += await watcher.deliver(2)
        assert sorted(self.names(source, events)) == names


class LateContract(SourceContract):
    """What was begun long ago, and is finished now."""

    @needs("late")
    async def test_what_was_begun_long_ago_is_delivered_once(self, source: WatchedSource) -> None:
        async with self.watch(source) as watcher:
            finish = await source.begin("slow")
            await source.advance(source.late_arrival + 3 * source.step)
            await self.put(source, "a")
            assert self.names(source, await watcher.deliver(2)) == ["a"]
            await source.advance(source.late_arrival + 3 * source.step)
            assert await watcher.deliver(2) == []
            await finish()
            assert self.names(source, await watcher.deliver(3)) == ["slow"]
            state = await watcher.stored()
            assert state is not None
            assert not state.pending

    @needs("late")
    async def test_what_was_begun_before_the_watcher_is_delivered_once(self, source: WatchedSource) -> None:
        finish = await source.begin("slow")
        await source.advance(source.late_arrival + 3 * source.step)
        async with self.watch(source, start_from="now") as watcher:
            assert await watcher.deliver(2) == []
            await finish()
            assert self.names(source, await watcher.deliver(2)) == ["slow"]

    @needs("late")
    async def test_what_was_begun_before_a_crash_is_delivered_once(self, source: WatchedSource) -> None:
        async with self.watch(source) as watcher:
            finish = await source.begin("slow")
            await source.advance(source.late_arrival + 3 * source.step)
            await self.put(source, "a")
            await watcher.deliver(2)
            await watcher.crash()
            await finish()
            assert self.names(source, await watcher.deliver(2)) == ["slow"]
            await watcher.crash()
            assert await watcher.deliver(2) == []
