"""What watchers of object stores share, over a bucket in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from datetime import timedelta

import pytest

from airflow.providers.watermark.exceptions import InvalidArgumentError, SourceError, ThrottledError
from airflow.providers.watermark.objects import pace
from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.testing.objects import WatchedObjects
from airflow.providers.watermark.watermark import WatermarkState

SECOND = timedelta(seconds=1)


def numbered(count, start=0):
    return [f"{number:05}" for number in range(start, start + count)]


class Watched(WatchedObjects):
    """A bucket that notes what is asked of it."""

    def __init__(self, **arguments):
        super().__init__(**{"page_size": 10, "start_from": "beginning", "late_arrival": 60.0, **arguments})
        self.asked = []

    def watch(self, **arguments):
        trigger = self.make_trigger(asset_name="orders", **arguments)
        harness = Harness(trigger)
        revive = harness._revive

        def spy(written):
            revived = revive(written)
            list_page = revived.list_page

            async def ask(keys, interest, *, token=None, limit=None):
                self.asked.append((token or keys.after, interest))
                return await list_page(keys, interest, token=token, limit=limit)

            revived.list_page = ask
            return revived

        harness._revive = spy
        return harness

    async def sweep(self, watcher):
        """Sweep once, and tell the names that were delivered and how many pages were listed."""
        self.asked.clear()
        deliveries = await watcher.deliver()
        return [self.name_of(each) for one in deliveries for each in one.payload["changes"]], len(self.asked)


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch):
    monkeypatch.setattr(pace, "FIRST_BACKOFF", 0.0)


def said(watcher, text):
    return [record for record in watcher.records if text in record.getMessage()]


# --- scan="ordered" -----------------------------------------------------------------------------------------


async def test_an_ordered_scan_lists_all_once_and_then_the_end_alone():
    watched = Watched(scan="ordered", lookback_keys=20)
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        assert await watched.sweep(watcher) == (numbered(1000), 100)
        await watched.put(*numbered(5, start=1000), ago=30)
        assert await watched.sweep(watcher) == (numbered(5, start=1000), 3)
        assert await watched.sweep(watcher) == ([], 3)


async def test_an_ordered_scan_goes_on_at_the_end_after_a_restart():
    watched = Watched(scan="ordered", lookback_keys=20)
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        await watcher.crash()
        await watched.put(*numbered(5, start=1000), ago=30)
        assert await watched.sweep(watcher) == (numbered(5, start=1000), 3)
        anchor = (await watcher.stored()).anchor
        await watcher.crash()
        assert await watched.sweep(watcher) == ([], 3)
        assert (await watcher.stored()).anchor == anchor == "in/00979"


async def test_an_ordered_scan_finds_its_place_anew_when_the_end_was_deleted_while_it_was_down():
    watched = Watched(scan="ordered", lookback_keys=20)
    await watched.put(*numbered(100), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        assert (await watcher.stored()).anchor == "in/00079"
        await watcher.crash()
        for name in numbered(50, start=50):
            watched.bucket.delete(f"in/{name}")
        assert await watched.sweep(watcher) == ([], 1)
        await watched.put("00045", ago=30, version=2)  # one of the last 20 keys
        assert (await watched.sweep(watcher))[0] == ["00045"]
        assert await watched.sweep(watcher) == ([], 2)


async def test_an_ordered_scan_from_now_lists_all_once_to_find_the_end():
    watched = Watched(scan="ordered", lookback_keys=20, start_from="now")
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        assert await watched.sweep(watcher) == ([], 100)
        await watched.put(*numbered(5, start=1000))
        await watched.advance(1)
        assert await watched.sweep(watcher) == (numbered(5, start=1000), 3)
        await watcher.crash()
        assert await watched.sweep(watcher) == ([], 3)


async def test_where_the_end_begins_is_stored_without_news_too():
    watched = Watched(scan="ordered", lookback_keys=20, start_from="now")
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        assert await watched.sweep(watcher) == ([], 100)
        await watcher.crash()
        assert await watched.sweep(watcher) == ([], 2)


async def test_a_clock_that_was_wrong_hides_nothing_behind_the_anchor():
    watched = Watched(scan="ordered", lookback_keys=1, start_from="now")
    await watched.put(*numbered(100), ago=300)
    async with watched.watch() as watcher:
        await watched.advance(100_000)  # it is wrong; the objects' stamps are right
        await watched.sweep(watcher)
        await watched.put(*numbered(100, start=100), ago=100_000)
        assert (await watched.sweep(watcher))[0] == []
        await watched.advance(2 - 100_000)
        delivered = (await watched.sweep(watcher))[0]
    assert delivered == numbered(100, start=100)


def test_a_state_without_an_anchor_is_stored_as_ever_and_one_with_it_comes_back():
    state = WatermarkState(source={}, low=WatchedObjects().now())
    assert "anchor" not in state.to_wire()
    anchored = dataclasses.replace(state, anchor="in/\u00e9")
    assert anchored.to_wire() == {**state.to_wire(), "anchor": {"type": "string", "value": "in/\u00e9"}}
    assert WatermarkState.from_wire(anchored.to_wire()) == anchored
    assert WatermarkState.from_wire(state.to_wire()).anchor is None


async def test_at_least_as_many_keys_as_lookback_keys_says_are_listed_again():
    watched = Watched(scan="ordered", lookback_keys=35)
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        await watched.put("00965x", "00964x", ago=30)
        assert (await watched.sweep(watcher))[0] == ["00964x", "00965x"]
        await watched.put("00900x", ago=30)
        assert (await watched.sweep(watcher))[0] == [], "a key that does not sort last is declared away"


@pytest.mark.parametrize("delivery", ["eager", "settled"])
async def test_an_ordered_scan_never_leaves_behind_what_has_to_wait(delivery):
    watched = Watched(scan="ordered", lookback_keys=1)
    await watched.put(*numbered(100), ago=300)
    async with watched.watch(delivery=delivery, max_seen=1) as watcher:
        await watched.sweep(watcher)
        delivered = []
        for number in range(1, 20):
            await watched.put(*numbered(20, start=100 * number))
            await watched.advance(5)
            delivered += (await watched.sweep(watcher))[0]
        await watched.advance(100)
        delivered += (await watched.sweep(watcher))[0]
    assert sorted(delivered) == [key for number in range(1, 20) for key in numbered(20, start=100 * number)]


async def test_what_is_dated_in_the_future_is_not_left_behind():
    watched = Watched(scan="ordered", lookback_keys=1)
    await watched.put(*numbered(100), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        await watched.put("00100", ago=-1000)
        await watched.sweep(watcher)
        await watched.put(*numbered(100, start=101), ago=30)
        await watched.sweep(watcher)
        await watched.advance(2000)
        assert (await watched.sweep(watcher))[0] == ["00100"]


async def test_a_rewind_lists_all_again():
    watched = Watched(scan="ordered", lookback_keys=20)
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        stored = await watcher.stored()
        assert stored.anchor is not None
        rewound = stored.rewind(watched.now() - 400 * SECOND)
        assert rewound.anchor is None
        await watcher.crash()
        await watcher.store.save(
            watcher.trigger.key,
            WatermarkState.from_wire({**rewound.to_wire(), "revision": stored.revision + 1}).to_wire(),
            expected=stored.to_wire(),
        )
        assert await watched.sweep(watcher) == (numbered(1000), 100)


async def test_an_interrupted_sweep_does_not_move_the_anchor():
    watched = Watched(scan="ordered", lookback_keys=1, max_objects_per_event=10)
    await watched.put(*numbered(100), ago=10)
    async with watched.watch(delivery="settled") as watcher:
        await watched.advance(100)
        watched.bucket.on_request = failing_from(watched, request=6)
        await watcher.deliver()
        assert (await watcher.stored()).cursor is not None
        watched.bucket.on_request = None
        assert len((await watched.sweep(watcher))[0]) == 60
        assert (await watcher.stored()).anchor is None
        await watched.put("00000x")
        await watched.advance(100)
        assert (await watched.sweep(watcher))[0] == ["00000x"]
        assert (await watcher.stored()).anchor is not None


def failing_from(watched, request):
    number = 0

    async def fail():
        nonlocal number
        number += 1
        if number >= request:
            raise SourceError("no")

    return fail


async def test_a_full_scan_after_an_ordered_one_lists_all():
    watched = Watched()
    await watched.put(*numbered(100), ago=300)
    async with watched.watch(scan="ordered", lookback_keys=1) as watcher:
        await watched.sweep(watcher)
        store = watcher.store
        assert (await watcher.stored()).anchor is not None
    async with watched.watch() as watcher:
        watcher.store = store
        await watched.put("00000x", ago=30)
        assert await watched.sweep(watcher) == (["00000x"], 11)
        assert (await watcher.stored()).anchor is None


# --- what is of interest ------------------------------------------------------------------------------------


async def test_without_uploads_only_what_is_newer_than_the_low_watermark_is_of_interest():
    watched = Watched()
    await watched.put("a", ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        await watched.sweep(watcher)
        ((_, interest),) = watched.asked
        assert interest.keys == []
        assert interest.since == watched.now() - 60 * SECOND


async def test_a_key_that_is_uploaded_stays_of_interest_until_its_object_has_been_looked_for():
    watched = Watched()
    finish = await watched.begin("b")
    await watched.begin("a")
    async with watched.watch() as watcher:
        await watched.advance(100)
        await watched.sweep(watcher)
        assert watched.asked[-1][1].keys == ["in/a", "in/b"]
        await finish()
        assert await watched.sweep(watcher) == (["b"], 1)
        assert watched.asked[-1][1].keys == ["in/a", "in/b"]
        await watched.sweep(watcher)
        assert watched.asked[-1][1].keys == ["in/a"]


async def test_after_a_restart_any_key_may_be_one_whose_upload_has_ended():
    watched = Watched()
    await watched.put("x")
    finish = await watched.begin("b")
    async with watched.watch() as watcher:
        await watched.advance(100)
        await watched.sweep(watcher)
        await watcher.crash()
        await finish()
        assert (await watched.sweep(watcher))[0] == ["b"]
        assert watched.asked[-1][1].keys is None
        await watched.sweep(watcher)
        assert watched.asked[-1][1].keys == []


async def test_single_keys_are_looked_up_no_more_at_a_time_than_is_allowed():
    watched = Watched(list_concurrency=3)
    await watched.put(*numbered(50))
    await watched.put("00001x")
    one = watched.make_trigger(asset_name="orders")
    under_way, most = 0, 0

    async def on_request():
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    watched.bucket.on_request = on_request
    found = await one.find_changes([f"in/{key}" for key in [*numbered(60), "0000"]])
    assert sorted(found) == [f"in/{key}" for key in numbered(50)]
    assert most == 3


async def test_a_look_up_that_fails_leaves_no_request_behind():
    watched = Watched()
    one = watched.make_trigger(asset_name="orders")
    watched.bucket.on_request = failing_from(watched, request=4)
    with pytest.raises(SourceError, match="no"):
        await one.find_changes([f"in/{key}" for key in numbered(60)])
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- requests -----------------------------------------------------------------------------------------------


async def test_requests_are_counted_and_stand_in_the_status():
    watched = Watched(page_size=10)
    await watched.put(*numbered(400), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        assert (await watcher.stored()).status["requests"] == "41"  # one of them for the clock
        assert watcher.trigger.requests == 41
        await watched.put(*numbered(20, start=400), ago=30)
        await watched.sweep(watcher)
        assert watcher.trigger.facts == {"requests": "41"}, "what is told is saved, so not at each change"
        await watched.put(*numbered(40, start=500), ago=30)
        await watched.sweep(watcher)
        assert watcher.trigger.facts == {"requests": "47"}


async def test_nothing_is_told_of_a_listing_that_went_on_from_a_cursor():
    watched = Watched(max_objects_per_event=10)
    await watched.put(*numbered(100), ago=300)
    async with watched.watch() as watcher:
        watched.bucket.on_request = failing_from(watched, request=6)
        await watcher.deliver()
        watched.bucket.on_request = None
        await watched.sweep(watcher)
        assert watcher.trigger.facts == {}


async def test_a_store_that_complains_is_listed_more_slowly_and_that_is_said_once():
    watched = Watched(list_concurrency=8)
    await watched.put(*numbered(2000), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        under_way = 0

        async def on_request():
            nonlocal under_way
            under_way += 1
            await asyncio.sleep(0)
            too_many, under_way = under_way > 2, under_way - 1
            if too_many:
                raise ThrottledError("slow down")

        watched.bucket.on_request = on_request
        await watched.put("00000x", "01999x", ago=30)
        assert (await watched.sweep(watcher))[0] == ["00000x", "01999x"]
        assert len(said(watcher, "asks for fewer requests")) == 1
        assert [each for each in watcher.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (8, 8)])
async def test_a_long_prefix_is_listed_in_parts_from_the_second_sweep_on(concurrency, most):
    watched = Watched(list_concurrency=concurrency)
    await watched.put(*numbered(1000), ago=300)
    async with watched.watch() as watcher:
        await watched.sweep(watcher)
        under_way = reached = 0

        async def on_request():
            nonlocal under_way, reached
            under_way += 1
            reached = max(reached, under_way)
            await asyncio.sleep(0)
            under_way -= 1

        watched.bucket.on_request = on_request
        await watched.put("00000x", "00500x", "00999x", ago=30)
        names, requests = await watched.sweep(watcher)
        assert names == ["00000x", "00500x", "00999x"]
        assert requests <= 101 + 3  # one more for each part that has grown
        assert reached == most


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"list_concurrency": 0}, r"list_concurrency=0: must be a whole number of at least 1"),
        ({"list_concurrency": 65}, r"list_concurrency=65: .*at most 64"),
        ({"list_concurrency": True}, r"list_concurrency=True"),
        ({"scan": "sorted"}, r"scan='sorted': must be one of 'full', 'ordered'"),
        ({"lookback_keys": 0}, r"lookback_keys=0: must be a whole number of at least 1"),
        ({"lookback_keys": 1.5}, r"lookback_keys=1.5"),
    ],
)
def test_a_wrong_argument_is_told(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Watched().make_trigger(asset_name="orders", **arguments).serialize()


def test_how_a_prefix_is_listed_is_no_part_of_what_is_watched():
    watched = Watched()
    one = watched.make_trigger(asset_name="orders")
    other = watched.make_trigger(asset_name="orders", list_concurrency=1, scan="ordered", lookback_keys=5)
    assert one.key == other.key
    assert one.fingerprint == other.fingerprint
