"""A trigger that watches the triggerer itself: how long its event loop is held, how much memory it takes."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TICK = 0.005
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class LoopProbe(BaseEventTrigger):
    """Writes a line a second, and never fires.

    Each has ``at`` (seconds since the epoch), ``late`` (the longest time by which a short sleep ended too
    late, in seconds), ``held`` (the same, without the time for which the loop's thread could have run and got
    no processor: so what watchers do to their neighbours, by computing or by a call that blocks),
    ``collected`` (the longest run of Python's garbage collector, in seconds) and ``memory`` (of the process,
    in bytes).

    :param path: of the file
    """

    def __init__(self, path: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure until cancelled."""
        process, collector = psutil.Process(), _Collector()
        with Path(self.path).open("a", buffering=1) as file:  # noqa: ASYNC230 - a line a second
            while True:
                late, held = await self._second()
                line = {"at": time.time(), "late": late, "held": held, "collected": collector.longest()}
                line["memory"] = process.memory_info().rss
                file.write(json.dumps(line) + "\n")
        yield TriggerEvent({})  # an asynchronous generator must

    @staticmethod
    async def _second() -> tuple[float, float]:
        late = held = 0.0
        ends = time.monotonic() + 1
        while (began := time.monotonic()) < ends:
            queued = _queued()
            await asyncio.sleep(_TICK)
            waited = time.monotonic() - began - _TICK
            late, held = max(late, waited), max(held, waited - (_queued() - queued))
        return late, held


def _queued() -> float:
    """Return for how many seconds, in all, this thread was ready to run and had no processor (Linux)."""
    with _SCHEDSTAT.open("rb", buffering=0) as file:
        return int(file.read().split()[1]) / 1e9


class _Collector:
    """Times the garbage collector, which holds all threads."""

    def __init__(self) -> None:
        self._began = self._longest = 0.0
        gc.callbacks.append(self._note)

    def longest(self) -> float:
        """Return the longest run since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.monotonic()
        else:
            self._longest = max(self._longest, time.monotonic() - self._began)
