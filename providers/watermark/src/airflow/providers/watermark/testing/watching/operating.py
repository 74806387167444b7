"""Where a watcher starts, and what an operator can do to its watermark."""

from __future__ import annotations

from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.testing.contract import SourceContract, needs
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.watermark import reset_wire

__all__ = ["OperatingContract"]


class OperatingContract(SourceContract):
    """Starts and rewinds."""

    async def test_from_now_only_what_comes_after_is_delivered(self, source: WatchedSource) -> None:
        await self.put(source, "old")
        async with self.watch(source, start_from="now") as watcher:
            assert await watcher.deliver() == []
            await self.put(source, "new")
            assert self.names(source, await watcher.deliver(2)) == ["new"]

    async def test_from_now_the_baseline_is_stored_at_once(self, source: WatchedSource) -> None:
        async with self.watch(source, start_from="now") as watcher:
            await watcher.sweep()
            await watcher.crash()
            await self.put(source, "new")
            assert self.names(source, await watcher.deliver()) == ["new"]

    async def test_from_the_beginning_everything_is_delivered(self, source: WatchedSource) -> None:
        await self.put(source, "old")
        await source.advance(2 * source.late_arrival)
        await self.put(source, "new")
        async with self.watch(source, start_from="beginning") as watcher:
            assert sorted(self.names(source, await watcher.deliver())) == ["new", "old"]

    @needs("clock")
    async def test_from_an_instant_what_comes_at_or_after_it_is_delivered(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "old")
        await source.advance(source.step)
        start = source.now().isoformat()
        await self.put(source, "new")
        async with self.watch(source, start_from=start) as watcher:
            assert self.names(source, await watcher.deliver()) == ["new"]

    async def test_where_to_start_means_nothing_to_a_stored_watermark(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            await self.put(source, "b")
            store = watcher.store
        trigger = source.make_trigger(**self.arguments(source, start_from="now"))
        async with self.drive(source, trigger, store) as watcher:
            assert self.names(source, await watcher.deliver()) == ["b"]

    async def test_tuning_starts_nothing_anew(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            store = watcher.store
        tuning = {"poll_interval": 7.0, "max_seen": 77, "max_event_bytes": 9000, "commit_delay": 1.0}
        trigger = source.make_trigger(**self.arguments(source, count_limit=77, **tuning))
        async with self.drive(source, trigger, store) as watcher:
            assert await watcher.deliver() == []

    async def test_a_rewind_delivers_again_in_a_higher_epoch(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            before = await watcher.deliver()
            await watcher.trigger.asset_watermark.aset_value(BEGINNING, watcher.store)
            after = await watcher.deliver(2)
            assert self.ids(after) == self.ids(before)
            assert {event.epoch for event in after} == {before[0].epoch + 1}

    async def test_a_reset_starts_anew_in_a_higher_epoch(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            before = await watcher.deliver()
            key = watcher.trigger.key
            stored = await watcher.store.load(key)
            assert stored is not None
            await watcher.store.save(key, reset_wire(stored), expected=stored)
            after = await watcher.deliver(2)
            assert self.ids(after) == self.ids(before)
            assert {event.epoch for event in after} == {before[0].epoch + 1}
            state = await watcher.stored()
            assert state is not None
            assert state.epoch == before[0].epoch + 1

    async def test_a_rewind_wins_over_what_is_in_flight(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            before = await watcher.sweep()
            await watcher.trigger.asset_watermark.aset_value(BEGINNING, watcher.store)
            await watcher.acknowledge(*before)
            await watcher.commit()
            after = await watcher.deliver(2)
            assert self.ids(after) == self.ids(before)
            assert {event.epoch for event in after} == {before[0].epoch + 1}

    async def test_the_watermark_of_another_source_is_refused(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        shared = {"watermark_key": "shared"}
        async with self.watch(source, **shared) as watcher:
            await watcher.deliver()
            before, store = await watcher.stored(), watcher.store
        assert before is not None
        trigger = source.make_stranger(**self.arguments(source, **shared))
        async with self.drive(source, trigger, store) as stranger:
            assert await stranger.deliver(2) == []
            after = await stranger.stored()
            assert after == before
            errors = [record.getMessage() for record in stranger.records if record.levelname == "ERROR"]
            assert len(errors) == 1
            theirs = stranger.trigger.fingerprint
            for name in stranger.trigger.source_fields:
                assert str(before.source[name]) in errors[0]
                assert str(theirs[name]) in errors[0]

    async def test_another_source_starts_anew_by_default(self, source: WatchedSource) -> None:
        mine = source.make_trigger(**self.arguments(source))
        other = source.make_stranger(**self.arguments(source))
        renamed = source.make_trigger(**self.arguments(source, asset_name="renamed"))
        assert len({mine.key, other.key, renamed.key}) == 3
