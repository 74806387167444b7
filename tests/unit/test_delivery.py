"""When a watermark is committed: the committer with stores that fail, hang and are changed by others."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from airflow.providers.watermark import delivery
from airflow.providers.watermark.delivery import Committer, StaleError
from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    StateError,
    StoreError,
    WatermarkConflictError,
)
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.watermark import WatermarkState
from tests.unit.committing import (
    DELAY,
    KEY,
    SOURCE,
    Store,
    committed,
    eventually,
    in_flight,
    log,
    make_committer,
    running,
    started,
)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def committer(store):
    return make_committer(store)


# --- loading ------------------------------------------------------------------------------------------------


async def test_without_a_stored_watermark_nothing_is_loaded(committer):
    assert await committer.load() is None
    assert committer.head is None
    assert committer.committed is None


async def test_a_first_state_is_stored_at_once_and_is_the_head(committer, store):
    await committer.create(WatermarkState(source=SOURCE, low=7))
    stored = await store.stored()
    assert (stored.low, stored.revision) == (7, 1)
    assert committer.head == committer.committed == stored


async def test_a_first_state_does_not_replace_one_that_another_writer_stored(committer, store):
    await MemoryStore.save(
        store, KEY, WatermarkState(source=SOURCE, low=1, revision=1).to_wire(), expected=None
    )
    with pytest.raises(WatermarkConflictError):
        await committer.create(WatermarkState(source=SOURCE, low=2))
    assert await store.low() == 1


async def test_a_first_state_whose_answer_was_lost_is_found_again(committer, store):
    store.trouble = "answer lost"
    with pytest.raises(StoreError):
        await committer.create(WatermarkState(source=SOURCE, low=2))
    state = await committer.load()
    assert (state.low, state.revision) == (2, 1)


async def test_a_store_that_is_down_is_an_error_and_not_a_missing_watermark(committer, store):
    await started(committer)
    store.trouble = "down"
    with pytest.raises(StoreError):
        await committer.load()


async def test_a_watermark_of_another_source_is_refused_and_both_are_named(committer, store):
    await MemoryStore.save(
        store, KEY, WatermarkState(source={"place": "there"}, low=1).to_wire(), expected=None
    )
    with pytest.raises(StateError, match=r"orders/test/key.*there.*here.*watermark_key"):
        await committer.load()
    assert committer.head is None


async def test_the_errors_of_making_the_store_are_met_when_it_is_first_used():
    def make_store():
        raise ConfigurationError("no such store")

    committer = Committer(make_store, KEY, source=SOURCE, commit_delay=DELAY, log=log)
    with pytest.raises(ConfigurationError):
        await committer.load()


# --- committing ---------------------------------------------------------------------------------------------


async def test_an_acknowledged_event_is_committed(committer, store):
    await started(committer)
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        committer.acknowledge(first)
        await committed(store, 1)
    assert committer.committed.low == 1


async def test_an_event_that_is_not_acknowledged_is_never_committed(committer, store):
    await started(committer)
    async with running(committer):
        await in_flight(committer, 1)
        await asyncio.sleep(5 * DELAY)
    assert await store.low() == 0


async def test_nothing_is_committed_before_the_acknowledgement_has_aged(committer, store):
    await started(committer)
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        began = time.monotonic()
        committer.acknowledge(first)
        await committed(store, 1)
        # The nap under way at the acknowledgement counts, hence nine tenths.
        assert time.monotonic() - began >= 0.9 * DELAY - 0.001


async def test_only_the_contiguous_acknowledged_prefix_is_committed(committer, store):
    await started(committer)
    async with running(committer):
        first, second, third = await in_flight(committer, 1, 2, 3)
        committer.acknowledge(first)
        committer.acknowledge(third)
        await committed(store, 1)
        await asyncio.sleep(3 * DELAY)
        assert await store.low() == 1
        committer.acknowledge(second)
        await committed(store, 3)


async def test_several_aged_events_are_committed_with_one_save(committer, store):
    await started(committer)
    emissions = await in_flight(committer, *range(1, 41))
    for emission in emissions:
        committer.acknowledge(emission)
    async with running(committer):
        await committed(store, 40)
    assert store.saves == [1, 2]


async def test_acknowledgements_age_each_by_itself(committer, store):
    await started(committer)
    async with running(committer):
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)
        await asyncio.sleep(0.7 * DELAY)
        committer.acknowledge(second)
        await committed(store, 1)
        await committed(store, 2)
    assert store.saves == [1, 2, 3]


async def test_age_is_counted_in_naps_that_were_slept_not_in_time_that_went_by(committer, store):
    await started(committer)
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        committer.acknowledge(first)
        await asyncio.sleep(0)
        time.sleep(3 * DELAY)  # noqa: ASYNC251 - as a process that was stopped
        naps = committer._naps
        await asyncio.sleep(0.3 * DELAY)
        assert await store.low() == 0, "it was committed on waking up"
        assert committer._naps - naps < delivery._NAPS
        await committed(store, 1)


async def test_naps_are_not_counted_while_nothing_is_in_flight(committer, store):
    await started(committer)
    async with running(committer):
        await asyncio.sleep(3 * DELAY)
        assert committer._naps == 0
    assert store.saves == [1]


async def test_each_commit_raises_the_revision_and_keeps_the_epoch(committer, store):
    await started(committer)
    async with running(committer):
        for low in (1, 2):
            (emission,) = await in_flight(committer, low)
            committer.acknowledge(emission)
            await committed(store, low)
    stored = await store.stored()
    assert (stored.revision, stored.epoch) == (3, 1)
    assert committer.committed == stored


async def test_a_cancelled_committer_commits_nothing_more(committer, store):
    await started(committer)
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        committer.acknowledge(first)
        await asyncio.sleep(DELAY / 2)
    await asyncio.sleep(3 * DELAY)
    assert await store.low() == 0


async def test_cancellation_is_prompt_while_a_save_hangs(committer, store):
    await started(committer)
    (first,) = await in_flight(committer, 1)
    committer.acknowledge(first)
    store.trouble = "hangs"
    async with asyncio.timeout(5):
        async with running(committer):

            async def saving():
                return store.attempts == 2

            await eventually(saving)
    store.released.set()
    await asyncio.sleep(DELAY)
    assert await store.low() == 0


# --- failed events ------------------------------------------------------------------------------------------


async def test_a_failed_event_drops_all_uncommitted_work(committer, store):
    await started(committer)
    async with running(committer):
        first, second, third = await in_flight(committer, 1, 2, 3)
        committer.acknowledge(first)
        committer.fail(second)
        committer.acknowledge(third)
        await asyncio.sleep(3 * DELAY)
        assert await store.low() == 0
        assert committer.head is None
        with pytest.raises(StaleError):
            await committer.admit(third)
        assert (await committer.load()).low == 0


async def test_after_a_failed_event_the_watcher_goes_on_from_what_is_stored(committer, store):
    await started(committer)
    async with running(committer):
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)
        await committed(store, 1)
        committer.fail(second)
        assert (await committer.load()).low == 1
        (again,) = await in_flight(committer, 2)
        committer.acknowledge(again)
        await committed(store, 2)


async def test_what_was_dropped_can_neither_be_acknowledged_nor_fail_later(committer, store):
    await started(committer)
    async with running(committer):
        old, failed = await in_flight(committer, 8, 9)
        committer.fail(failed)
        await committer.load()
        (new,) = await in_flight(committer, 1)
        committer.acknowledge(old)
        committer.fail(failed)
        committer.acknowledge(new)
        await committed(store, 1)
        await asyncio.sleep(2 * DELAY)
        assert await store.low() == 1


async def test_an_event_that_fails_while_another_is_saved_drops_the_rest(committer, store):
    await started(committer)
    store.trouble = "hangs"
    async with running(committer):
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)

        async def saving():
            return store.attempts == 2

        await eventually(saving)
        committer.fail(second)
        store.released.set()
        await committed(store, 1)
        assert committer.head is None
        assert (await committer.load()).low == 1


async def test_a_rest_ends_early_when_uncommitted_work_is_dropped(committer):
    await started(committer)
    (first,) = await in_flight(committer, 1)
    asyncio.get_running_loop().call_later(0.02, committer.fail, first)
    async with asyncio.timeout(5):
        await committer.rest(60)


async def test_a_rest_lasts_as_long_as_it_is_told(committer):
    await started(committer)
    began = time.monotonic()
    await committer.rest(0.03)
    assert time.monotonic() - began >= 0.029


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_rest_of_nothing_ends_at_once(committer, seconds):
    async with asyncio.timeout(1):
        await committer.rest(seconds)


# --- events in flight ---------------------------------------------------------------------------------------


async def test_unacknowledged_events_are_limited_and_an_acknowledgement_makes_room(committer):
    await started(committer)
    emissions = await in_flight(committer, *range(1, delivery.MAX_UNACKNOWLEDGED + 1))
    waiting = asyncio.create_task(in_flight(committer, 1000))
    await asyncio.sleep(DELAY)
    assert not waiting.done()
    committer.acknowledge(emissions[0])
    async with asyncio.timeout(5):
        await waiting
    more = asyncio.create_task(in_flight(committer, 1001))
    await asyncio.sleep(DELAY)
    assert not more.done()
    more.cancel()


async def test_uncommitted_events_are_limited_and_a_commit_makes_room(committer, store):
    await started(committer)
    for low in range(1, delivery.MAX_UNCOMMITTED + 1):
        (emission,) = await in_flight(committer, low)
        committer.acknowledge(emission)
    waiting = asyncio.create_task(in_flight(committer, 1000))
    await asyncio.sleep(DELAY)
    assert not waiting.done()
    async with running(committer), asyncio.timeout(5):
        await waiting
        assert await store.low() == delivery.MAX_UNCOMMITTED


async def test_the_payload_of_an_acknowledged_event_is_let_go(committer):
    await started(committer)
    (first,) = await in_flight(committer, 1)
    committer.acknowledge(first)
    assert first.payload is None


async def test_an_acknowledgement_that_comes_twice_counts_once(committer):
    await started(committer)
    first, *_ = await in_flight(committer, *range(1, delivery.MAX_UNACKNOWLEDGED + 1))
    committer.acknowledge(first)
    committer.acknowledge(first)
    await in_flight(committer, 1000)
    more = asyncio.create_task(in_flight(committer, 1001))
    await asyncio.sleep(DELAY)
    assert not more.done()
    more.cancel()


async def test_after_a_drop_there_is_room_again(committer):
    await started(committer)
    emissions = await in_flight(committer, *range(1, delivery.MAX_UNACKNOWLEDGED + 1))
    committer.fail(emissions[0])
    await committer.load()
    async with asyncio.timeout(5):
        await in_flight(committer, *range(1, delivery.MAX_UNACKNOWLEDGED + 1))


async def test_a_state_without_news_is_the_head_unless_the_work_was_dropped(committer):
    state = await started(committer)
    await in_flight(committer, 1)
    committer.advance(replace(state, low=2))
    assert committer.head.low == 2
    (second,) = await in_flight(committer, 3)
    committer.fail(second)
    with pytest.raises(StaleError):
        committer.advance(replace(state, low=4))
    assert committer.head is None


async def test_who_waits_for_room_is_told_when_the_work_is_dropped(committer):
    await started(committer)
    emissions = await in_flight(committer, *range(1, delivery.MAX_UNACKNOWLEDGED + 1))
    waiting = asyncio.create_task(in_flight(committer, 1000))
    await asyncio.sleep(0.01)
    committer.fail(emissions[3])
    with pytest.raises(StaleError):
        await asyncio.wait_for(waiting, 5)


async def test_the_head_is_the_state_after_the_newest_event(committer):
    await started(committer)
    await in_flight(committer, 1, 2)
    assert committer.head.low == 2
    assert committer.committed.low == 0


# --- stores in trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["down", "no saves", "a bug"])
async def test_a_store_in_trouble_for_a_while_loses_nothing(committer, store, trouble):
    await started(committer)
    async with running(committer) as task:
        store.trouble = trouble
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)

        async def tried():
            return store.attempts >= 3 or trouble == "down"

        await eventually(tried)
        await asyncio.sleep(2 * DELAY)
        assert await store.low() == 0
        assert not task.done(), "the committer ended"
        store.trouble = None
        await committed(store, 1)
        committer.acknowledge(second)
        await committed(store, 2)


async def test_a_store_that_stays_down_is_said_once(committer, store, caplog):
    await started(committer)
    store.trouble = "no saves"
    with caplog.at_level(logging.WARNING):
        async with running(committer):
            (first,) = await in_flight(committer, 1)
            committer.acknowledge(first)

            async def tried():
                return store.attempts >= 5

            await eventually(tried)
    assert [record.getMessage() for record in caplog.records] == [
        "The watermark cannot be saved: the store is down"
    ]


async def test_a_save_whose_answer_was_lost_is_recognised_as_ours(committer, store):
    await started(committer)
    async with running(committer):
        store.trouble = "answer lost"
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)

        async def saved_again():
            return committer.committed.low == 1

        await eventually(saved_again)
        assert committer.head.low == 2, "work was dropped without need"
        committer.acknowledge(second)
        await committed(store, 2)


async def test_a_lost_answer_is_recognised_by_a_check_too(committer, store):
    await started(committer)
    async with running(committer):
        store.trouble = "answer lost"
        first, second = await in_flight(committer, 1, 2)
        committer.acknowledge(first)
        await committed(store, 1)
        await committer.check()
        assert committer.committed.low == 1
        assert committer.head.low == 2
        committer.acknowledge(second)
        await committed(store, 2)


async def test_a_lost_answer_followed_by_a_change_of_another_writer_is_a_conflict(committer, store):
    await started(committer)
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        store.trouble = "answer lost"
        committer.acknowledge(first)
        await committed(store, 1)
        foreign = await store.change(low=50, epoch=2)

        async def dropped():
            return committer.head is None

        await eventually(dropped)
        assert await committer.load() == foreign


async def test_a_conflict_adopts_what_is_stored(committer, store):
    await started(committer)
    async with running(committer):
        first, second = await in_flight(committer, 1, 2)
        foreign = await store.change(low=-5, epoch=2)
        committer.acknowledge(first)

        async def dropped():
            return committer.head is None

        await eventually(dropped)
        committer.acknowledge(second)
        await asyncio.sleep(3 * DELAY)
        assert await store.stored() == foreign
        assert await committer.load() == foreign
        (again,) = await in_flight(committer, 3)
        committer.acknowledge(again)
        await committed(store, 3)
        assert (await store.stored()).epoch == 2


async def test_a_watermark_that_vanished_is_written_again(committer, store):
    await started(committer)
    async with running(committer):
        store._texts.clear()
        (first,) = await in_flight(committer, 1)
        committer.acknowledge(first)
        await committed(store, 1)


async def test_a_hanging_save_holds_up_neither_the_events_nor_what_follows(committer, store):
    await started(committer)
    store.trouble = "hangs"
    async with running(committer):
        (first,) = await in_flight(committer, 1)
        committer.acknowledge(first)

        async def saving():
            return store.attempts == 2

        await eventually(saving)
        async with asyncio.timeout(1):
            (second,) = await in_flight(committer, 2)
        committer.acknowledge(second)
        store.trouble = None
        store.released.set()
        await committed(store, 2)


# --- checks: what others changed ----------------------------------------------------------------------------


async def test_a_check_without_a_change_changes_nothing(committer):
    await started(committer)
    await in_flight(committer, 1)
    await committer.check()
    assert committer.head.low == 1


async def test_a_check_ignores_a_watermark_that_is_missing(committer, store):
    await started(committer)
    store._texts.clear()
    await committer.check()
    assert committer.head.low == 0


async def test_a_check_ignores_a_store_that_fails(committer, store):
    await started(committer)
    store.trouble = "no loads"
    await committer.check()
    assert committer.head.low == 0


async def test_a_check_finds_what_another_writer_stored(committer, store):
    await started(committer)
    foreign = await store.change(low=-5, epoch=2)
    with pytest.raises(StaleError):
        await committer.check()
    assert committer.head is None
    assert await committer.load() == foreign


async def test_a_check_finds_an_edit_that_kept_the_revision(committer, store):
    await started(committer)
    edited = replace(await store.stored(), low=-5)
    store._texts.clear()
    await MemoryStore.save(store, KEY, edited.to_wire(), expected=None)
    with pytest.raises(StaleError):
        await committer.check()
    assert (await committer.load()).low == -5


async def test_an_edit_in_other_words_is_adopted_once_and_not_for_ever(committer, store):
    """An operator writes the same instant with another offset: valid, but not as we would write it."""
    wire = (await started(committer)).to_wire()
    wire["low"] = {"type": "integer", "value": "+5"}
    store._texts.clear()
    await MemoryStore.save(store, KEY, wire, expected=None)
    with pytest.raises(StaleError):
        await committer.check()
    assert (await committer.load()).low == 5
    await committer.check()
    assert committer.head.low == 5


async def test_a_check_sees_a_drop_that_came_before_it(committer):
    await started(committer)
    (first,) = await in_flight(committer, 1)
    committer.fail(first)
    with pytest.raises(StaleError):
        await committer.check()


# --- status -------------------------------------------------------------------------------------------------

STATUS = {"error": "the source is down", "since": "2026-01-01T00:00:00+00:00"}


async def test_a_status_is_stored_and_taken_back(committer, store):
    await started(committer)
    await committer.report(STATUS)
    assert (await store.stored()).status == STATUS
    await committer.report(None)
    assert (await store.stored()).status is None


async def test_a_status_that_is_stored_already_is_not_saved_again(committer, store):
    await started(committer)
    await committer.report(STATUS)
    await committer.report(dict(STATUS))
    assert store.saves == [1, 2]


async def test_a_status_moves_no_watermark(committer, store):
    await started(committer)
    (first,) = await in_flight(committer, 1)
    await committer.report(STATUS)
    stored = await store.stored()
    assert (stored.low, stored.status) == (0, STATUS)
    async with running(committer):
        committer.acknowledge(first)
        await committed(store, 1)
    assert (await store.stored()).status == STATUS


async def test_a_status_never_overwrites_what_another_writer_stored(committer, store):
    await started(committer)
    foreign = await store.change(low=-5, epoch=2)
    await committer.report(STATUS)
    assert await store.stored() == foreign
    with pytest.raises(StaleError):
        await committer.check()
    assert await committer.load() == foreign


async def test_without_a_watermark_no_status_is_stored(committer, store):
    assert await committer.load() is None
    await committer.report(STATUS)
    assert await store.stored() is None


@pytest.mark.parametrize("trouble", ["down", "a bug", "answer lost"])
async def test_a_status_that_cannot_be_saved_is_no_error(committer, store, trouble):
    await started(committer)
    store.trouble = trouble
    await committer.report(STATUS)
    store.trouble = None
    await committer.check()
    assert committer.head.low == 0


async def test_a_status_of_an_earlier_life_is_taken_back(committer, store):
    await started(committer)
    await store.change(status=STATUS)
    await committer.load()
    await committer.report(None)
    assert (await store.stored()).status is None
