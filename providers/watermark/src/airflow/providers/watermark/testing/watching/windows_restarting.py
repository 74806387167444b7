"""What comes again after a crash, a stop or a failed event: the very same window, and no other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from airflow.providers.watermark.testing.contract import needs
from airflow.providers.watermark.testing.delivered import Delivery
from airflow.providers.watermark.testing.harness import Harness
from airflow.providers.watermark.testing.recorder import Trouble
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.testing.watching.windowing import WindowSourceContract
from airflow.providers.watermark.watermark import reset_wire

__all__ = ["WindowsRestartingContract"]

Happened = Callable[[], bool]

_MOST = 500
"""Awaits, or accesses, after which an instance that starts and delivers a few windows must be done."""


class WindowsRestartingContract(WindowSourceContract):
    """A window is stored as intended before it is delivered, and one is in flight at a time."""

    async def test_a_window_is_stored_as_intended_before_it_is_delivered(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            state = await watcher.stored()
            assert state is not None
            assert (state.low, state.high) == (event.low, event.high)

    async def test_one_window_is_in_flight_at_a_time(self, source: WatchedSource) -> None:
        await self.put_apart(source, "a", "b", "c")
        await source.settle()
        async with self.watch(source, count_limit=1) as watcher:
            events = await watcher.sweep()
            for _ in range(2):
                assert len(events) == 1
                assert await watcher.sweep() == []
                await watcher.acknowledge(events[-1])
                assert await watcher.sweep() == []
                await watcher.commit()
                events = await watcher.sweep()

    @pytest.mark.parametrize("then", ["nothing", "acknowledge", "age", "fail", "stop"])
    async def test_a_window_that_was_not_committed_comes_again_as_it_was(
        self, source: WatchedSource, then: str
    ) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            if then in {"acknowledge", "age"}:
                await watcher.acknowledge(event)
            if then == "age":
                await watcher.commit(naps=5)
            elif then == "fail":
                await watcher.fail(event)
            elif then == "stop":
                await watcher.acknowledge(event)
                await watcher.stop()
            if then not in {"fail", "stop"}:
                await watcher.crash()
            await self.put(source, "b")
            first, second = await self.deliver_all(source, watcher)
            assert self._same(event, first)
            self.check(source, [event, first, second], "a", "b")

    async def test_a_window_that_was_committed_does_not_come_again(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            await watcher.acknowledge(event)
            await watcher.commit()
            for _ in range(2):
                await watcher.crash()
                assert await watcher.deliver() == []
            await self.put(source, "b")
            self.check(source, [event, *await watcher.deliver()], "a", "b")

    async def test_an_intended_window_stays_as_it_was_under_another_limit(
        self, source: WatchedSource
    ) -> None:
        await self.put_apart(source, "a", "b", "c")
        await source.settle()
        async with self.watch(source, count_limit=2) as watcher:
            (event,) = await watcher.sweep()
            await watcher.crash()
            store = watcher.store
        for limit in (1, 100):
            trigger = source.make_trigger(**self.arguments(source, count_limit=limit))
            async with self.drive(source, trigger, store) as watcher:
                (again,) = await watcher.sweep()
                assert self._same(event, again)
                await watcher.crash()

    @needs("overwrites")
    async def test_an_intended_window_that_something_left_is_still_the_very_same(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            await watcher.crash()
            await self.put(source, "a", version=2)
            again, later = await self.deliver_all(source, watcher)
            assert (again.low, again.high, again.event_id) == (event.low, event.high, event.event_id)
            assert later.low == event.high
            assert self.names(source, [again, later]) == ["b", "a"]

    @needs("errors")
    async def test_an_error_does_not_change_an_intended_window(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            await watcher.crash()
            await source.break_down()
            await self.put(source, "b")
            assert await watcher.deliver(2) == []
            await source.mend()
            first, *rest = await self.deliver_all(source, watcher)
            assert self._same(event, first)
            self.check(source, [first, *rest], "a", "b")

    # -- At any moment --------------------------------------------------------------------------------

    async def test_after_a_kill_at_any_await_the_very_same_window_comes_again(
        self, source: WatchedSource
    ) -> None:
        async with self.watch(source) as watcher:

            def interfere(number: int | None) -> Happened:
                watcher.kill_after(number)
                return lambda: not watcher.is_alive

            await self._again_and_again(source, watcher, interfere)

    @pytest.mark.parametrize("deadly", [True, False], ids=["kill", "error"])
    @pytest.mark.parametrize("done", [True, False], ids=["after", "before"])
    async def test_after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again(
        self, source: WatchedSource, *, done: bool, deadly: bool
    ) -> None:
        async with self.watch(source) as watcher:

            def interfere(number: int | None) -> Happened:
                trouble = None if number is None else Trouble(number, done=done, deadly=deadly)
                watcher.trouble(trouble)
                return lambda: trouble is not None and trouble.happened

            await self._again_and_again(source, watcher, interfere)

    @needs("accesses")
    async def test_after_a_kill_at_any_access_to_the_source_the_very_same_window_comes_again(
        self, source: WatchedSource
    ) -> None:
        left: int | None = None

        async def count() -> None:
            nonlocal left
            if left == 0:
                watcher.kill()
            elif left is not None:
                left -= 1
                source.between_accesses(count)

        def interfere(number: int | None) -> Happened:
            nonlocal left
            left = number
            source.between_accesses(count)
            return lambda: not watcher.is_alive

        async with self.watch(source) as watcher:
            await self._again_and_again(source, watcher, interfere)

    async def _again_and_again(
        self, source: WatchedSource, watcher: Harness, interfere: Callable[[int | None], Happened]
    ) -> None:
        """
        Interfere with every other instance, each time a moment later, while things are put.

        The one after it is left alone, so that the next one begins between two windows, as this one did.
        """
        events: list[Delivery] = []
        names: list[str] = []

        async def next_instance(happened: Happened) -> bool:
            names.append(f"n-{len(names)}")
            await self.put(source, names[-1])
            events.extend(await watcher.deliver())
            over = not happened()
            await watcher.crash()
            return over

        for number in itertools.count():
            assert number < _MOST, "no instance gets through"
            over = await next_instance(interfere(number))
            await next_instance(interfere(None))
            if over:
                break
        self.check(source, events, *names)

    # -- Stops ----------------------------------------------------------------------------------------

    async def test_a_watcher_stopped_while_it_saves_has_saved_or_not(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (event,) = await watcher.sweep()
            await watcher.acknowledge(event)
            watcher.recorder.held.clear()
            commit = asyncio.create_task(watcher.commit())
            await self.soon(watcher.recorder.waiting)
            await watcher.stop()
            commit.cancel()
            again = await watcher.deliver()
            assert again == [] or self._same(event, *again)
            assert await watcher.deliver() == []

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

    # -- Rewinds --------------------------------------------------------------------------------------

    async def test_an_operators_edit_is_adopted_in_a_higher_epoch(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (first,) = await watcher.deliver()
            await self.put(source, "b")
            (second,) = await watcher.deliver()
            await watcher.trigger.asset_watermark.aset_value(first.high, watcher.store)
            (again,) = await watcher.deliver()
            assert (again.low, again.high) == (second.low, second.high)
            assert again.epoch == second.epoch + 1
            assert again.event_id != second.event_id

    async def test_a_reset_starts_anew_in_a_higher_epoch(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (first,) = await watcher.deliver()
            key = watcher.trigger.key
            stored = await watcher.store.load(key)
            assert stored is not None
            await watcher.store.save(key, reset_wire(stored), expected=stored)
            (again,) = await watcher.deliver()
            assert (again.low, again.high) == (first.low, first.high)
            assert again.epoch == first.epoch + 1
            assert again.event_id != first.event_id

    async def test_an_operators_edit_replaces_an_intended_window(self, source: WatchedSource) -> None:
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            (first,) = await watcher.deliver()
            await self.put(source, "b")
            (second,) = await watcher.sweep()
            await watcher.trigger.asset_watermark.aset_value(first.low, watcher.store)
            await watcher.acknowledge(second)
            await watcher.commit()
            await watcher.crash()
            (again,) = await watcher.deliver()
            assert (again.low, again.high) == (first.low, second.high)
            assert again.epoch == second.epoch + 1
            assert self.inside(source, again) == ["a", "b"]

    @staticmethod
    def _same(before: Delivery, after: Delivery) -> bool:
        """Tell whether it is the very same window."""
        assert after.payload == before.payload
        return True
