"""A trigger that watches the triggerer itself: how long its event loop is held, how much memory it takes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

Line = dict[str, float]
"""What is written each second: see :class:`LoopProbe`."""

TICK = 0.005
"""Seconds of one sleep, and the precision: a hold that begins in the midst of one looks so much shorter."""

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_SECONDS_COVERED = 1.5
"""For so long a line tells at the most: if a second has none, two lines are farther apart."""

_NEAR = 2.0
"""Seconds by which a line and a warning of one moment may be apart: a line tells of the second before."""


class LoopProbe(BaseEventTrigger):
    """Writes a line a second, and never fires.

    Each has ``at`` (seconds since the epoch), ``memory`` (of the process, in bytes), and of all short sleeps
    since the line before the largest figures, in seconds:

    - ``late``: by how much it ended too late.
    - ``queued``: for how long the loop's thread could have run and got no processor.
    - ``held``: ``late`` without what was ``queued`` in the same sleep: so what goes on in this process, by
      computing or by a call that blocks.
    - ``collected``: how long Python's garbage collector computed, which holds all threads.
    - ``own``: ``held`` without what was ``collected`` in the same sleep.

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
        moments = [_now(collector)]
        with Path(self.path).open("a", buffering=1) as file:  # noqa: ASYNC230 - a line a second
            while True:
                while moments[-1].at < moments[0].at + 1:
                    await asyncio.sleep(TICK)
                    moments.append(_now(collector))
                line = {"at": time.time(), **longest(moments), "memory": process.memory_info().rss}
                file.write(json.dumps(line) + "\n")
                # The next sleep is measured from here on: it answers for the writing, too.
                moments = moments[-1:]
        yield TriggerEvent({})  # an asynchronous generator must


class Moment(NamedTuple):
    """When one sleep ended and the next began, by a monotonic clock, and sums until then, all in seconds."""

    at: float
    queued: float
    collected: float


def longest(moments: Sequence[Moment]) -> Line:
    """Return the largest figures of the sleeps between moments: each from one and the same sleep."""
    found = dict.fromkeys(("late", "queued", "held", "collected", "own"), 0.0)
    for before, after in itertools.pairwise(moments):
        late = after.at - before.at - TICK
        queued, collected = after.queued - before.queued, after.collected - before.collected
        held = late - queued
        own = held - collected
        figures = {"late": late, "queued": queued, "held": held, "collected": collected, "own": own}
        found = {name: max(value, figures[name]) for name, value in found.items()}
    return found


def coverage(lines: Sequence[Line], began: float, ended: float) -> float:
    """Return the share of the time of which lines tell: a held loop, or a probe that ended, writes none."""
    times = [began, *(line["at"] for line in lines if began <= line["at"] <= ended), ended]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return sum(gap for gap in gaps if gap <= _SECONDS_COVERED) / (ended - began)


def growth(lines: Sequence[Line]) -> float:
    """Return by how many bytes a minute memory grows in the second half: the first fills pools and caches.

    A line is fitted, so that neither a single peak nor where the halves meet decides.
    """
    half = lines[len(lines) // 2 :]
    minutes = [line["at"] / 60 for line in half]
    return statistics.linear_regression(minutes, [line["memory"] for line in half]).slope


def was_queued(lines: Sequence[Line], at: float, seconds: float) -> bool:
    """Tell whether the loop's thread had no processor for the most part of a time for which it did not run.

    :param at: when that time ended, in seconds since the epoch
    :param seconds: how long it was
    """
    return any(line["queued"] > seconds / 2 for line in lines if abs(line["at"] - at) <= _NEAR)


def _now(collector: _Collector) -> Moment:
    """Return this moment; of the time queued the kernel keeps account (Linux)."""
    with _SCHEDSTAT.open("rb", buffering=0) as file:
        queued = int(file.read().split()[1]) / 1e9
    return Moment(time.monotonic(), queued, collector.total)


class _Collector:
    """Times the garbage collector, by the processor's time: waiting for one is ``queued``.

    :ivar total: seconds so far
    """

    def __init__(self) -> None:
        self.total = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.total += time.thread_time() - self._began
