"""Below Airflow 3.3, where nothing says that an event is stored: what is taken for stored, and when."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time

import pytest

from airflow.providers.watermark import delivery
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers import base
from tests.unit.committing import (
    DELAY,
    Store,
    committed,
    eventually,
    in_flight,
    make_committer,
    running,
    started,
)
from tests.unit.test_watching import Source, ThingsTrigger


class Supervisor:
    """The triggerer's supervisor: answers questions, unless it stalls or fails, and counts its answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.fails = False
        self.free = asyncio.Event()
        self.free.set()

    async def round_trip(self) -> None:
        await self.free.wait()
        if self.fails:
            raise RuntimeError("the API server is down")
        self.answers += 1


@pytest.fixture
def store():
    return Store()


@pytest.fixture
async def supervisor():
    return Supervisor()


@pytest.fixture
async def committer(store, supervisor):
    return make_committer(store, round_trip=supervisor.round_trip)


async def handed_over(committer, *lows):
    emissions = await in_flight(committer, *lows)
    for emission in emissions:
        emission.handed_over = True
    return emissions


async def test_an_event_is_committed_though_nothing_acknowledges_it(committer, store):
    await started(committer)
    async with running(committer):
        await handed_over(committer, 1, 2)
        await committed(store, 2)
    assert committer.committed.low == 2


async def test_it_takes_the_commit_delay_and_three_answers_with_three_naps_between_them(
    committer, store, supervisor
):
    asked_at = []

    async def round_trip():
        asked_at.append(committer._naps)

    committer._round_trip = round_trip
    await started(committer)
    async with running(committer):
        began = time.monotonic()
        await handed_over(committer, 1)
        await committed(store, 1)
    assert time.monotonic() - began >= DELAY
    assert len(asked_at) >= 3
    assert [later - sooner for sooner, later in itertools.pairwise(asked_at)] == [3] * (len(asked_at) - 1)


async def test_while_the_supervisor_does_not_answer_nothing_ages(committer, store, supervisor):
    await started(committer)
    supervisor.free.clear()
    async with running(committer):
        await handed_over(committer, 1)
        await asyncio.sleep(5 * DELAY)
        assert await store.low() == 0
        assert committer._naps == 0
        supervisor.free.set()
        began = time.monotonic()
        await committed(store, 1)
        assert time.monotonic() - began >= 0.9 * DELAY, "its stall was taken for age"


@pytest.mark.parametrize("answers", [1, 2, 3])
async def test_a_supervisor_that_stalls_later_holds_up_the_commit_as_well(
    committer, store, supervisor, answers
):
    await started(committer)
    async with running(committer):
        await handed_over(committer, 1)

        async def answered():
            return supervisor.answers == answers

        await eventually(answered)
        supervisor.free.clear()
        await asyncio.sleep(5 * DELAY)
        assert await store.low() == 0
        supervisor.free.set()
        await committed(store, 1)


async def test_an_answer_that_is_an_error_does_not_count_and_is_said_once(
    committer, store, supervisor, caplog
):
    await started(committer)
    supervisor.fails = True
    with caplog.at_level(logging.WARNING):
        async with running(committer) as task:
            await handed_over(committer, 1)
            await asyncio.sleep(5 * DELAY)
            assert await store.low() == 0
            assert committer._naps == 0
            assert not task.done()
            supervisor.fails = False
            await committed(store, 1)
    assert len([record for record in caplog.records if "the API server is down" in record.getMessage()]) == 1


async def test_what_the_triggerer_has_not_taken_yet_does_not_age(committer, store):
    """It writes its log before it takes an event, and asks for more afterwards."""
    await started(committer)
    async with running(committer):
        (first,) = await handed_over(committer, 1)
        (second,) = await in_flight(committer, 2)
        await committed(store, 1)
        await asyncio.sleep(3 * DELAY)
        assert await store.low() == 1
        assert first.acknowledged is not None
        assert second.acknowledged is None
        second.handed_over = True
        await committed(store, 2)


async def test_what_comes_while_the_supervisor_is_asked_waits_for_its_next_answer(committer, supervisor):
    await started(committer)
    supervisor.free.clear()
    async with running(committer):
        (first,) = await handed_over(committer, 1)
        await asyncio.sleep(DELAY)
        (second,) = await handed_over(committer, 2)
        supervisor.free.set()

        async def answered():
            return supervisor.answers

        await eventually(answered)
        assert first.acknowledged is not None
        assert second.acknowledged is None


