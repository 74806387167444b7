"""What comes again after a crash, a stop or a failed event: what was not committed, and nothing else."""

from __future__ import annotations

import asyncio

from airflow.providers.watermark.testing.contract import SourceContract, needs
from airflow.providers.watermark.testing.delivered import Delivery
from airflow.providers.watermark.testing.source import WatchedSource

__all__ = ["RestartingContract"]


class RestartingContract(SourceContract):
    """An instance may end at any moment, and the next one goes on."""

    @needs("accesses")
    async def test_a_crash_before_anything_was_yielded_loses_nothing(self, source: WatchedSource) -> None:
        reached, released = asyncio.Event(), asyncio.Event()

        async def stand_still() -> None:
            reached.set()
            await released.wait()

        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            source.between_accesses(stand_still)
            sweep = asyncio.create_task(watcher.sweep())
            await self.soon(reached)
            await watcher.crash()
            released.set()
            await asyncio.gather(sweep, return_exceptions=True)
            assert sorted(self.names(source, await watcher.deliver())) == ["a", "b"]
            assert await watcher.deliver() == []

    async def test_what_was_yielded_and_not_acknowledged_comes_again(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c")
        async with self.watch(source, count_limit=2) as watcher:
            before = await watcher.sweep()
            await watcher.commit()
            await watcher.crash()
            assert self._same(before, await watcher.deliver())
            assert await watcher.deliver() == []

    async def test_what_was_acknowledged_and_not_committed_comes_again(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c")
        async with self.watch(source, count_limit=2) as watcher:
            before = await watcher.sweep()
            await watcher.acknowledge(*before)
            await watcher.crash()
            assert self._same(before, await watcher.deliver())

    async def test_a_young_acknowledgement_commits_nothing(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            before = await watcher.sweep()
            await watcher.acknowledge(*before)
            await watcher.commit(naps=5)
            await watcher.crash()
            assert self._same(before, await watcher.deliver())

    async def test_what_was_committed_does_not_come_again(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c")
        async with self.watch(source, count_limit=2) as watcher:
            await watcher.acknowledge(*await watcher.sweep())
            await watcher.commit()
            for _ in range(3):
                await watcher.crash()
                await source.advance(source.late_arrival / 2)
                assert await watcher.deliver(2) == []

    async def test_a_crash_between_two_events_repeats_the_second_alone(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c", "d")
        async with self.watch(source, count_limit=2) as watcher:
            first, second = await watcher.sweep()
            await watcher.acknowledge(first)
            await watcher.commit()
            await watcher.crash()
            assert self._same([second], await watcher.deliver())
            assert await watcher.deliver() == []

    async def test_a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "a", "b", "c", "d")
        await source.settle()
        async with self.watch(source, count_limit=2) as watcher:
            first, second = await watcher.sweep()
            await watcher.acknowledge(first)
            await watcher.commit()
            await watcher.crash()
            assert self._same([second], await watcher.deliver())
            assert await watcher.deliver() == []

    async def test_an_acknowledgement_behind_a_gap_commits_nothing(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b", "c", "d")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.sweep()
            await watcher.acknowledge(events[1])
            await watcher.commit()
            await watcher.crash()
            assert self._same(events, await watcher.deliver())

    async def test_an_event_that_was_not_stored_comes_again_with_all_after_it(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "a", "b", "c", "d", "e", "f")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.sweep()
            await watcher.acknowledge(events[0])
            await watcher.commit()
            await watcher.acknowledge(events[2])
            await watcher.fail(events[1])
            await watcher.commit()
            assert self._same(events[1:], await watcher.deliver())
            assert await watcher.deliver() == []

    async def test_frequent_crashes_do_not_prevent_progress(self, source: WatchedSource) -> None:
        names = {"a", "b", "c", "d", "e"}
        await self.put(source, *names)
        async with self.watch(source, count_limit=1) as watcher:
            for remaining in range(5, 0, -1):
                events = await watcher.sweep()
                assert len(events) == remaining
                await watcher.acknowledge(events[0])
                await watcher.commit()
                await watcher.crash()
                names -= set(self.names(source, events[:1]))
            assert not names
            assert await watcher.deliver() == []

    async def test_a_stopped_watcher_commits_nothing_more(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            before = await watcher.sweep()
            await watcher.acknowledge(*before)
            await watcher.commit(naps=5)
            await watcher.stop()
            assert self._same(before, await watcher.deliver())

    async def test_a_watcher_stopped_while_it_saves_has_saved_or_not(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            before = await watcher.sweep()
            await watcher.acknowledge(*before)
            watcher.recorder.held.clear()
            commit = asyncio.create_task(watcher.commit())
            await self.soon(watcher.recorder.waiting)
            await watcher.stop()
            commit.cancel()
            again = await watcher.deliver()
            assert again == [] or self._same(before, again)
            assert await watcher.deliver() == []

    @needs("accesses")
    async def test_a_watcher_can_be_stopped_while_it_reads(self, source: WatchedSource) -> None:
        reached, released = asyncio.Event(), asyncio.Event()

        async def stand_still() -> None:
            reached.set()
            await released.wait()

        await self.put(source, "a")
        async with self.watch(source) as watcher:
            source.between_accesses(stand_still)
            sweep = asyncio.create_task(watcher.sweep())
            await self.soon(reached)
            async with asyncio.timeout(5):
                await watcher.stop()
            released.set()
            await asyncio.gather(sweep, return_exceptions=True)
            assert self.names(source, await watcher.deliver()) == ["a"]

    async def test_a_stopped_watcher_leaves_no_task_behind(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            before = asyncio.all_tasks()
            await watcher.sweep()
            await watcher.stop()
            left = asyncio.all_tasks() - before
            if left:  # some clients take a moment
                _, left = await asyncio.wait(left, timeout=3)
            assert not left

    @staticmethod
    def _same(before: list[Delivery], after: list[Delivery]) -> bool:
        """Tell whether the same changes came in the same events, told by the same ids."""
        assert before
        assert [event.event_id for event in after] == [event.event_id for event in before]
        assert [event.payload["changes"] for event in after] == [event.payload["changes"] for event in before]
        return [event.epoch for event in after] == [event.epoch for event in before]
