"""One watcher at work, over a source and a store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.change import Change, HighWatermark, Page
from airflow.providers.watermark.delivery import Committer
from airflow.providers.watermark.exceptions import ConfigurationError, SourceError, StoreError
from airflow.providers.watermark.position import BEGINNING, encode_position
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers import watching
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.watching import Watch
from airflow.providers.watermark.watermark import WatermarkState

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Source:
    """Things with a second each, and a clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = NOON
        self.things: dict[str, datetime] = {}
        self.late: dict[str, datetime] = {}
        self.found: dict[str, Change] = {}
        self.error: Exception | None = None
        self.reads = 0
        self.on_read = lambda: None
        self.page_size = 1000

    def put(self, name, seconds_ago=1.0):
        self.things[name] = self.now - timedelta(seconds=seconds_ago)

    def change(self, name):
        at = self.things[name]
        return Change(identity=name, version=at.isoformat(), position=at, detail={"name": name})

    def pages(self, after):
        names = sorted(name for name in self.things if name > after)
        for start in range(0, len(names), self.page_size):
            yield Page(changes=[self.change(name) for name in names[start : start + self.page_size]])


class ThingsTrigger(BaseWatermarkTrigger):
    watcher_name = "things"
    source_fields = ("place",)

    place: str = "here"

    @property
    def source(self):
        return f"things://{self.place}"

    async def get_high_watermark(self):
        if self.things.error is not None:
            raise self.things.error
        return HighWatermark.from_clock(
            self.things.now, late_arrival=self.late_arrival, step=SECOND, late=dict(self.things.late)
        )

    async def read_changes(self, sweep):
        self.things.reads += 1
        self.things.on_read()
        for page in self.things.pages(sweep.cursor or ""):
            yield page
            if self.things.error is not None:
                raise self.things.error

    async def find_changes(self, identities):
        return {name: self.things.found[name] for name in identities if name in self.things.found}


class Running:
    """A watcher, with the events that it has handed over."""

    def __init__(self, source, store, **arguments):
        self.trigger = ThingsTrigger(
            **{
                "asset_name": "orders",
                "start_from": "beginning",
                "late_arrival": 100.0,
                "poll_interval": 0.01,
                "commit_delay": 0.02,
                **arguments,
            }
        )
        self.trigger.things = source
        self.store = store
        self.committer = Committer(
            lambda: store,
            self.trigger.key,
            source=self.trigger.fingerprint,
            commit_delay=self.trigger.commit_delay,
            log=self.trigger.log,
        )
        self.emissions = Watch(self.trigger, self.committer).run()
        self.task = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.emissions.aclose()

    async def next(self, within=5.0):
        """Wait for the next event."""
        while True:
            emission = await asyncio.wait_for(anext(self.emissions), within)
            if emission.payload is not None:
                return emission
            self.committer.acknowledge(emission)

    async def names(self, within=5.0):
        """Wait for the next event, acknowledge it, and name what it carries."""
        emission = await self.next(within)
        names = [change["name"] for change in emission.payload["changes"]]
        self.committer.acknowledge(emission)
        return names

    async def nothing(self, seconds=0.1):
        """Make sure that nothing is handed over; ends the watch."""
        with pytest.raises(TimeoutError):
            await self.next(seconds)

    async def rest(self, seconds=0.1):
        """Let it work without taking events from it."""
        self.task = asyncio.create_task(anext(self.emissions))
        await asyncio.sleep(seconds)
        assert not self.task.done(), self.task
        return self.task

    async def stored(self):
        wire = await self.store.load(self.trigger.key)
        return None if wire is None else WatermarkState.from_wire(wire)


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def quick(monkeypatch):
    """Back off for a hundredth of a second at the most."""
    monkeypatch.setattr(watching, "MAX_BACKOFF", 0.01)


@contextlib.contextmanager
def said(caplog, level=logging.WARNING):
    lines = []
    with caplog.at_level(level):
        yield lines
    lines += [record.getMessage() for record in caplog.records]


# --- the first state ----------------------------------------------------------------------------------------


async def test_from_the_beginning_everything_is_delivered(source, store):
    source.put("a", 100_000)
    source.put("b")
    async with Running(source, store) as running:
        assert await running.names() == ["a", "b"]


async def test_from_now_only_what_comes_later_is_delivered_and_the_baseline_is_stored_at_once(source, store):
    source.put("old")
    async with Running(source, store, start_from="now") as running:
        await asyncio.gather(running.nothing(), return_exceptions=False)
        assert (await running.stored()).low == NOON - SECOND
    source.things["new"] = NOON
    source.now += 5 * SECOND
    async with Running(source, store, start_from="now") as running:
        assert await running.names() == ["new"]


