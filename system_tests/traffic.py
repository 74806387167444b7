"""Changes that arrive all the time in all sources, and what Dag runs were given of them.

The traffic never stops while tests run. A test looks how far it is after harm was done, and then waits until
whatever was changed since the last look, and had to be delivered, was given to a Dag run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from devtools.row_deliveries import DeliveredRows, DeliveredWindows
from system_tests.comparison import Life, is_explained, lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from devtools.dropper import Dropper
    from devtools.ledger import Deliveries, Interruption, Ledger, Repeat
    from devtools.postgres_stress import Writers
    from devtools.row_ledger import Version
    from system_tests.comparison import Period
    from system_tests.inserter import Inserter
    from system_tests.running import RunningAirflow


class Source(ABC):
    """One source with its writers, and the Dag that watches it.

    :param name: of the Dag, and of its asset
    :param uncommitted_at_most: seconds after which what was delivered must have been committed: the watcher's
        ``commit_delay``, and some more for a busy machine
    :ivar epoch: the newest one that somebody asked for
    """

    def __init__(self, name: str, uncommitted_at_most: float = 15.0) -> None:
        self.name = name
        self._uncommitted_at_most = uncommitted_at_most
        self.epoch = 1
        self._given: set[int] = set()

    @property
    @abstractmethod
    def deliveries(self) -> Any:
        """Where deliveries are written down."""

    @property
    @abstractmethod
    def changes(self) -> int:
        """How many changes were made so far."""

    @abstractmethod
    def lives(self, first: int, last: int) -> list[Life]:
        """Return what became of these changes."""

    @abstractmethod
    def check(self) -> None:
        """Raise what ended the writers."""

    def collect(self, airflow: RunningAirflow) -> None:
        """Write down what further events carried, if Dag runs were given them."""
        query = """SELECT DISTINCT used.event_id FROM dagrun_asset_event AS used
                   JOIN dag_run AS run ON run.id = used.dag_run_id WHERE run.dag_id = ?"""
        given = {number for (number,) in airflow.metadata.rows(query, self.name)}
        if not (news := given - self._given):
            return
        events = airflow.metadata.asset_events(self.name, after=min(news) - 1)
        self.deliveries.record(event for event in events if event.id in news)
        self._given |= news

    def has_news(self, first: int) -> bool:
        """Tell whether a Dag run was given any change from this one on."""
        return any(life.seen for life in self.lives(first, self.changes))

    def lost(self, first: int, last: int, harms: Sequence[Period]) -> list[str]:
        """Return which of these changes no Dag run was given, though they were promised."""
        return lost(self.lives(first, last), harms)

    def repeats(self) -> list[Repeat]:
        """Return what came again so far."""
        deliveries: Deliveries = self.deliveries
        return deliveries.repeats(())

    def faults(self, interruptions: Sequence[Interruption]) -> dict[str, list[str]]:
        """Return by what is wrong with it all that should not be, losses aside.

        :param interruptions: which may explain what came again
        """
        found: dict[str, list[str]] = self.deliveries.faults(())
        odd = [
            each.id
            for each in self.repeats()
            if not is_explained(each, interruptions, self._uncommitted_at_most)
        ]
        unasked = [str(epoch) for epoch in self.deliveries.epochs if epoch > self.epoch]
        kept = {fault: names for fault, names in found.items() if fault not in {"lost", _REPEATED}}
        return {**kept, _REPEATED: odd, "epochs that nobody began": unasked}


_REPEATED = "repeated without cause"


class Objects(Source):
    """Objects under a prefix: new ones, crowds, and at times one again.

    :param dropper: puts them into ``ledger``
    """

    def __init__(self, name: str, ledger: Ledger, dropper: Dropper) -> None:
        super().__init__(name)
        self._ledger = ledger
        self._dropper = dropper

    @property
    def deliveries(self) -> Ledger:
        """Where deliveries are written down."""
        return self._ledger

    @property
    def changes(self) -> int:
        """How many versions of objects landed so far."""
        return len(self._ledger.landed)

    def lives(self, first: int, last: int) -> list[Life]:
        """Return what became of these versions of objects."""
        ledger = self._ledger
        pairs = zip(ledger.landed[first:last], ledger.landed_at[first:last], strict=True)
        return [
            Life(
                name=version.key,
                began=landed.timestamp(),
                ended=replaced.timestamp() if (replaced := ledger.replaced_at.get(version)) else inf,
                seen=seen.timestamp() if (seen := ledger.first_seen(version)) else None,
            )
            for version, landed in pairs
        ]

    def check(self) -> None:
        """Raise what ended the writers."""
        self._dropper.check()


class _Table(Source):
    """A table, with whoever writes it."""

    def __init__(self, name: str, writers: Writers | Inserter, uncommitted_at_most: float = 15.0) -> None:
        super().__init__(name, uncommitted_at_most)
        self._writers = writers
        self._monotonic_began = datetime.now(UTC).timestamp() - time.monotonic()

    @property
    def changes(self) -> int:
        """How many versions of rows were committed so far."""
        return len(self._writers.committed.versions)

    def check(self) -> None:
        """Raise what ended the writers."""
        self._writers.check()

    def _versions(self, first: int, last: int) -> list[Version]:
        return self._writers.committed.versions[first:last]

    def _life(self, version: Version, ended: float, seen: float | None) -> Life:
        """Make a life of what the writers know by ``time.monotonic``."""
        name = f"row {version.id}, version {version.number}"
        began, ended = (self._monotonic_began + moment for moment in (version.committed, ended))
        return Life(name=name, began=began, ended=ended, seen=seen)


class Rows(_Table):
    """The rows of the table."""

    def __init__(self, name: str, writers: Writers | Inserter) -> None:
        super().__init__(name, writers)
        self._deliveries = DeliveredRows()
        self._deliveries.committed = writers.committed

    @property
    def deliveries(self) -> DeliveredRows:
        """Where deliveries are written down."""
        return self._deliveries

    def lives(self, first: int, last: int) -> list[Life]:
        """Return what became of these versions of rows."""
        versions = self._versions(first, last)
        replaced = self._replaced({version.id for version in versions})
        seen = ((each, self._deliveries.first_seen(each)) for each in versions)
        return [
            self._life(version, replaced.get(version, inf), at.timestamp() if at else None)
            for version, at in seen
        ]

    def _replaced(self, rows: set[Any]) -> dict[Version, float]:
        """Return when versions of these rows were replaced, at the earliest: when the COMMIT was sent."""
        known = [each for each in list(self._writers.committed.versions) if each.id in rows]
        known.sort(key=lambda version: (str(version.id), version.number))
        return {old: new.sent for old, new in pairwise(known) if old.id == new.id}


class Windows(_Table):
    """Windows of the table."""

    def __init__(self, name: str, writers: Writers | Inserter) -> None:
        super().__init__(name, writers, uncommitted_at_most=11.0)
        self._deliveries = DeliveredWindows()
        self._deliveries.committed = writers.committed

    @property
    def deliveries(self) -> DeliveredWindows:
        """Where deliveries are written down."""
        return self._deliveries

    def lives(self, first: int, last: int) -> list[Life]:
        """Return what became of these versions: each must be in a later window, replaced or not."""
        return [
            self._life(version, inf, None if at is None or version.sent > at else self._monotonic_began + at)
            for version, at in self._deliveries.told(self._versions(first, last))
        ]
