"""Traces that broke earlier versions of the algorithm, by name; and what the state machine has found."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from airflow.providers.watermark.delivery import MAX_UNCOMMITTED, Committer, Emission
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.testing import Delivery, Harness
from airflow.providers.watermark.testing.doubles import WatchedList
from airflow.providers.watermark.triggers import watching
from airflow.providers.watermark.watermark import WatermarkState

LATE = 10.0


@pytest.fixture
def source() -> WatchedList:
    return WatchedList()


def watch(source: WatchedList, store: MemoryStore | None = None, **arguments: Any) -> Harness:
    given = {"asset_name": "orders", "start_from": "beginning", "late_arrival": LATE, **arguments}
    return Harness(source.make_trigger(**given), store)


def names(events: Iterable[Delivery]) -> list[str]:
    return [change["name"] for event in events for change in event.payload["changes"]]


async def crash_after(source: WatchedList, watcher: Harness, accesses: int) -> Any:
    """Crash a sweep after some accesses to the source; give the stored cursor."""
    reached, left = asyncio.Event(), accesses

    async def stand_still() -> None:
        nonlocal left
        left -= 1
        source.between_accesses(stand_still)
        if not left:
            await watcher.commit()
            reached.set()
            await asyncio.Event().wait()

    source.between_accesses(stand_still)
    sweep = asyncio.create_task(watcher.sweep())
    await asyncio.wait_for(reached.wait(), 5)
    await watcher.crash()
    await asyncio.gather(sweep, return_exceptions=True)
    state = await watcher.stored()
    assert state is not None
    return state.cursor


class LastWriterWins(MemoryStore):
    """A store without compare-and-set."""

    compare_and_set: ClassVar[bool] = False

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        await super().save(key, value, expected=await self.load(key))


# --- Crashes and failures -----------------------------------------------------------------------------------


async def test_an_event_that_failed_is_not_passed_by_a_later_commit(source):
    async with watch(source) as watcher:
        await source.put("a")
        await source.advance(1)
        await watcher.fail(*await watcher.sweep())
        await source.put("b")
        await source.advance(1)
        events = await watcher.deliver()
        await watcher.crash()
        events += await watcher.deliver()
        assert Counter(names(events)) == {"a": 1, "b": 1}


async def test_acknowledgements_that_pass_each_other_commit_no_gap(source):
    async with watch(source) as watcher:
        await source.put("a")
        await source.advance(1)
        first = await watcher.sweep()
        await source.put("b")
        await source.advance(1)
        second = await watcher.sweep()
        await watcher.acknowledge(*second)
        await watcher.commit()
        await watcher.crash()
        assert names(await watcher.deliver()) == names(first) + names(second)


async def test_what_was_delivered_behind_the_cursor_is_not_forgotten_when_the_sweep_is_resumed(source):
    async with watch(source, max_entries_per_event=1) as watcher:
        await source.put("a", "z")
        await source.advance(1)
        first, _ = await watcher.sweep()
        await watcher.acknowledge(first)
        await watcher.commit()
        await watcher.crash()
        assert names(await watcher.deliver()) == ["z"]
        for _ in range(4):
            await source.advance(3)
            assert await watcher.deliver() == []


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 3, 4])
async def test_a_full_memory_and_a_crash_in_one_sweep_lose_nothing(source, acknowledged):
    await source.put("b", "d", "f")
    await source.advance(LATE + 1)
    await source.put("a", "c", "e")
    await source.advance(1)
    async with watch(source, max_seen=2, max_entries_per_event=1) as watcher:
        events = await watcher.sweep()
        await watcher.acknowledge(*events[:acknowledged])
        await watcher.commit()
        await watcher.crash()
        events = events[:acknowledged]
        for _ in range(3):
            events += await watcher.deliver()
            await source.advance(LATE)
        assert Counter(names(events)) == Counter("abcdef")


async def test_a_long_sweep_without_news_makes_progress_under_crashes(source, monkeypatch):
    monkeypatch.setattr(watching, "CHECKPOINT_INTERVAL", 0.0)
    await source.put(*(f"n-{number}" for number in range(9)))
    await source.advance(1)
    async with watch(source) as watcher:
        await watcher.deliver()
        await source.advance(3)
        cursors = [await crash_after(source, watcher, accesses=3) for _ in range(2)]
        assert cursors[0] is not None
        assert cursors[1] > cursors[0]


@pytest.mark.parametrize("store", [MemoryStore(), LastWriterWins()], ids=["compare-and-set", "none"])
async def test_two_instances_that_overlap_lose_nothing(source, store):
    await source.put("a", "b")
    await source.advance(1)
    async with watch(source, store) as old, watch(source, store) as new:
        events = await old.sweep() + await new.sweep()
        await old.acknowledge(*events)
        await new.acknowledge(*events)
        await source.put("c")
        await source.advance(1)
        await new.commit()
        await old.commit()
        events += await new.deliver()
        await old.stop()
        await new.crash()
        events += await new.deliver(2)
    assert set(names(events)) == {"a", "b", "c"}


# --- Bounds and clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["eager", "settled"])
async def test_what_a_client_has_stamped_and_brings_late_is_not_lost(source, delivery):
    async with watch(source, delivery=delivery) as watcher:
        await source.put("b")
        await source.advance(LATE)
        events = await watcher.deliver(2)
        await source.put("a", ago=LATE - 1)
        events += await watcher.deliver()
        await source.advance(2 * LATE)
        events += await watcher.deliver(2)
        assert Counter(names(events)) == {"a": 1, "b": 1}


async def test_an_upload_of_days_starves_nothing_while_the_memory_is_full(source):
    async with watch(source, max_seen=2) as watcher:
        finish = await source.begin("upload")
        await source.put("a", "b", "c", "d")
        await source.advance(1)
        events = await watcher.deliver()
        assert len(names(events)) == 2
        await source.advance(LATE + 1)
        events += await watcher.deliver()
        assert sorted(names(events)) == ["a", "b", "c", "d"]
        await finish()
        assert names(await watcher.deliver()) == ["upload"]


async def test_what_is_dated_in_the_future_does_not_fill_the_memory(source):
    await source.put("f", "g", "h", ago=-1e6)
    async with watch(source, max_seen=2) as watcher:
        await watcher.deliver()
        await source.put("a", "b")
        await source.advance(1)
        assert names(await watcher.deliver()) == ["a", "b"]


async def test_a_version_that_comes_back_within_a_second_is_announced_last(source):
    events = []
    async with watch(source) as watcher:
        for version in (1, 2, 1):
            await source.put("a", version=version)
            events += await watcher.deliver()
        await source.advance(1)
        events += await watcher.deliver()
        assert events[-1].payload["changes"][-1]["version"] == 1


async def test_a_clock_that_goes_back_for_a_while_loses_nothing(source):
    await source.put("a")
    await source.advance(1)
    async with watch(source) as watcher:
        events = await watcher.deliver()
        await source.advance(2 * LATE)
        events += await watcher.deliver()
        await source.advance(-4 * LATE)
        await source.put("b")
        events += await watcher.deliver(2)
        await source.advance(5 * LATE)
        await source.put("c")
        await source.advance(1)
        events += await watcher.deliver(2)
        # What was stamped meanwhile is promised only if the watermark is taken back, which repeats a change.
        assert {"a", "c"} <= set(names(events))


# --- Starts and rewinds -------------------------------------------------------------------------------------


async def test_now_resends_nothing_old_and_remembers_little_of_it(source):
    await source.put(*(f"n-{number}" for number in range(30)))
    await source.advance(1)
    async with watch(source, start_from="now", max_seen=3) as watcher:
        assert await watcher.deliver(2) == []
        state = await watcher.stored()
        assert state is not None
        assert not state.seen


async def test_now_delivers_what_lands_in_its_own_second_on_a_key_with_an_upload(source):
    finish = await source.begin("a")
    await source.advance(3)
    await source.put("a", version=7)
    async with watch(source, start_from="now") as watcher:
        assert await watcher.deliver() == []
        await source.advance(1)
        assert names(await watcher.deliver()) == ["a"]
        await finish()
        assert names(await watcher.deliver(2)) == ["a"]


async def test_a_rewind_of_a_key_with_an_upload_loses_nothing(source):
    await source.begin("a")
    async with watch(source) as watcher:
        await watcher.deliver()
        await watcher.trigger.asset_watermark.aset_value(source.now(), watcher.store)
        await source.put("a", ago=-1)
        await source.advance(2 * LATE)
        assert names(await watcher.deliver(2)) == ["a"]


async def test_a_rewind_does_not_forget_what_is_under_way(source):
    finish = await source.begin("slow")
    await source.advance(2 * LATE)
    await source.put("a")
    await source.advance(1)
    async with watch(source) as watcher:
        await watcher.deliver()
        await watcher.trigger.asset_watermark.aset_value(source.now(), watcher.store)
        await finish()
        assert names(await watcher.deliver(2)) == ["slow"]


async def test_a_rewind_into_a_sweep_under_way_delivers_again_what_has_an_upload_too(source):
    await source.put("c")
    await source.advance(6)
    await source.begin("a")
    await source.put("a", "b")
    await source.advance(LATE)
    async with watch(source, max_entries_per_event=1) as watcher:
        first, *_ = await watcher.sweep()
        assert names([first]) == ["a"]
        await watcher.acknowledge(first)
        await watcher.commit()
        low = source.now() - timedelta(seconds=LATE + 1)
        await watcher.trigger.asset_watermark.aset_value(low, watcher.store)
        assert names(await watcher.deliver()) == ["a", "b"]


async def test_a_rewind_is_not_undone_by_what_was_in_flight(source):
    await source.put("a")
    await source.advance(1)
    async with watch(source) as watcher:
        events = await watcher.sweep()
        await watcher.trigger.asset_watermark.aset_value(BEGINNING, watcher.store)
        await watcher.acknowledge(*events)
        await watcher.commit()
        assert names(await watcher.deliver()) == ["a"]
        assert await watcher.deliver() == []


async def test_a_note_that_an_operator_adds_to_the_stored_watermark_prevents_no_commit(source):
    async with watch(source) as watcher:
        await watcher.deliver()
        key = watcher.trigger.key
        wire = await watcher.store.load(key)
        await watcher.store.save(key, {**wire, "note": "checked"}, expected=wire)
        await source.put("a")
        await source.advance(1)
        events = await watcher.sweep()
        events += await watcher.sweep()
        await watcher.acknowledge(*events)
        await watcher.commit()
        await watcher.crash()
        events += await watcher.deliver(2)
        assert names(events) == ["a"]


# --- The committer ------------------------------------------------------------------------------------------


class Gated(MemoryStore):
    """A store whose saves all return when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()

    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        self.asked.set()
        await self.gate.wait()


async def test_room_that_is_made_at_the_very_moment_it_is_wanted_is_taken():
    store, state = Gated(), WatermarkState(source={}, low=BEGINNING)
    key, log = WatermarkKey("orders", "list", "key"), logging.getLogger(__name__)
    committer = Committer(lambda: store, key, source={}, commit_delay=1e-9, log=log)
    for _ in range(MAX_UNCOMMITTED):
        emission = Emission({}, state)
        await committer.admit(emission)
        committer.acknowledge(emission)
        emission.acknowledged = -100
    saver = asyncio.create_task(committer.run())
    await store.asked.wait()
    admission = asyncio.create_task(committer.admit(Emission({}, state)))
    await asyncio.sleep(0)
    store.gate.set()  # everything is committed while the admission begins to wait
    await asyncio.wait_for(admission, 5)
    saver.cancel()
