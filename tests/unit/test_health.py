"""What a watcher tells of itself: its status, and Airflow's metrics."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.delivery import Committer
from airflow.providers.watermark.exceptions import ConfigurationError, SourceError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers import health as health_module
from airflow.providers.watermark.triggers.health import STATUS_INTERVAL, Health
from airflow.providers.watermark.watermark import WatermarkState

KEY = WatermarkKey("orders", "things", "key")
SOURCE = {"watcher": "things"}
TAGS = {"asset": "orders", "watcher": "things", "source": "things://here"}


class Trigger:
    asset_name = "orders"
    watcher_name = "things"
    source = "things://here"
    log = logging.getLogger("airflow.providers.watermark.triggers")

    def __init__(self):
        self.facts = {"bound": "a clock"}


class Metrics:
    """Keeps what would be sent."""

    def __init__(self):
        self.sent = []

    def incr(self, name, count=1, *, tags):
        assert tags == TAGS
        self.sent.append((name, count))

    def gauge(self, name, value, *, tags):
        assert tags == TAGS
        self.sent.append((name, value))

    timing = gauge

    def last(self, name):
        return next(value for each, value in reversed(self.sent) if each == f"watermark.{name}")


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def metrics(monkeypatch):
    metrics = Metrics()
    monkeypatch.setattr(health_module, "stats", lambda: metrics)
    return metrics


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(health_module, "time", clock)
    return clock


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def trigger():
    return Trigger()


@pytest.fixture
async def committer(store):
    committer = Committer(lambda: store, KEY, source=SOURCE, commit_delay=5.0, log=Trigger.log)
    await committer.create(WatermarkState(source=SOURCE, low=datetime(2026, 3, 1, tzinfo=UTC)))
    return committer


@pytest.fixture
def health(trigger, committer, metrics, clock):
    return Health(trigger, committer)


async def status(store):
    wire = await store.load(KEY)
    return wire["status"], wire["revision"]


async def test_the_first_success_tells_what_is_known_of_the_source(health, store):
    await health.succeed(0.5)
    told, _ = await status(store)
    assert told | {"polled": "?"} == {"polled": "?", "delivered": "0", "seen": "0", "bound": "a clock"}
    assert datetime.fromisoformat(told["polled"]).utcoffset() == timedelta(0)


async def test_while_all_is_well_the_status_is_saved_every_five_minutes(health, store, clock):
    await health.succeed(0.5)
    _, first = await status(store)
    health.count({"count": 3})
    clock.now += STATUS_INTERVAL - 1
    await health.succeed(0.5)
    assert await status(store) == (_, first)
    clock.now += 1
    await health.succeed(0.5)
    told, second = await status(store)
    assert (told["delivered"], second) == ("3", first + 1)


async def test_a_new_fact_is_saved_at_once(health, store, trigger):
    await health.succeed(0.5)
    trigger.facts = {"bound": "something else"}
    await health.succeed(0.5)
    assert (await status(store))[0]["bound"] == "something else"


async def test_an_error_is_saved_once_per_cause_and_taken_back_at_once(health, store, clock):
    await health.succeed(0.5)
    await health.fail(SourceError("it is down"))
    told, first = await status(store)
    assert (told["error"], told["errors"]) == ("it is down", "1")
    await health.fail(SourceError("it is down"))
    assert (await status(store))[1] == first
    clock.now += STATUS_INTERVAL
    await health.fail(SourceError("it is down"))
    again, second = await status(store)
    assert (again["errors"], again["since"], second) == ("3", told["since"], first + 1)
    await health.fail(ConfigurationError("grant the right"))
    assert (await status(store))[0]["error"] == "grant the right"
    assert health.failures == 4
    await health.succeed(0.5)
    told, _ = await status(store)
    assert not {"error", "since", "errors"} & told.keys()
    assert health.failures == 0


async def test_when_the_source_was_last_read_stands_beside_an_error_even_after_a_restart(
    health, store, trigger, committer
):
    await health.succeed(0.5)
    polled = (await status(store))[0]["polled"]
    await committer.load()
    await Health(trigger, committer).fail(SourceError("it is down"))
    assert (await status(store))[0]["polled"] == polled


async def test_the_text_of_an_unexpected_error_is_not_stored(health, store):
    await health.fail(RuntimeError("password=hunter2"))
    assert (await status(store))[0]["error"] == "RuntimeError"


async def test_events_changes_errors_and_durations_are_measured(health, metrics):
    health.count({"count": 3})
    health.count({"count": 0})
    await health.fail(SourceError("it is down"))
    await health.succeed(0.5)
    assert metrics.sent.count(("watermark.events", 1)) == 2
    assert [count for name, count in metrics.sent if name == "watermark.changes"] == [3, 0]
    assert metrics.last("errors") == 1
    assert metrics.last("poll_duration") == 500


async def test_the_first_metric_is_sent_from_another_thread(health, metrics, monkeypatch):
    threads = []
    monkeypatch.setattr(metrics, "gauge", lambda *_, **__: threads.append(threading.current_thread()))
    await health.begin()
    assert threads
    assert threading.current_thread() not in threads


async def test_gauges_tell_what_is_uncommitted_seen_and_asked(health, metrics, trigger, committer):
    trigger.facts = {"requests": "12"}
    committer.head = replace(committer.head, seen={"AAAAAAAAAAA": committer.head.low})
    await health.succeed(0.5)
    assert (metrics.last("uncommitted"), metrics.last("seen"), metrics.last("requests")) == (0, 1, 12)


async def test_the_lag_is_the_age_of_what_was_last_read_to_its_end(health, metrics):
    await health.fail(SourceError("it is down"))
    whole = (datetime.now(UTC) - datetime(2026, 3, 1, tzinfo=UTC)).total_seconds()
    assert metrics.last("lag_seconds") == pytest.approx(whole, abs=5)
    health.covered = datetime.now(UTC) - timedelta(seconds=60)
    await health.succeed(0.5)
    assert metrics.last("lag_seconds") == pytest.approx(60, abs=5)


@pytest.mark.parametrize("covered", [5, "text", datetime(2026, 3, 1)], ids=["id", "text", "naive"])  # noqa: DTZ001
async def test_a_position_without_a_clock_has_no_lag(health, metrics, covered):
    health.covered = covered
    await health.succeed(0.5)
    assert "watermark.lag_seconds" not in dict(metrics.sent)
