"""Two committers on one watermark, as after a take-over from a frozen host: the loser reloads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import replace

import pytest

from airflow.providers.watermark.delivery import Committer, Emission, StaleError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.sql import SqlStore
from airflow.providers.watermark.watermark import WatermarkState
from tests.stores.object_folders import object_folder
from tests.stores.sql_databases import sql_database

KEY = WatermarkKey("orders", "test", "key")
SOURCE = {"watcher": "test"}


@pytest.fixture(params=["memory", "sqlite", "disk"])
def make_store(request, tmp_path):
    if request.param == "memory":
        store = MemoryStore()
        yield lambda: store
    elif request.param == "sqlite":
        with sql_database("sqlite", tmp_path):
            yield SqlStore
    else:
        with object_folder("disk", tmp_path):
            yield ObjectStorageStore


class Recorded:
    """Stores of several writers, and the low watermarks in the order in which they were saved."""

    def __init__(self, make_store):
        self.lows = []
        recorded = self

        class Store(type(make_store())):
            async def save(self, key, value, *, expected):
                await inner.save(key, value, expected=expected)
                recorded.lows.append(WatermarkState.from_wire(value).low)

            async def load(self, key):
                return await inner.load(key)

        inner = make_store()
        self.make = Store
        self.inner = inner


def committer_of(stores):
    log = logging.getLogger("test")
    return Committer(stores.make, KEY, source=SOURCE, commit_delay=0.03, log=log)


@contextlib.asynccontextmanager
async def running(*committers):
    tasks = [asyncio.create_task(committer.run()) for committer in committers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def deliver(committer, low):
    emission = Emission({"n": low}, replace(committer.head, low=low), handed_over=True)
    await committer.admit(emission)
    committer.acknowledge(emission)


async def test_the_one_that_is_behind_loses_and_goes_on_from_what_the_other_has_saved(make_store):
    stores = Recorded(make_store)
    old, new = committer_of(stores), committer_of(stores)
    await old.create(WatermarkState(source=SOURCE, low=0))
    await old.load()
    await new.load()
    async with running(old, new):
        await deliver(new, 5)
        await new.settle()
        await deliver(old, 3)
        with pytest.raises(StaleError):
            await old.settle()
        assert (await old.load()).low == 5
        await deliver(old, 6)
        await old.settle()
    assert stores.lows == [0, 5, 6]
    await stores.inner.close()


async def test_while_two_overlap_the_watermark_never_goes_back(make_store):
    stores = Recorded(make_store)
    first = committer_of(stores)
    await first.create(WatermarkState(source=SOURCE, low=0))
    writers = [first, committer_of(stores)]
    lost = 0
    rolls = random.Random(7)

    async def work(committer):
        nonlocal lost
        await committer.load()
        rounds = 0
        # Until they have met: when they do is chance.
        while rounds < 15 or (lost < 3 and rounds < 400):
            rounds += 1
            try:
                await deliver(committer, committer.head.low + 1)
                await asyncio.sleep(rolls.random() / 50)
                await committer.settle()
            except StaleError:
                lost += 1
                await committer.load()

    async with running(*writers):
        await asyncio.gather(*map(work, writers))
    assert lost > 0
    assert stores.lows == sorted(stores.lows)
    assert len(set(stores.lows)) > 10
    await stores.inner.close()
