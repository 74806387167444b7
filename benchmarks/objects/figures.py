"""What is measured of a client's own process: time, CPU, how long it holds the loop, and memory."""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_NAP: Final = 0.001


@dataclass(slots=True, kw_only=True)
class Figures:
    """
    Figures of one run.

    :param seconds: Wall time.
    :param cpu: Seconds of CPU of all threads of the process, user and system.
    :param hold: The longest time in seconds that the loop did not run a task that naps for 1 ms.
    :param cpu_hold: The longest CPU time of the loop's own thread between two naps: other processes do not
        count in it, and neither do other threads that keep the interpreter's lock.
    :param long_holds: How many holds were longer than 10 ms.
    :param memory: By how many bytes the memory grew at its peak.
    """

    seconds: float
    cpu: float
    hold: float
    cpu_hold: float
    long_holds: int
    memory: int


class Ticker:
    """Naps for a millisecond, for ever, and notes how long that took."""

    def __init__(self) -> None:
        self.hold = self.cpu_hold = 0.0
        self.long_holds = 0

    async def run(self) -> None:
        """Tick."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(_NAP)
            wall_now, cpu_now = time.perf_counter(), time.thread_time()
            hold = wall_now - wall - _NAP
            self.hold = max(self.hold, hold)
            self.cpu_hold = max(self.cpu_hold, cpu_now - cpu)
            self.long_holds += hold > 0.010
            wall, cpu = wall_now, cpu_now


async def measure(work: Awaitable[int]) -> tuple[int, Figures]:
    """Run something once, in this loop."""
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    await asyncio.sleep(0.02)
    resident = _reset_peak()
    began, cpu = time.perf_counter(), time.process_time()
    result = await work
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    peak = _peak()
    await asyncio.sleep(0.005)  # a hold at the very end is noted, too
    ticking.cancel()
    return result, Figures(
        seconds=seconds,
        cpu=cpu_seconds,
        hold=ticker.hold,
        cpu_hold=ticker.cpu_hold,
        long_holds=ticker.long_holds,
        memory=max(0, peak - resident),
    )


def _reset_peak() -> int:
    """Forget the peak that importing has left; where that cannot be done, start from it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return _status("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise OSError(name)
    return int(found[1]) * 1024
