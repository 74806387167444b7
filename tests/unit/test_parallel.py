"""A listing in parts gives what a listing from end to end gives, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import ConfigurationError, SourceError, ThrottledError
from airflow.providers.watermark.objects import landmarks, pace, parallel
from airflow.providers.watermark.objects.listing import Interest, KeyRange
from airflow.providers.watermark.objects.parallel import Lister
from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.testing.objects import LocalObjects, LocalPrefixTrigger

PREFIX = "in/"


class Sparse(LocalPrefixTrigger):
    """Leaves out what is of no interest, as a store may."""

    async def list_page(self, keys, interest, *, token=None, limit=None):
        page = await super().list_page(keys, interest, token=token, limit=limit)
        return dataclasses.replace(
            page, objects=[o for o in page.objects if is_after(o.modified, interest.since)]
        )


@dataclass
class Bucket:
    """A bucket, and what has been asked of it."""

    page_size: int = 1000
    trigger_class: type[LocalPrefixTrigger] = LocalPrefixTrigger
    in_flight: int = 0
    most_in_flight: int = 0
    asked: int = 0
    warned: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.objects = LocalObjects("bucket", page_size=self.page_size)
        self.objects.on_request = self.on_request
        self.store = self.trigger_class(bucket_name="bucket", prefix=PREFIX)
        self.since = self.objects.clock - timedelta(seconds=10)

    def lister(self, concurrency=8):
        return Lister(self.store, concurrency, lambda text: text and self.warned.append(text))

    def put(self, *keys, old=False):
        for key in keys:
            self.objects.put(PREFIX + key, modified=self.since if old else None)

    async def on_request(self):
        self.asked += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.answer(self.asked)
        finally:
            self.in_flight -= 1

    async def answer(self, number):
        await asyncio.sleep(0)

    async def read(self, lister, after=None):
        """Read all, and tell the keys and how many requests it took."""
        before = self.asked
        async with aclosing(lister.read([KeyRange(prefix=PREFIX, after=after)], Interest())) as pages:
            found = [each.key for page in [page async for page in pages] for each in page.objects]
        return found, self.asked - before


def numbered(count, start=0, step=1):
    return [f"{number:07}" for number in range(start, start + count * step, step)]


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch):
    monkeypatch.setattr(pace, "FIRST_BACKOFF", 0.0)


# --- the same as from end to end ----------------------------------------------------------------------------

KEYS = st.text(alphabet="ab/é\U0001f600\uffee", min_size=1, max_size=3)
FAILURES = st.sampled_from([SourceError, ThrottledError, ConfigurationError, KeyError])


@dataclass
class Attempt:
    """What happens while a listing is tried: at some requests, and in the end."""

    faults: dict[int, list[type[Exception]]]
    puts: dict[int, list[str]]
    deletes: dict[int, list[str]]
    turns: list[int]
    sizes: list[int]
    cancelled_after: int | None


def at_requests(values):
    return st.dictionaries(st.integers(1, 30), values, max_size=4)


ATTEMPTS = st.builds(
    Attempt,
    faults=at_requests(FAILURES),
    puts=at_requests(st.lists(KEYS, max_size=3)),
    deletes=at_requests(st.lists(KEYS, max_size=3)),
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    cancelled_after=st.none() | st.integers(0, 40),
)
QUIET = Attempt({}, {}, {}, [0], [2], None)


class Sweep:
    """A sweep over a bucket, through failures and cancellations, as a watcher would make it."""

    def __init__(self, bucket, lister):
        self.bucket = bucket
        self.lister = lister
        self.cursor = None
        self.found = []
        self.ever = self.present
        self.always = self.news

    @property
    def present(self):
        return set(self.bucket.objects._keys)

    @property
    def news(self):
        """What a listing has to give now."""
        sparse = isinstance(self.bucket.store, Sparse)
        objects = self.bucket.objects._objects.values()
        return {each.key for each in objects if not sparse or each.modified > self.bucket.since}

    async def run(self, attempts):
        for attempt in attempts:
            if await self.attempt(attempt):
                return
        assert await self.attempt(QUIET)

    async def attempt(self, attempt):
        begun = self.bucket.asked

        async def answer(number):
            number -= begun
            for _ in range(attempt.turns[number % len(attempt.turns)]):
                await asyncio.sleep(0)
            self.bucket.put(*attempt.puts.get(number, ()))
            for key in attempt.deletes.get(number, ()):
                self.bucket.objects.delete(PREFIX + key)
            self.ever |= self.present
            self.always &= self.news
            self.bucket.objects.page_size = attempt.sizes[number % len(attempt.sizes)]
            if number in attempt.faults:
                raise attempt.faults[number]("no")

        self.bucket.answer = answer
        reading = asyncio.create_task(self.read())
        if attempt.cancelled_after is not None:
            for _ in range(attempt.cancelled_after):
                await asyncio.sleep(0)
            reading.cancel()
        (result,) = await asyncio.gather(reading, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task is left behind"
        if isinstance(result, asyncio.CancelledError | SourceError | ConfigurationError | KeyError):
            return False
        assert result is None, result
        return True

    async def read(self):
        keys = KeyRange(prefix=PREFIX, after=self.cursor)
        async with aclosing(self.lister.read([keys], Interest(since=self.bucket.since))) as pages:
            async for page in pages:
                if page.last is not None:
                    assert self.cursor is None or page.last > self.cursor, "the cursor has not moved on"
                    self.cursor = page.last
                for each in page.objects:
                    assert each.key <= self.cursor, "the cursor is not true"
                self.found += [each.key for each in page.objects]


@given(
    sweeps=st.lists(
        st.tuples(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=4), st.lists(ATTEMPTS, max_size=3)),
        min_size=2,
        max_size=4,
    ),
    concurrency=st.integers(1, 6),
    pages_per_part=st.integers(1, 3),
    ahead=st.integers(1, 20),
    marks=st.integers(2, 20),
    sparse=st.booleans(),
)
@example(
    sweeps=[(["a", "b", "aa", "ba", "é"], [], []), (["ab", "bb"], ["b"], [QUIET])],
    concurrency=4,
    pages_per_part=1,
    ahead=1,
    marks=20,
    sparse=True,
)
def test_a_listing_in_parts_is_one_from_end_to_end_whatever_happens(
    *, sweeps, concurrency, pages_per_part, ahead, marks, sparse
):
    told = []

    async def check():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        bucket = Bucket(trigger_class=Sparse if sparse else LocalPrefixTrigger)
        lister = bucket.lister(concurrency)
        for puts, deletes, attempts in sweeps:
            bucket.put(*puts[::2])
            bucket.put(*puts[1::2], old=True)
            for key in deletes:
                bucket.objects.delete(PREFIX + key)
            sweep = Sweep(bucket, lister)
            await sweep.run(attempts)
            assert sweep.found == sorted(set(sweep.found)), "not in key order, or twice"
            assert set(sweep.found) <= sweep.ever
            assert sweep.always <= set(sweep.found), "lost"
        assert bucket.most_in_flight <= concurrency

    with (
        patch.object(landmarks, "FEWEST_PAGES", 1),
        patch.object(landmarks, "PAGES_PER_PART", pages_per_part),
        patch.object(landmarks, "MAX_LANDMARKS", marks),
        patch.object(parallel, "MAX_AHEAD", ahead),
    ):
        asyncio.run(check())
    assert told == []


@pytest.mark.parametrize("pages_per_part", [1, 24])
async def test_the_second_listing_is_in_parts_and_finds_the_same_with_as_many_requests(
    monkeypatch, pages_per_part
):
    monkeypatch.setattr(landmarks, "PAGES_PER_PART", pages_per_part)
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    first, requests = await bucket.read(lister)
    assert (len(first), requests, bucket.most_in_flight) == (1_000, 100, 1)
    again, requests = await bucket.read(lister)
    assert (again == first, requests, bucket.most_in_flight) == (True, 100, 8)


async def test_a_concurrency_of_one_lists_from_end_to_end():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister(1)
    for _ in range(2):
        found, requests = await bucket.read(lister)
        assert (len(found), requests, bucket.most_in_flight) == (1_000, 100, 1)


async def test_a_listing_goes_on_behind_a_cursor_in_parts():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    found, requests = await bucket.read(lister, after=f"{PREFIX}{numbered(1_000)[309]}")
    assert (len(found), requests, bucket.most_in_flight) == (690, 69, 8)


@pytest.mark.parametrize("stopped_at", [0, 1, 40, 99])
async def test_what_an_interrupted_listing_saw_and_what_lies_behind_it_both_serve_the_next(stopped_at):
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    before = lister.landmarks(PREFIX).split(KeyRange(prefix=PREFIX), 8)
    async with aclosing(lister.read([KeyRange(prefix=PREFIX)], Interest())) as pages:
        for _ in range(stopped_at):
            await anext(pages)
    assert lister.landmarks(PREFIX).split(KeyRange(prefix=PREFIX), 8) == before
    assert len(before) == 8


async def test_an_interrupted_first_listing_and_the_rest_of_it_serve_the_next():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister, whole = bucket.lister(), bucket.lister()
    await bucket.read(whole)
    async with aclosing(lister.read([KeyRange(prefix=PREFIX)], Interest())) as pages:
        for _ in range(40):
            page = await anext(pages)
    await bucket.read(lister, after=page.last)
    keys = KeyRange(prefix=PREFIX)
    assert lister.landmarks(PREFIX).split(keys, 8) == whole.landmarks(PREFIX).split(keys, 8)


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [8, 16])
@pytest.mark.parametrize("pages", [480, 953])
@pytest.mark.parametrize("growth", ["one key in each gap", "a tenth", "twice", "at the end", "a tenth gone"])
async def test_a_listing_in_parts_takes_hardly_more_requests_whatever_was_put_since(
    growth, pages, concurrency
):
    size = 10
    bucket = Bucket(page_size=size)
    keys = numbered(pages * size, step=10)
    bucket.put(*keys)
    lister = bucket.lister(concurrency)
    await bucket.read(lister)
    for sweep in range(1, 4):
        step, start = {
            "one key in each gap": (size * 17, sweep),
            "a tenth": (100, sweep),
            "twice": (10, sweep),
        }.get(growth, (0, 0))
        if step:
            bucket.put(*numbered(pages * size * 10 // step, start=start, step=step))
        elif growth == "at the end":
            bucket.put(*numbered(pages, start=(pages * size + sweep * pages) * 10, step=1))
        else:
            for key in keys[sweep::10]:
                bucket.objects.delete(PREFIX + key)
        found, requests = await bucket.read(lister)
        assert found == bucket.objects._keys
        assert requests <= -(-len(found) // size) * 1.05 + 1
        if pages >= 480 and concurrency <= 8:
            assert bucket.most_in_flight == concurrency


# --- bounds -------------------------------------------------------------------------------------------------


async def stalled(bucket, lister, monkeypatch, ahead):
    """Read in parts while the first page does not come; tell how much was found meanwhile."""
    monkeypatch.setattr(parallel, "MAX_AHEAD", ahead)
    released = asyncio.Event()

    async def answer(number):
        await asyncio.sleep(0)
        if number == 1:
            await released.wait()

    bucket.asked, bucket.answer = 0, answer
    reading = asyncio.create_task(bucket.read(lister))
    for _ in range(3_000):
        await asyncio.sleep(0)
    meanwhile = bucket.asked
    released.set()
    found, _ = await reading
    assert found == bucket.objects._keys
    return meanwhile


async def test_no_more_than_so_much_is_read_ahead_of_a_part_that_stalls(monkeypatch):
    monkeypatch.setattr(landmarks, "PAGES_PER_PART", 2)
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    assert 1 + 10 <= await stalled(bucket, lister, monkeypatch, ahead=110) <= 1 + 10 + 7
    assert (
        await stalled(bucket, lister, monkeypatch, ahead=10_000) >= 97
    )  # all but the rest of the first part


async def test_pages_without_news_count_too(monkeypatch):
    monkeypatch.setattr(landmarks, "PAGES_PER_PART", 2)
    monkeypatch.setattr(parallel, "MAX_AHEAD", 20)
    bucket = Bucket(page_size=10, trigger_class=Sparse)
    bucket.put(*numbered(1_000), old=True)
    lister, released = bucket.lister(), asyncio.Event()
    await bucket.read(lister)

    async def answer(number):
        if number == 1:
            await released.wait()

    async def read():
        async with aclosing(lister.read([KeyRange(prefix=PREFIX)], Interest(since=bucket.since))) as pages:
            return [page async for page in pages]

    bucket.asked, bucket.answer = 0, answer
    reading = asyncio.create_task(read())
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert 1 + 20 <= bucket.asked <= 1 + 20 + 7
    released.set()
    assert [each.key for page in await reading for each in page.objects] == []


async def test_each_page_has_a_turn_of_the_loop_to_itself():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister, turns = bucket.lister(), 0
    await bucket.read(lister)

    async def turn():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with aclosing(lister.read([KeyRange(prefix=PREFIX)], Interest())) as pages:
        handled = [turns async for _ in pages]
    turning.cancel()
    assert len(set(handled)) == len(handled) == 100


# --- errors -------------------------------------------------------------------------------------------------


async def test_an_error_is_raised_in_its_turn_and_all_before_it_is_given():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    bucket.objects.page_size = 10
    broken = f"{PREFIX}{numbered(1_000)[499]}"
    list_page = bucket.store.list_page

    async def fail(keys, interest, **options):
        page = await list_page(keys, interest, **options)
        if page.first <= broken <= page.last:
            raise SourceError("no")
        return page

    found = []

    async def read():
        async for page in lister.read([KeyRange(prefix=PREFIX)], Interest()):
            found.extend(each.key for each in page.objects)

    with patch.object(bucket.store, "list_page", fail), pytest.raises(SourceError, match="no"):
        await read()
    assert found == bucket.objects._keys[:490]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_page_that_fails_is_tried_again_alone():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    failed = set()

    async def answer(number):
        if number % 5 == 0:
            failed.add(number)
            raise SourceError("no")

    bucket.asked, bucket.answer = 0, answer
    found, requests = await bucket.read(lister)
    assert found == bucket.objects._keys
    assert (requests, len(failed)) == (125 - 1, 24)


async def test_a_listing_that_is_left_leaves_no_request_behind():
    bucket = Bucket(page_size=10)
    bucket.put(*numbered(1_000))
    lister = bucket.lister()
    await bucket.read(lister)
    async with aclosing(lister.read([KeyRange(prefix=PREFIX)], Interest())) as pages:
        await anext(pages)
        assert bucket.most_in_flight == 8
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert bucket.in_flight == 0


async def test_a_store_that_complains_is_asked_less_at_a_time():
    bucket = Bucket(page_size=1)
    bucket.put(*numbered(1_000))
    lister = bucket.lister(16)
    await bucket.read(lister)

    async def answer(number):
        await asyncio.sleep(0)
        if bucket.in_flight > 4:
            raise ThrottledError("slow down")

    bucket.answer = answer
    found, requests = await bucket.read(lister)
    assert found == bucket.objects._keys
    assert 1_000 < requests < 1_200
    assert len(bucket.warned) >= 2  # which is said once; see say_once
    bucket.answer, bucket.most_in_flight = Bucket.answer.__get__(bucket), 0
    await bucket.read(lister)
    assert (lister.pace.limit, bucket.most_in_flight) == (16, 16)
