"""A watcher at work in a test, without Airflow: its events are stored at once."""

from __future__ import annotations

import asyncio
import contextlib

from airflow.providers.watermark.delivery import Committer
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers.watching import Watch


class WatchingNow:
    """
    A context manager that watches.

    :param trigger: The watcher.
    :param store: By default an empty one in memory.
    """

    patience = 30.0
    """Seconds that are waited at the most."""

    def __init__(self, trigger, store=None):
        self.trigger = trigger
        self.store = store or MemoryStore()
        self.committer = Committer(
            lambda: self.store,
            self.trigger.key,
            source=self.trigger.fingerprint,
            commit_delay=self.trigger.commit_delay,
            log=self.trigger.log,
        )
        self.events: list[dict] = []
        self.moved = asyncio.Event()

    async def __aenter__(self):
        self.task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def _work(self):
        async with contextlib.aclosing(Watch(self.trigger, self.committer).run()) as emissions:
            async for emission in emissions:
                if emission.payload is not None:
                    self.events.append(emission.payload)
                    self.moved.set()
                self.committer.acknowledge(emission)

    async def until_events(self, number):
        """Wait until so many events have come."""
        async with asyncio.timeout(self.patience):
            while len(self.events) < number:
                self.moved.clear()
                await self.moved.wait()

    @property
    def changes(self):
        return [change for event in self.events for change in event["changes"]]

    @property
    def keys(self):
        return [change["key"] for change in self.changes]

    async def until(self, *keys, within=None):
        """Wait until these keys have been delivered, in whatever order, and no others."""
        async with asyncio.timeout(within or self.patience):
            while len(self.keys) < len(keys):
                self.moved.clear()
                await self.moved.wait()
        assert sorted(self.keys) == sorted(keys)
