"""Prefixes with dates in them: few partitions are listed, and each object is delivered once all the same."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import InvalidArgumentError
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.testing.objects import LocalObjects, LocalPrefixTrigger
from airflow.providers.watermark.triggers import object_store
from airflow.providers.watermark.watermark import Sweep, WatermarkState

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
START = datetime(2026, 3, 10, 12, tzinfo=UTC)
NUMBERS = itertools.count()


class Watched:
    """A bucket and its watcher, polled by hand; time passes only when told."""

    def __init__(self, monkeypatch=None, *, page_size=1000, **arguments):
        self.bucket = LocalObjects(f"dated-{next(NUMBERS)}", page_size=page_size)
        self.bucket.clock = START
        self.arguments = {"prefix": "e/{%Y/%m/%d}/", "late_arrival": 60.0, **arguments}
        self.state = WatermarkState(source={}, low=START)
        self.delivered = []
        self.restart()

    def restart(self):
        self.trigger = LocalPrefixTrigger(asset_name="events", bucket_name=self.bucket.name, **self.arguments)
        self.trigger._committer = SimpleNamespace(head=self.state)

    def put(self, name, *, days=0, modified=None):
        """Put an object in the partition of so many days from today."""
        date = self.bucket.clock + days * DAY
        self.bucket.put(f"e/{date:%Y/%m/%d}/{name}", modified=modified)

    def pass_time(self, passed):
        self.bucket.clock += passed
        self.now += passed.total_seconds()

    now = 0.0

    async def poll(self, *, stop_after=None):
        """Sweep; give the keys that are delivered, and how many pages were listed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(object_store, "time", SimpleNamespace(monotonic=lambda: self.now))
            bounds = await self.trigger.get_high_watermark()
            state = self.state.follow_rule(bounds.stray_rule, bounds.step)
            sweep = Sweep(state, bounds, max_seen=1000)
            before, found = self.trigger.requests, []
            async for page in self.trigger.read_changes(sweep):
                for change in page.changes:
                    if sweep.admits(change):
                        sweep.take(change)
                        found.append(change.identity.rpartition("/")[2])
                if stop_after is not None and len(found) >= stop_after:
                    break
                sweep.read_to(page)
            else:
                stop_after = None
            state = sweep.finish() if stop_after is None else sweep.snapshot()
        self.state = WatermarkState.from_wire(state.to_wire())
        self.trigger._committer.head = self.state
        self.delivered += found
        return found, self.trigger.requests - before


async def test_only_the_partitions_around_now_are_listed():
    watched = Watched()
    for days in range(-30, 1):
        watched.put(f"{days}", days=days, modified=START - DAY)
    await watched.poll()
    watched.pass_time(HOUR)
    watched.put("new")
    watched.put("old", days=-2)
    watched.put("ahead", days=1)
    watched.pass_time(HOUR)
    assert await watched.poll() == (["old", "new", "ahead"], 4)


async def test_strays_are_delivered_by_the_next_reconciliation():
    watched = Watched()
    await watched.poll()
    watched.pass_time(HOUR)
    watched.put("stray", days=-20)
    watched.put("far", days=5)
    watched.put("new")
    watched.pass_time(HOUR)
    assert (await watched.poll())[0] == ["new"]
    watched.pass_time(DAY)
    found, requests = await watched.poll()
    assert (found, requests) == (["stray", "far"], 1)
    watched.pass_time(HOUR)
    assert (await watched.poll()) == ([], 4)


async def test_a_restart_does_not_reconcile_before_its_time():
    watched = Watched()
    await watched.poll()
    watched.pass_time(2 * DAY)
    assert (await watched.poll())[1] == 1
    watched.restart()
    watched.pass_time(HOUR)
    assert (await watched.poll())[1] == 4


async def test_after_a_rewind_strays_come_again_at_once():
    watched = Watched()
    await watched.poll()
    watched.pass_time(HOUR)
    watched.put("stray", days=-20)
    watched.pass_time(DAY)
    assert (await watched.poll())[0] == ["stray"]
    rewound = replace(watched.state, low=START, stray_low=START, epoch=watched.state.epoch + 1)
    watched.state = watched.trigger._committer.head = rewound
    watched.pass_time(HOUR)
    assert (await watched.poll())[0] == ["stray"]
    watched.pass_time(HOUR)
    assert (await watched.poll()) == ([], 4)


@pytest.mark.parametrize(
    ("argument", "without"),
    [
        ({"lookback_keys": 5}, "scan='ordered'"),
        ({"partition_lookback": 60.0}, "dates in the prefix"),
        ({"reconcile_interval": 60.0}, "dates in the prefix"),
    ],
)
def test_an_argument_that_would_mean_nothing_is_refused(argument, without):
    trigger = LocalPrefixTrigger(asset_name="events", bucket_name="b", prefix="e/", **argument)
    with pytest.raises(InvalidArgumentError, match=f"means nothing without {without}"):
        trigger.serialize()


async def test_from_the_beginning_all_is_delivered_at_once():
    watched = Watched()
    watched.state = WatermarkState(source={}, low=BEGINNING)
    watched.restart()
    for days in (-400, -20, 0, 5):
        watched.put(f"{days}", days=days, modified=START - HOUR)
    assert (await watched.poll())[0] == ["-400", "-20", "0", "5"]
    watched.pass_time(HOUR)
    assert (await watched.poll())[0] == []


async def test_after_a_pause_of_years_all_is_listed_and_nothing_lost():
    watched = Watched()
    await watched.poll()
    for _ in range(1200):
        watched.pass_time(DAY)
        watched.put("x")
    watched.pass_time(HOUR)
    found, requests = await watched.poll()
    assert (len(found), requests) == (1200, 2)