async def test_from_now_the_current_second_is_delivered_since_it_is_not_over(source, store):
    source.now = NOON + timedelta(milliseconds=400)
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.05)
        assert (await running.stored()).low == NOON - SECOND


async def test_a_start_position_is_inclusive(source, store):
    source.put("before", 11)
    source.put("at", 10)
    async with Running(source, store, start_from="2026-03-01T12:59:50+01:00") as running:
        assert await running.names() == ["at"]


async def test_a_stored_watermark_wins_over_start_from(source, store):
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.05)
    source.put("old", 1000)
    async with Running(source, store, start_from="beginning") as running:
        await running.nothing(0.05)


async def test_from_now_an_upload_in_progress_is_watched_for(source, store):
    source.late = {"slow": NOON - 500 * SECOND}
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.05)
    source.late = {}
    source.things["slow"] = NOON - 500 * SECOND
    source.things["as old, without an upload"] = NOON - 500 * SECOND
    async with Running(source, store, start_from="now") as running:
        assert await running.names() == ["slow"]


async def test_from_now_the_present_version_under_an_upload_is_old_news(source, store):
    source.late = {"slow": NOON - 500 * SECOND}
    source.put("slow", 400)
    source.found = {"slow": source.change("slow")}
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.05)
    source.late = {}
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.05)


async def test_from_now_an_upload_that_ends_while_it_is_looked_up_is_news(source, store, monkeypatch):
    source.late = {"slow": NOON - 500 * SECOND}

    async def find_changes(trigger, identities):
        source.late = {}
        source.put("slow", 500)
        return {name: source.change(name) for name in identities}

    monkeypatch.setattr(ThingsTrigger, "find_changes", find_changes)
    async with Running(source, store, start_from="now") as running:
        assert await running.names() == ["slow"]


async def test_from_now_more_uploads_than_slots_are_said(source, store, caplog):
    source.late = {str(number): NOON - number * SECOND for number in range(1, 2050)}
    with said(caplog) as lines:
        async with Running(source, store, start_from="now") as running:
            await running.nothing(0.2)
            assert len((await running.stored()).pending) == 2048
    assert any("2049 uploads began before the low watermark" in line for line in lines)


# --- sweeps -------------------------------------------------------------------------------------------------


async def test_what_is_new_is_delivered_once(source, store):
    source.put("a")
    async with Running(source, store) as running:
        assert await running.names() == ["a"]
        waiting = await running.rest()
        source.put("b")
        emission = await waiting
        assert [change["name"] for change in emission.payload["changes"]] == ["b"]


async def test_what_is_stamped_in_the_current_second_waits_until_it_is_over(source, store):
    source.things["a"] = source.now
    async with Running(source, store) as running:
        waiting = await running.rest(0.05)
        source.now += SECOND
        assert (await waiting).payload["count"] == 1


@pytest.mark.parametrize("late_arrival", [0.001, 0.5, 0.999, 1.0, 1.5])
@pytest.mark.parametrize("now", [NOON, NOON + timedelta(milliseconds=900)], ids=["whole", "fraction"])
async def test_a_short_late_arrival_loses_nothing_of_the_current_second(source, store, now, late_arrival):
    source.now = now
    source.things["a"] = NOON
    async with Running(source, store, late_arrival=late_arrival, start_from="2026-01-01T00:00:00Z") as run:
        waiting = await run.rest(0.05)
        source.now = NOON + 10 * SECOND
        assert (await waiting).payload["count"] == 1


async def test_one_event_carries_no_more_changes_than_allowed(source, store, monkeypatch):
    monkeypatch.setattr(ThingsTrigger, "max_changes_per_event", 2)
    for name in "abcde":
        source.put(name)
    async with Running(source, store) as running:
        assert [await running.names() for _ in range(3)] == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_sweep_that_was_interrupted_goes_on_where_it_was(source, store, monkeypatch):
    monkeypatch.setattr(ThingsTrigger, "max_changes_per_event", 2)
    for name in "abcde":
        source.put(name, 1000)
    async with Running(source, store) as running:
        assert await running.names() == ["a", "b"]
        await running.next()
        async with asyncio.timeout(5):
            while (state := await running.stored()).cursor is None:  # noqa: ASYNC110 - a store tells nobody
                await asyncio.sleep(0.01)
        assert (state.cursor, state.high, state.low) == ("b", NOON - 100 * SECOND, BEGINNING)
    async with Running(source, store) as running:
        assert [await running.names(), await running.names()] == [["c", "d"], ["e"]]


