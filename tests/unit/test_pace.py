"""How hard a store is asked."""

from __future__ import annotations

import asyncio

import pytest

from airflow.providers.watermark.exceptions import ConfigurationError, SourceError, ThrottledError
from airflow.providers.watermark.objects import pace
from airflow.providers.watermark.objects.listing import Interest, KeyRange, Listing
from airflow.providers.watermark.objects.pace import Pace

PAGE = Listing(objects=(), first=None, last=None, count=0, token=None)


class Store:
    """Answers as it is told to, in turn: with a page for ``None``, else with an error."""

    where = "The store"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def list_page(self, keys, interest, *, token=None, limit=None):
        self.asked += 1
        await asyncio.sleep(0)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error
        return PAGE


class Paced:
    def __init__(self, *answers, concurrency=8):
        self.store = Store(*answers)
        self.said = []
        self.pace = Pace(self.store, concurrency, self.said.append)

    async def ask(self, times=1):
        for _ in range(times):
            assert await self.pace.list_page(KeyRange(prefix=""), Interest()) is PAGE


@pytest.fixture
def slept(monkeypatch):
    slept = []

    async def sleep(seconds, sleep=asyncio.sleep):
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(pace.asyncio, "sleep", sleep)
    monkeypatch.setattr(pace.random, "uniform", lambda low, high: (low, high))
    return slept


async def test_a_failure_is_tried_again_after_a_random_time_that_grows(slept):
    paced = Paced(SourceError("once"), SourceError("twice"))
    await paced.ask()
    assert paced.store.asked == 3
    assert [each for each in slept if each] == [(0, 0.4), (0, 0.8)]


async def test_a_page_that_goes_on_failing_is_given_up(slept):
    paced = Paced(SourceError("once"), SourceError("twice"), SourceError("thrice"))
    with pytest.raises(SourceError, match="thrice"):
        await paced.ask()
    assert paced.store.asked == 3


async def test_a_page_that_has_failed_for_long_is_not_tried_again(slept, monkeypatch):
    monkeypatch.setattr(pace, "MAX_SECONDS", -1.0)
    paced = Paced(SourceError("once"))
    with pytest.raises(SourceError, match="once"):
        await paced.ask()
    assert paced.store.asked == 1


@pytest.mark.parametrize("error", [ConfigurationError("fix it"), KeyError("a fault")])
async def test_what_waiting_does_not_mend_is_not_tried_again(slept, error):
    paced = Paced(error)
    with pytest.raises(type(error)):
        await paced.ask()
    assert paced.store.asked == 1


async def test_a_complaint_halves_the_requests_and_good_pages_bring_them_back_one_by_one(slept):
    paced = Paced(ThrottledError("slow down"))
    await paced.ask()
    limits = [paced.pace.limit]
    for _ in range(4 * pace.GROW_AFTER):
        await paced.ask()
        limits.append(paced.pace.limit)
    assert limits[0] == 4
    assert limits.index(5) == pace.GROW_AFTER - 1  # the one that was tried again is good, too
    assert limits[-1] == 8


async def test_a_complaint_starts_the_count_of_good_pages_anew(slept):
    paced = Paced(ThrottledError("a"), *[None] * pace.GROW_AFTER, ThrottledError("b"), *[None] * 15)
    await paced.ask(pace.GROW_AFTER)
    assert paced.pace.limit == 5
    await paced.ask(pace.GROW_AFTER - 1)
    assert paced.pace.limit == 2


async def test_complaints_are_borne_as_long_as_there_is_less_to_ask_for(slept):
    paced = Paced(*[ThrottledError("slow down")] * 7, concurrency=64)
    await paced.ask()
    assert paced.store.asked == 8
    assert paced.pace.limit == 1


async def test_who_was_too_many_waits_until_there_are_fewer_under_way(slept):
    paced = Paced(*[ThrottledError("slow down")] * 8)
    most = 0

    async def list_page(*args, ask=paced.store.list_page, **options):
        nonlocal most
        if paced.store.asked >= 8:
            most = max(most, paced.pace._under_way)
        return await ask(*args, **options)

    paced.store.list_page = list_page
    await asyncio.gather(*(paced.ask() for _ in range(8)))
    assert most == 4


async def test_complaints_about_requests_that_were_under_way_together_count_once(slept):
    paced = Paced(*[ThrottledError("slow down")] * 8)
    await asyncio.gather(*(paced.ask() for _ in range(8)))
    assert paced.pace.limit == 4


async def test_there_is_always_one_request(slept):
    paced = Paced(*[ThrottledError("slow down")] * 6, concurrency=1)
    for _ in range(2):
        with pytest.raises(ThrottledError):
            await paced.ask()
    await paced.ask()
    assert paced.pace.limit == 1


async def test_it_is_said_until_it_is_over(slept):
    paced = Paced(ThrottledError("slow down"), concurrency=2)
    await paced.ask()
    (text,) = paced.said
    assert text.startswith("The store: the store asks for fewer requests")
    assert "list_concurrency=2" in text
    await paced.ask(pace.GROW_AFTER)
    assert paced.said[1:] == [False]
