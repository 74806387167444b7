"""
How far a database is settled: pure rules, fed with what the database said.

**The barrier** (Postgres primaries). Read the database's clock ``t`` in a statement of its own; then read
which transactions other sessions have open. Once each of them has ended, every transaction that could have
stamped a row before ``t`` has ended, too: no row stamped before ``t`` can still appear, however long
transactions are and whether they use savepoints or two-phase commit. Both are readable by every role.
Measured against seven other ideas under 16 writers it lost no row, where bounds by ``xact_start`` lose rows
silently for a role that may not read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from airflow.providers.watermark.position import Position, floor_timestamp

__all__ = ["Barrier", "BarrierPoint", "History", "local_floor"]

_FOLD_STEP: Final = timedelta(minutes=15)
_FOLD_AHEAD: Final = 12
"""Clocks are put back at a quarter of an hour, by two hours at most; three are looked ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierPoint:
    """
    What was read from the database at one moment, in this order.

    :param clock: The database's clock; aware.
    :param highest: The highest position that was visible, for positions without a clock.
    :param open_transactions: The other sessions' open transactions, read after the other two.
    """

    clock: datetime
    highest: Position | None
    open_transactions: AbstractSet[str]


class Barrier:
    """
    Follows one barrier at a time; the next is put up when it has fallen.

    :ivar settled: The newest point whose barrier has fallen.
    :ivar pending: The point whose barrier still stands.
    """

    def __init__(self) -> None:
        self.settled: BarrierPoint | None = None
        self.pending: BarrierPoint | None = None

    def advance(self, now: BarrierPoint) -> None:
        """
        Take in what is read now.

        :param now: Read after the previous point, over the same server start.
        """
        if self.pending is None or not self.pending.open_transactions & now.open_transactions:
            self.settled = self.pending or self.settled
            self.pending = now
        if not self.pending.open_transactions:
            self.settled = self.pending
            self.pending = None

    def holding(self) -> AbstractSet[str]:
        """Give the transactions that keep the barrier up."""
        return self.pending.open_transactions if self.pending is not None else frozenset()

    def drop(self) -> None:
        """Forget the barrier that stands: after a reconnect the names of transactions mean nothing."""
        self.pending = None


class History:
    """Remembers which highest position was visible when, to know which one is old enough."""

    def __init__(self) -> None:
        self._entries: deque[tuple[datetime, Position]] = deque()
        self._old: Position | None = None

    def add(self, clock: datetime, highest: Position | None) -> None:
        """Note a highest position that was visible at a time of the source's clock."""
        while self._entries and self._entries[-1][0] > clock:
            self._entries.pop()  # that clock was wrong
        if highest is not None and (not self._entries or self._entries[-1][1] != highest):
            self._entries.append((clock, highest))

    def before(self, clock: datetime | None) -> Position | None:
        """Give the highest position that was visible at or before a time; ``None``: before the last one."""
        while clock is not None and self._entries and self._entries[0][0] <= clock:
            self._old = self._entries.popleft()[1]
        return self._old


def local_floor(instant: datetime, zone: ZoneInfo) -> datetime:
    """
    Give the earliest local time that can still come at or after an instant.

    Where clocks are put back an hour comes twice, and local times go back with it; until the second one is
    over, nothing in that hour is settled.

    :param instant: Aware.
    :param zone: The time zone in which naive stamps are made.
    :return: Naive, in that zone.
    """
    quarter = floor_timestamp(instant, _FOLD_STEP)
    ahead = (quarter + step * _FOLD_STEP for step in range(1, _FOLD_AHEAD + 1))
    return min(moment.astimezone(zone).replace(tzinfo=None, fold=0) for moment in (instant, *ahead))