async def test_nothing_new_writes_nothing(source, store):
    async with Running(source, store, start_from="now") as running:
        await running.nothing(0.15)
        assert source.reads > 3
        assert (await running.stored()).revision == 1


async def test_a_long_sweep_without_news_saves_how_far_it_has_come(source, store, monkeypatch):
    monkeypatch.setattr(watching, "CHECKPOINT_INTERVAL", 0.0)
    source.page_size = 1
    for name in "abc":
        source.put(name, 500)
    async with Running(source, store, start_from="now", late_arrival=1.0) as running:
        for _ in range(2):
            emission = await asyncio.wait_for(anext(running.emissions), 5)
            assert emission.payload is None
        assert emission.state.cursor == "b"


async def test_a_payload_names_the_watermarks_of_its_sweep(source, store):
    source.put("a")
    async with Running(source, store) as running:
        payload = (await running.next()).payload
    assert payload["watermark"] | {"event_id": ""} == {
        "version": 1,
        "event_id": "",
        "epoch": 1,
        "watcher": "things",
        "source": "things://here",
        "low": encode_position(BEGINNING),
        "high": encode_position(NOON - 100 * SECOND),
    }


async def test_what_was_read_before_an_error_is_delivered_and_reading_goes_on_behind_it(source, store, quick):
    source.page_size = 1
    source.put("a")
    source.put("b")
    source.error = None
    reads = []

    def fail_once():
        reads.append(source.reads)
        source.error = SourceError("broken off") if source.reads == 1 else None

    source.on_read = fail_once
    async with Running(source, store) as running:
        # The clock is asked before reading, so the error of the first reading must not stop the second.
        first = await running.next()
        source.error = None
        second = await running.next()
        names = [change["name"] for event in (first, second) for change in event.payload["changes"]]
    assert names == ["a", "b"]


# --- failed events ------------------------------------------------------------------------------------------


async def test_a_failed_event_comes_again_with_the_same_ids(source, store):
    source.put("a")
    async with Running(source, store) as running:
        first = await running.next()
        waiting = await running.rest(0.05)
        running.committer.fail(first)
        again = await asyncio.wait_for(waiting, 5)
        assert again.payload == first.payload


async def test_an_event_that_fails_while_a_later_sweep_reads_comes_again(source, store):
    """The sweep under way ends without news, and its state, which counts the event as delivered, must go."""
    source.put("a")
    async with Running(source, store) as running:
        first = await running.next()
        source.on_read = lambda: source.reads == 2 and running.committer.fail(first)
        again = await running.next()
        assert again.payload == first.payload


async def test_an_event_that_fails_while_a_later_sweep_breaks_off_comes_again(source, store, quick):
    source.put("a")
    async with Running(source, store) as running:
        first = await running.next()

        def fail():
            source.error = None
            if source.reads == 2:
                running.committer.fail(first)
                source.error = SourceError("broken off")

        source.on_read = fail
        waiting = await running.rest(0.1)
        source.error = None
        again = await asyncio.wait_for(waiting, 5)
        assert again.payload == first.payload


async def test_a_watermark_changed_by_an_operator_is_adopted_with_the_next_poll(source, store):
    source.put("a", 1000)
    async with Running(source, store, start_from="now") as running:
        waiting = await running.rest(0.05)
        await running.trigger.asset_watermark.aset_value(NOON - 2000 * SECOND, store=store)
        emission = await asyncio.wait_for(waiting, 5)
        assert [change["name"] for change in emission.payload["changes"]] == ["a"]
        assert emission.payload["watermark"]["epoch"] == 2


# --- errors -------------------------------------------------------------------------------------------------


async def test_an_error_is_said_once_with_the_watchers_identity_and_recovery_too(
    source, store, quick, caplog
):
    source.error = SourceError("the source is down, wait")
    with said(caplog, logging.INFO) as lines:
        async with Running(source, store) as running:
            waiting = await running.rest(0.15)
            source.error = None
            source.put("a")
            await asyncio.wait_for(waiting, 5)
            await asyncio.sleep(0)
    identity = "[asset=orders source=things://here] "
    told = [line for line in lines if "is down" in line]
    assert told == [identity + "the source is down, wait"]


async def test_an_error_is_kept_in_the_stored_status_until_it_is_mended(source, store, quick):
    async with Running(source, store) as running:
        waiting = await running.rest(0.05)
        source.error = ConfigurationError("grant the right")
        await asyncio.sleep(0.1)
        status = (await running.stored()).status
        assert status["error"] == "grant the right"
        assert datetime.fromisoformat(status["since"]).utcoffset() == timedelta(0)
        source.error = None
        await asyncio.sleep(0.1)
        assert "error" not in (await running.stored()).status
        assert not waiting.done()


