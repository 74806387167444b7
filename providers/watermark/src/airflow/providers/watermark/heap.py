"""
Keep Python's garbage collector from holding the event loop.

A full collection looks at every object of the process that could be part of a cycle: Airflow's, those of the
cloud SDKs, and those of all watchers, which are a million soon. It holds all triggers for a tenth of a second
or more, and is brought about by whoever makes many objects, as a watcher does that delivers a backlog. Nearly
all of them stay for as long as the process does, so looking for garbage among them is in vain.
"""

from __future__ import annotations

import gc
import time
from typing import Final

from airflow.providers.watermark.settings import freeze_heap

__all__ = ["freeze"]

STARTING: Final = 300.0
"""Seconds after a watcher has begun in which a process is taken to be starting."""

LONGEST: Final = 1200.0
"""Seconds after the first call in which it can be: those of edited Dags begin as long as it runs."""

REST: Final = 1.0
"""Seconds between two times at the least: hundreds of watchers may begin together."""

_began: float | None = None
_ends: float = 0.0
_last: float | None = None


def freeze(*, begins: bool = False) -> None:
    """
    Take the objects that there are out of garbage collection; watchers call this when they have begun.

    :param begins: Whether a watcher has just begun: hundreds take their time, and there is more to load.

    The objects are still freed when nothing refers to them any more. Cycles among them that are garbage
    already, or will be, are not: so it is done only while the process starts, and the young objects are
    collected before.
    """
    global _began, _ends, _last  # noqa: PLW0603 - there is one heap in a process
    now = time.monotonic()
    if _began is None:
        _began, begins = now, True
    if begins:
        _ends = min(now + STARTING, _began + LONGEST)
    is_rested = _last is None or now - _last >= REST
    if now <= _ends and is_rested and freeze_heap():
        _last = now
        gc.collect(1)
        gc.freeze()
