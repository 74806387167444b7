"""A committer at work on a store that does as it is told, for tests of when watermarks are committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace

from airflow.providers.watermark.delivery import Committer, Emission
from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.watermark import WatermarkState

KEY = WatermarkKey("orders", "test", "key")
SOURCE = {"watcher": "test", "place": "here"}
DELAY = 0.04
"""The commit delay of these tests, in seconds: a tenth of it is one nap."""

log = logging.getLogger("test")


class Store(MemoryStore):
    """A store that does as it is told: ``trouble`` names what the next saves and loads do."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: str | None = None
        self.saves: list[int] = []
        self.attempts = 0
        self.released = asyncio.Event()

    async def load(self, key):
        if self.trouble in ("down", "no loads"):
            raise StoreError("the store is down")
        return await super().load(key)

    async def save(self, key, value, *, expected):
        self.attempts += 1
        match self.trouble:
            case "down" | "no saves":
                raise StoreError("the store is down")
            case "a bug":
                raise RuntimeError("a bug in the store")
            case "hangs":
                await self.released.wait()
        await super().save(key, value, expected=expected)
        self.saves.append(value["revision"])
        if self.trouble == "answer lost":
            self.trouble = None
            raise StoreError("the answer was lost")

    async def change(self, **changes):
        """Do as another writer: change the state and raise the revision."""
        wire = await MemoryStore.load(self, KEY)
        state = WatermarkState.from_wire(wire)
        new = replace(state, revision=state.revision + 1, **changes)
        await MemoryStore.save(self, KEY, new.to_wire(), expected=wire)
        return new

    async def stored(self):
        wire = await MemoryStore.load(self, KEY)
        return None if wire is None else WatermarkState.from_wire(wire)

    async def low(self):
        state = await self.stored()
        return None if state is None else state.low


def make_committer(store, **options):
    return Committer(lambda: store, KEY, source=SOURCE, commit_delay=DELAY, log=log, **options)


@contextlib.asynccontextmanager
async def running(committer):
    task = asyncio.create_task(committer.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def started(committer, low=0):
    """Store a first state and load it, as a watcher does at its start."""
    await committer.create(WatermarkState(source=SOURCE, low=low))
    return await committer.load()


async def in_flight(committer, *lows):
    emissions = [Emission({"n": low}, replace(committer.head, low=low)) for low in lows]
    for emission in emissions:
        await committer.admit(emission)
    return emissions


async def eventually(condition, within=5.0):
    """Wait until an async condition holds, and give what it gave."""
    deadline = time.monotonic() + within
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(DELAY / 20)
    return found


async def committed(store, low):
    async def holds():
        return await store.low() == low

    await eventually(holds)