async def test_the_text_of_an_unexpected_error_is_not_stored(source, store, quick):
    async with Running(source, store) as running:
        await running.rest(0.05)
        source.error = RuntimeError("password=hunter2")
        await asyncio.sleep(0.1)
        assert (await running.stored()).status["error"] == "RuntimeError"


class FailingStore(MemoryStore):
    error: Exception | None = None

    async def load(self, key):
        if self.error is not None:
            raise self.error
        return await super().load(key)

    async def save(self, key, value, *, expected):
        if self.error is not None:
            raise self.error
        await super().save(key, value, expected=expected)


@pytest.mark.parametrize(
    "error", [StoreError("down"), RuntimeError("a bug"), OSError("no route")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_no_error_of_a_store_ends_the_watch(source, quick, error, when):
    store = FailingStore()
    source.put("a")
    async with Running(source, store) as running:
        if when == "at the start":
            store.error = error
            waiting = await running.rest(0.1)
        else:
            assert await running.names() == ["a"]
            waiting = await running.rest(0.1)
            store.error = error
            source.put("b")
            await asyncio.sleep(0.1)
        store.error = None
        source.put("c")
        emission = await asyncio.wait_for(waiting, 5)
        names = {change["name"] for change in emission.payload["changes"]}
        while not names & {"c"}:
            names |= set(await running.names())


async def test_no_bug_in_a_watcher_ends_the_watch(source, store, quick, monkeypatch):
    bugs = [KeyError("x"), ZeroDivisionError(), RecursionError(), AssertionError()]

    async def get_high_watermark(trigger):
        if bugs:
            raise bugs.pop()
        return await original(trigger)

    original = ThingsTrigger.get_high_watermark
    monkeypatch.setattr(ThingsTrigger, "get_high_watermark", get_high_watermark)
    source.put("a")
    async with Running(source, store) as running:
        assert await running.names() == ["a"]


async def test_a_detail_that_is_no_json_moves_no_watermark(source, store, quick, caplog, monkeypatch):
    monkeypatch.setattr(
        Source,
        "change",
        lambda self, name: Change(
            identity=name, version="", position=self.things[name], detail={"x": float("nan")}
        ),
    )
    source.put("poison", 500)
    with said(caplog) as lines:
        async with Running(source, store) as running:
            await running.nothing(0.1)
            assert (await running.stored()).low is BEGINNING
    assert sum("'poison' is not strict JSON" in line for line in lines) == 1


async def test_the_source_is_opened_again_after_each_error_and_closed_at_the_end(
    source, store, quick, monkeypatch
):
    calls = []

    async def called(name):
        calls.append(name)

    monkeypatch.setattr(ThingsTrigger, "open", lambda self: called("open"))
    monkeypatch.setattr(ThingsTrigger, "close", lambda self: called("close"))
    source.error = SourceError("down")
    async with Running(source, store) as running:
        waiting = await running.rest(0.1)
        source.error = None
        source.put("a")
        await asyncio.wait_for(waiting, 5)
    assert calls == ["open", "close"] * (len(calls) // 2)
    assert len(calls) >= 4


def test_the_backoff_is_fully_jittered_and_has_a_limit():
    assert watching.MAX_BACKOFF == 300


async def test_a_cancelled_watch_ends_and_leaves_no_task(source, store):
    running = Running(source, store)
    task = asyncio.create_task(anext(running.emissions))
    await asyncio.sleep(0.05)
    before = asyncio.all_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(before) > 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_unknown_arguments_are_told_and_not_fatal(source, store, caplog):
    source.put("a")
    with said(caplog) as lines:
        async with Running(source, store, from_another_release=1) as running:
            assert await running.names() == ["a"]
    assert any("from_another_release" in line for line in lines)


# --- what waits is said -------------------------------------------------------------------------------------


async def test_future_dates_are_counted_and_said_once(source, store, caplog):
    source.put("f1", -1000)
    source.put("f2", -2000)
    with said(caplog) as lines:
        async with Running(source, store) as running:
            await running.nothing(0.1)
    assert sum("2 changes are dated in the future" in line and "'f1'" in line for line in lines) == 1


async def test_a_full_memory_is_said_once_and_what_waits_is_delivered_when_settled(source, store, caplog):
    for name in "abc":
        source.put(name, 10)
    with said(caplog) as lines:
        async with Running(source, store, max_seen=2) as running:
            assert await running.names() == ["a", "b"]
            waiting = await running.rest(0.1)
            source.now += 200 * SECOND
            emission = await asyncio.wait_for(waiting, 5)
            assert [change["name"] for change in emission.payload["changes"]] == ["c"]
    assert sum("more than max_seen=2 changes" in line for line in lines) == 1


async def test_settled_delivery_waits_for_the_bound(source, store):
    source.put("a", 99)
    async with Running(source, store, delivery="settled") as running:
        waiting = await running.rest(0.05)
        source.now += SECOND
        emission = await asyncio.wait_for(waiting, 5)
        assert emission.payload["count"] == 1
        assert emission.state.seen == {}


# --- clocks that are wrong, and slots that come late --------------------------------------------------------


async def test_a_low_watermark_that_a_wrong_clock_put_into_the_future_is_taken_back(source, store, caplog):
    source.put("a", seconds_ago=200)
    with said(caplog) as lines:
        async with Running(source, store) as running:
            assert await running.names() == ["a"]
            right, source.now = source.now, source.now + timedelta(days=1)
            source.things["b"] = right
            assert await running.names() == ["b"]
            waiting = await running.rest()
            source.now = right + 10 * SECOND
            source.things["after the clock was set"] = right + 5 * SECOND
            emission = await asyncio.wait_for(waiting, 5)
            assert "after the clock was set" in [each["name"] for each in emission.payload["changes"]]
    assert any("is ahead of the source's clock" in line for line in lines)


async def test_a_low_watermark_in_the_future_is_not_taken_back_to_the_beginning(source, store, monkeypatch):
    """As while a database's barrier has not fallen yet: all that there is would be delivered again."""
    source.put("a", seconds_ago=7200)
    async with Running(source, store) as running:
        assert await running.names() == ["a"]
        await running.rest(0.3)
        low = (await running.stored()).low
        assert low is not BEGINNING
    ordinary = ThingsTrigger.get_high_watermark

    async def unsettled(self):
        return replace(await ordinary(self), bound=BEGINNING)

    monkeypatch.setattr(ThingsTrigger, "get_high_watermark", unsettled)
    source.now -= timedelta(hours=1)
    async with Running(source, store) as running:
        await running.rest(0.3)
        assert (await running.stored()).low == low


async def test_a_start_in_the_future_is_waited_for(source, store):
    source.put("a")
    async with Running(source, store, start_from="2026-03-02T00:00:00Z") as running:
        await running.nothing(0.2)
        assert (await running.stored()).low == datetime(2026, 3, 2, tzinfo=UTC) - SECOND


async def test_an_upload_that_is_seen_only_late_does_not_make_its_present_version_news(source, store):
    source.put("b", seconds_ago=150)
    source.found["b"] = source.change("b")
    async with Running(source, store) as running:
        assert await running.names() == ["b"]
        waiting = await running.rest()
        source.late["b"] = NOON - 300 * SECOND  # as after a time without the permission to list uploads
        await asyncio.sleep(0.1)
        assert not waiting.done(), "what was delivered is delivered again"
        source.things["b"] = NOON - 299 * SECOND
        del source.late["b"]
        emission = await asyncio.wait_for(waiting, 5)
        assert [change["name"] for change in emission.payload["changes"]] == ["b"]


@pytest.mark.parametrize("stored", [0, -1, float("nan"), float("inf"), "soon", None])
async def test_a_stored_interval_that_is_none_makes_no_hot_loop(source, store, stored):
    async with Running(source, store) as running:
        running.trigger.poll_interval = stored
        await running.rest(0.2)
        assert source.reads <= 2


# --- the event after a burst -------------------------------------------------------------------------------


async def test_an_event_without_changes_follows_a_burst_and_only_a_burst(source, store, monkeypatch):
    monkeypatch.setattr(watching, "WAKE_AFTER", 0.3)
    source.put("a")
    async with Running(source, store) as running:
        assert await running.names() == ["a"]
        with pytest.raises(TimeoutError):
            await running.next(0.6)
    async with Running(source, store) as running:
        source.put("b")
        await running.names()  # soon after the start: who knows what came right before it
        assert await running.names() == []
        source.put("c")
        await asyncio.sleep(0.4)
        assert await running.names() == ["c"]
        await running.nothing(0.6)


async def test_the_event_after_a_burst_is_still_owed_after_a_restart(source, store, monkeypatch):
    monkeypatch.setattr(watching, "WAKE_AFTER", 0.3)
    async with Running(source, store, start_from="beginning") as running:
        for name in ("a", "b"):
            source.put(name)
            assert await running.names() == [name]
        await running.rest(0.15)
        assert (await running.stored()).restless
    async with Running(source, store) as running:
        emission = await running.next(2)
        assert emission.payload["count"] == 0
        assert emission.payload["changes"] == []
