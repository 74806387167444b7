"""Changes that arrive all the time in all sources, and what Dag runs were given of them.

The traffic never stops while tests run. A test looks how far it is before it does harm and afterwards, and
then waits until whatever was changed between the two, and is still there, was given to a Dag run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from devtools.background import Background
from devtools.row_deliveries import DeliveredRows, DeliveredWindows
from devtools.row_ledger import Committed, Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from devtools.databases import MariaDB
    from devtools.dropper import Dropper
    from devtools.ledger import Interruption, Ledger
    from devtools.postgres_stress import Writers
    from devtools.row_ledger import RowId
    from system_tests.running import RunningAirflow


class Source(ABC):
    """One source with its writers, and the Dag that watches it.

    :param name: of the Dag, and of its asset
    """

    def __init__(self, name: str) -> None:
        self.name = name
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
    def missing(self, first: int, last: int) -> list[str]:
        """Return which of these changes no Dag run was given, though they are still there."""

    @abstractmethod
    def delays(self, first: int, last: int) -> list[float]:
        """Return for these changes, if they were delivered, the seconds until Airflow had their event."""

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

    def repeated(self) -> int:
        """Return how often something was delivered again, so far."""
        return sum(len(times) - 1 for times in self.deliveries.appearances.values())

    def faults(self, interruptions: Sequence[Interruption]) -> dict[str, list[str]]:
        """Return what should not be, whatever is missing aside."""
        found: dict[str, list[str]] = self.deliveries.faults(interruptions)
        return {fault: names for fault, names in found.items() if fault != "lost"}


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

    def missing(self, first: int, last: int) -> list[str]:
        """Return the objects that no Dag run was given; what was overwritten unread was never promised."""
        lost = set(self._ledger.lost)
        return [each.key for each in self._ledger.landed[first:last] if each in lost]

    def delays(self, first: int, last: int) -> list[float]:
        """Return the seconds from the answer to the put to the event."""
        pairs = zip(self._ledger.landed[first:last], self._ledger.landed_at[first:last], strict=True)
        return [
            (seen - landed).total_seconds()
            for version, landed in pairs
            if (seen := self._ledger.first_seen(version))
        ]

    def check(self) -> None:
        """Raise what ended the writers."""
        self._dropper.check()


class Inserter(Background):
    """Inserts rows into a table of MariaDB's, one a transaction: a context manager.

    :param database: with the table ``events``
    :param rate: rows a second, on average
    :ivar committed: what was committed so far
    """

    def __init__(self, database: MariaDB, rate: float) -> None:
        super().__init__("inserter")
        self.committed = Committed()
        self._database = database
        self._pause = 1 / rate

    def work(self) -> None:
        """Insert rows until told that it is enough."""
        while not self.enough.wait(self._pause):
            sent = time.monotonic()
            ((row, stamp),) = self._database.execute(
                "insert into events (payload) values ('new') returning id, updated_at"
            )
            version = Version(row, 1, stamp.replace(tzinfo=UTC), sent, time.monotonic())
            self.committed.versions.append(version)


class _Table(Source):
    """A table, with whoever writes it."""

    def __init__(self, name: str, writers: Writers | Inserter) -> None:
        super().__init__(name)
        self._writers = writers
        self._newest: dict[RowId, int] = {}
        self._indexed = 0
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

    def _is_promised(self, version: Version) -> bool:
        """Tell whether a row was not changed again: what is replaced unread was never promised."""
        versions = self._writers.committed.versions
        for index in range(self._indexed, len(versions)):
            row, number = versions[index].id, versions[index].number
            self._newest[row] = max(number, self._newest.get(row, 0))
            self._indexed = index + 1
        return self._newest[version.id] == version.number

    def _delay(self, version: Version, seen: datetime) -> float:
        return max(0.0, seen.timestamp() - self._monotonic_began - version.committed)


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

    def missing(self, first: int, last: int) -> list[str]:
        """Return the rows that no Dag run was given."""
        return [
            f"row {each.id}, version {each.number}"
            for each in self._versions(first, last)
            if not self._deliveries.first_seen(each) and self._is_promised(each)
        ]

    def delays(self, first: int, last: int) -> list[float]:
        """Return the seconds from the commit to the event."""
        seen = ((each, self._deliveries.first_seen(each)) for each in self._versions(first, last))
        return [self._delay(version, at) for version, at in seen if at]


class Windows(_Table):
    """Windows of the table."""

    def __init__(self, name: str, writers: Writers | Inserter) -> None:
        super().__init__(name, writers)
        self._deliveries = DeliveredWindows()
        self._deliveries.committed = writers.committed

    @property
    def deliveries(self) -> DeliveredWindows:
        """Where deliveries are written down."""
        return self._deliveries

    def missing(self, first: int, last: int) -> list[str]:
        """Return the rows that are in no window, or came into one after it had been delivered."""
        return [
            f"row {each.id}, version {each.number}"
            for each, at in self._deliveries.told(self._versions(first, last))
            if (at is None or each.sent > at) and self._is_promised(each)
        ]

    def delays(self, first: int, last: int) -> list[float]:
        """Return the seconds from the commit to the event."""
        told = self._deliveries.told(self._versions(first, last))
        return [max(0.0, at - version.committed) for version, at in told if at is not None]