async def test_the_supervisor_is_not_asked_while_nothing_is_in_flight(committer, supervisor):
    await started(committer)
    async with running(committer):
        await asyncio.sleep(5 * DELAY)
    assert supervisor.answers == 0


async def test_a_backlog_comes_no_faster_than_the_supervisor_answers(committer, supervisor):
    await started(committer)
    supervisor.free.clear()
    async with running(committer):
        lows = range(1, delivery.MAX_UNACKNOWLEDGED + 1)
        await handed_over(committer, *lows)
        waiting = asyncio.create_task(handed_over(committer, 1000))
        await asyncio.sleep(3 * DELAY)
        assert not waiting.done()
        supervisor.free.set()
        async with asyncio.timeout(5):
            await waiting


async def test_what_was_abandoned_is_never_committed(committer, store, supervisor):
    await started(committer)
    async with running(committer):
        await handed_over(committer, 1)

        async def answered():
            return supervisor.answers == 2

        await eventually(answered)
        committer.abandon()
        await asyncio.sleep(3 * DELAY)
        assert await store.low() == 0


# --- the trigger, as Airflow runs it ------------------------------------------------------------------------


class Run:
    """A trigger that is run as the triggerer does it, up to the moment when it takes an event."""

    def __init__(self, store, monkeypatch, **arguments):
        self.source = Source()
        self.source.put("first")
        self.trigger = ThingsTrigger(
            asset_name="orders", start_from="beginning", poll_interval=0.01, **arguments
        )
        self.trigger.things = self.source
        self.trigger.make_store = lambda: store
        self.supervisor = Supervisor()
        monkeypatch.setattr(base, "round_trip", self.supervisor.round_trip)
        self.events = self.trigger.run()

    async def next(self):
        event = await asyncio.wait_for(anext(self.events), 5)
        return [change["name"] for change in event.payload["changes"]]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(base, "DEFAULT_COMMIT_DELAY", DELAY)
    monkeypatch.setattr(base, "MIN_COMMIT_DELAY", 0.0)


async def stored_in(store, trigger):
    return await MemoryStore.load(store, trigger.key)


async def test_a_run_gives_events_and_commits_what_was_taken(store, monkeypatch, quick):
    run = Run(store, monkeypatch)
    assert await run.next() == ["first"]
    waiting = asyncio.create_task(run.next())

    async def is_committed():
        return (await stored_in(store, run.trigger))["seen"]

    await eventually(is_committed)
    run.source.put("second", 0.5)
    assert await waiting == ["second"]
    await run.events.aclose()


async def test_a_run_commits_nothing_before_its_event_is_taken(store, monkeypatch, quick):
    run = Run(store, monkeypatch)
    await run.next()
    await asyncio.sleep(5 * DELAY)
    assert not (await stored_in(store, run.trigger))["seen"]
    assert run.trigger._committer._in_flight[0].acknowledged is None
    await run.events.aclose()


async def test_a_run_that_is_cleaned_up_commits_nothing_more(store, monkeypatch, quick):
    """Airflow's own task is cancelled while it writes its log: the generator is not told."""
    run = Run(store, monkeypatch)
    await run.next()
    waiting = asyncio.create_task(run.next())
    await asyncio.sleep(DELAY / 4)
    run.supervisor.free.clear()
    await run.trigger.cleanup()
    run.supervisor.free.set()
    await asyncio.sleep(3 * DELAY)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not (await stored_in(store, run.trigger))["seen"]


async def test_a_run_that_is_cancelled_leaves_nothing_behind(store, monkeypatch):
    run = Run(store, monkeypatch)
    before = asyncio.all_tasks()
    await run.next()
    waiting = asyncio.create_task(run.next())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_a_trigger_that_was_never_run_can_be_cleaned_up():
    await ThingsTrigger(asset_name="orders").cleanup()


@pytest.mark.parametrize(
    ("asked_for", "least", "delay"),
    [
        (None, 0.0, 15.0),
        (2, 0.0, 2.0),
        (None, 10.0, 15.0),
        (2, 10.0, 10.0),
        (60, 10.0, 60.0),
        ("x", 0.0, 15.0),
    ],
)
async def test_the_commit_delay_is_no_shorter_than_airflow_allows(monkeypatch, asked_for, least, delay):
    monkeypatch.setattr(base, "MIN_COMMIT_DELAY", least)
    monkeypatch.setattr(base, "DEFAULT_COMMIT_DELAY", 15.0)
    trigger = ThingsTrigger(asset_name="orders", commit_delay=asked_for)
    assert trigger._make_committer()._nap * delivery._NAPS == pytest.approx(delay)
