"""The engine with windows: a source whose clock was wrong, and a watcher whose windows are."""

from __future__ import annotations

import asyncio
import itertools
import logging
from datetime import timedelta

import pytest

from airflow.providers.watermark.change import Window
from airflow.providers.watermark.testing.doubles import Entry, ListSource, ListWindowTrigger
from tests.unit.watching_now import WatchingNow

SECOND = timedelta(seconds=1)


class Running(WatchingNow):
    """A watcher of windows at work."""

    patience = 20.0

    def __init__(self, trigger_class=ListWindowTrigger, **arguments):
        self.source = ListSource("windows")
        trigger = trigger_class(
            asset_name="orders",
            list_name="windows",
            start_from="beginning",
            poll_interval=0.01,
            late_arrival=5.0,
            commit_delay=0.02,
            **arguments,
        )
        super().__init__(trigger)

    def put(self, name, stamp):
        self.source.entries[name] = Entry(1, stamp)


async def test_what_is_stamped_after_a_clock_was_set_back_is_in_a_window_of_a_new_epoch():
    running = Running()
    right = running.source.clock
    running.put("a", right - 60 * SECOND)
    async with running:
        await running.until_events(1)
        running.source.clock = right + timedelta(days=1)
        running.put("b", right + timedelta(hours=23))
        await running.until_events(2)
        running.source.clock = right + 30 * SECOND
        running.put("c", right + 28 * SECOND)
        await asyncio.sleep(0.2)
        running.source.clock = right + 60 * SECOND
        await running.until_events(3)
    third = running.events[2]
    assert third["count"] == 1
    assert [event["watermark"]["epoch"] for event in running.events] == [1, 1, 2]


class Stuck(ListWindowTrigger):
    async def find_window(self, low, bound, high):
        return Window(high=low, count=0)


async def test_a_window_that_does_not_move_on_is_an_error_and_no_event(caplog):
    caplog.set_level(logging.ERROR)
    running = Running(Stuck)
    async with running, asyncio.timeout(20):
        while "which is not after" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
    assert running.events == []


@pytest.mark.parametrize("number", [1, 3])
async def test_windows_follow_one_another(number):
    running = Running(max_entries_per_event=1)
    for index in range(number):
        running.put(f"{index}", running.source.clock - (60 - index) * SECOND)
    async with running:
        await running.until_events(number)
    bounds = [(event["watermark"]["low"], event["watermark"]["high"]) for event in running.events]
    assert all(former[1] == latter[0] for former, latter in itertools.pairwise(bounds))
