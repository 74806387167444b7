"""What an error does: nothing but be told."""

from __future__ import annotations

from airflow.providers.watermark.testing.contract import SourceContract, needs
from airflow.providers.watermark.testing.harness import Harness
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.watermark import WatermarkState

__all__ = ["FailingContract"]


class FailingContract(SourceContract):
    """Errors move nothing, start nothing, end nothing."""

    @needs("errors")
    async def test_an_error_is_no_event_and_moves_no_watermark(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            before = await self._stored(watcher)
            await self.put(source, "b")
            await source.advance(2 * source.late_arrival)
            await source.break_down()
            assert await watcher.deliver(3) == []
            after = await self._stored(watcher)
            assert (after.low, after.high, after.cursor) == (before.low, before.high, before.cursor)
            assert after.seen == before.seen

    @needs("errors")
    async def test_after_an_error_nothing_is_lost_or_repeated(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            await source.break_down()
            await watcher.deliver(2)
            await self.put(source, "b")
            await source.advance(source.late_arrival + 3 * source.step)
            await watcher.deliver()
            await source.mend()
            assert self.names(source, await watcher.deliver(2)) == ["b"]

    @needs("errors")
    async def test_an_error_at_the_start_is_got_over(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        await source.break_down()
        for start in ("now", "beginning"):
            async with self.watch(source, start_from=start, asset_name=start) as watcher:
                assert await watcher.deliver(2) == []
        await source.mend()
        async with self.watch(source) as watcher:
            assert self.names(source, await watcher.deliver()) == ["a"]

    @needs("errors")
    async def test_an_error_is_told_once_with_the_watchers_identity(self, source: WatchedSource) -> None:
        async with self.watch(source, asset_name="the asset") as watcher:
            await watcher.deliver()
            for _ in range(2):
                await source.break_down()
                await watcher.deliver(3)
                await source.mend()
                await watcher.deliver(2)
            errors = [record.getMessage() for record in watcher.records if record.levelname == "ERROR"]
            assert len(errors) == 2
            assert all("the asset" in error and watcher.trigger.source in error for error in errors)

    @needs("errors")
    async def test_an_error_stands_in_the_stored_status_until_it_is_mended(
        self, source: WatchedSource
    ) -> None:
        async with self.watch(source) as watcher:
            await self.put(source, "a")
            await watcher.deliver()
            assert "error" not in ((await self._stored(watcher)).status or {})
            await source.break_down()
            await watcher.deliver()
            status = (await self._stored(watcher)).status
            assert status is not None
            assert status["error"]
            await source.mend()
            await watcher.deliver()
            assert "error" not in ((await self._stored(watcher)).status or {})

    async def test_a_store_that_fails_at_the_start_is_no_new_start(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            await watcher.deliver()
            await watcher.crash()
            watcher.recorder.broken = True
            assert await watcher.deliver(2) == []
            await self.put(source, "b")
            watcher.recorder.broken = False
            assert self.names(source, await watcher.deliver()) == ["b"]

    async def test_a_store_that_fails_later_is_asked_again(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            events = await watcher.sweep()
            watcher.recorder.broken = True
            await watcher.acknowledge(*events)
            await watcher.commit()
            assert await watcher.sweep() == []
            watcher.recorder.broken = False
            await watcher.commit()
            await watcher.crash()
            assert await watcher.deliver() == []

    @staticmethod
    async def _stored(watcher: Harness) -> WatermarkState:
        state = await watcher.stored()
        assert state is not None
        return state