async def test_keys_in_no_partition_are_not_watched():
    watched = Watched()
    await watched.poll()
    for key in ("e/README", "e/2026/13/01/x", "e/2026/03/10", "f/2026/03/10/x"):
        watched.bucket.put(key)
    watched.pass_time(2 * DAY)
    assert (await watched.poll())[0] == []


async def test_a_new_key_in_no_partition_is_told_once(caplog):
    watched = Watched(prefix="e/year={%Y}/month={%m}/")
    await watched.poll()
    watched.pass_time(HOUR)
    watched.bucket.put("e/year=2026/month=3/x")
    watched.pass_time(2 * DAY)
    await watched.poll()
    watched.bucket.put("e/year=2026/month=3/y")
    watched.pass_time(2 * DAY)
    await watched.poll()
    (told,) = [record.getMessage() for record in caplog.records if "in no partition" in record.getMessage()]
    assert "'e/year=2026/month=3/x'" in told


async def test_an_upload_to_an_old_partition_is_delivered_when_it_ends_however_long_it_takes():
    watched = Watched()
    await watched.poll()
    begun = watched.bucket.clock + HOUR
    watched.pass_time(HOUR)
    key = f"e/{START - 20 * DAY:%Y/%m/%d}/late"
    watched.bucket.uploads[key] = begun
    watched.pass_time(2 * DAY)
    assert (await watched.poll())[0] == []
    assert not watched.state.pending
    watched.bucket.put(key, modified=begun)
    del watched.bucket.uploads[key]
    watched.pass_time(2 * DAY)
    assert (await watched.poll())[0] == ["late"]
    watched.pass_time(2 * DAY)
    assert (await watched.poll())[0] == []


async def test_an_upload_of_days_to_the_partition_of_its_beginning_is_found_there():
    watched = Watched()
    await watched.poll()
    watched.pass_time(HOUR)
    begun = watched.bucket.clock
    key = f"e/{begun:%Y/%m/%d}/late"
    watched.bucket.uploads[key] = begun
    for _ in range(6):
        watched.pass_time(23 * HOUR)
        await watched.poll()
    watched.bucket.put(key, modified=begun)
    del watched.bucket.uploads[key]
    watched.pass_time(HOUR)
    await watched.poll()
    assert watched.delivered == ["late"]


@pytest.mark.parametrize(("before", "after"), [(2, 30), (30, 2)])
async def test_another_lookback_loses_nothing_that_waits(before, after):
    watched = Watched(partition_lookback=before * 86400.0)
    await watched.poll()
    watched.pass_time(HOUR)
    watched.put("waits", days=-9)
    begun = watched.bucket.clock
    key = f"e/{begun - 9 * DAY:%Y/%m/%d}/late"
    watched.bucket.uploads[key] = begun
    watched.pass_time(HOUR)
    watched.put("new")
    watched.pass_time(HOUR)
    await watched.poll()
    watched.arguments["partition_lookback"] = after * 86400.0
    watched.restart()
    watched.pass_time(HOUR)
    await watched.poll()
    watched.bucket.put(key, modified=begun)
    del watched.bucket.uploads[key]
    for _ in range(3):
        watched.pass_time(2 * DAY)
        await watched.poll()
    assert set(watched.delivered) == {"waits", "new", "late"}


def test_the_dates_have_to_make_sense_and_do_not_go_with_ordered():
    for arguments, text in (
        ({"prefix": "e/{%Y/%b}/"}, "%b is not known"),
        ({"prefix": "e/{%Y}/", "scan": "ordered"}, "must be 'full' where"),
        ({"prefix": "e/{%Y}/", "partition_lookback": -1}, "partition_lookback=-1"),
        ({"prefix": "e/{%Y}/", "reconcile_interval": 0}, "reconcile_interval=0"),
    ):
        trigger = LocalPrefixTrigger(asset_name="events", bucket_name="b", **arguments)
        with pytest.raises(InvalidArgumentError, match=text):
            trigger.serialize()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "upload", "end"]),
        st.integers(-6, 4),
        st.sampled_from([0, 30, 3600, 50_000, 100_000]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(["e/{%Y/%m/%d}/", "e/{%Y}/{%m}/{%d}/"]), st.sampled_from([1, 3, 1000]))
async def test_whatever_happens_each_object_is_delivered_once(steps, prefix, page_size):
    """Each step: an object or an upload appears in some partition, time passes, and a sweep may break off."""
    watched = Watched(prefix=prefix, page_size=page_size)
    expected, uploads = set(), []
    await watched.poll()
    for number, (action, days, passed, stop, restart) in enumerate(steps):
        watched.pass_time(timedelta(seconds=1))
        name = f"{number}"
        date = watched.bucket.clock + days * DAY
        if action == "put":
            watched.put(name, days=days)
            expected.add(name)
        elif action == "upload":
            key = f"e/{date:%Y/%m/%d}/{name}"
            watched.bucket.uploads[key] = watched.bucket.clock
            uploads.append((key, watched.bucket.clock))
            expected.add(name)
        elif uploads:
            end(watched, *uploads.pop(0))
        watched.pass_time(timedelta(seconds=passed))
        await watched.poll(stop_after=stop or None)
        if restart:
            watched.restart()
    for each in uploads:
        end(watched, *each)
    for _ in range(3):
        watched.pass_time(2 * DAY)
        await watched.poll()
    assert sorted(watched.delivered) == sorted(expected)


def end(watched, key, begun):
    watched.bucket.put(key, modified=begun)
    del watched.bucket.uploads[key]
