"""What asset events told of rows, against what was committed: nothing lost, no repeat unexplained."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from airflow.providers.watermark.position import BEGINNING, decode_position, is_after
from devtools.ledger import Deliveries, listed, table
from devtools.row_ledger import Committed, RowId, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow.providers.watermark.position import Position
    from devtools.airflow_metadata import AssetEvent
    from devtools.ledger import Interruption


class DeliveredRows(Deliveries):
    """What events carried of a table whose versions of rows are told apart by their stamp."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = Committed()
        self._ids: dict[tuple[RowId, datetime], set[str]] = defaultdict(set)
        self._numbers: dict[tuple[RowId, datetime], set[int]] = defaultdict(set)

    def record(self, events: Iterable[AssetEvent]) -> None:
        """Write down what further events carried."""
        for event in events:
            self.events += 1
            for change in event.changes:
                stamp = datetime.fromisoformat(change["cursor"]["value"])
                stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)  # of a column without one
                self._ids[change["key"]["id"], stamp].add(change["id"])
                self.deliver(event, change["id"])
                if "version" in change.get("row", ()):
                    self._numbers[change["key"]["id"], stamp].add(change["row"]["version"])

    def first_seen(self, version: Version) -> datetime | None:
        """Return when a version was delivered first, if it was."""
        ids = self._ids.get((version.id, version.updated_at), ())
        return min((min(self.appearances[each]) for each in ids), default=None)

    @property
    def current_ids(self) -> set[str]:
        """The ids under which events carried the last version of each row."""
        return {name for row in self.committed.rows().items() for name in self._ids.get(row, ())}

    @property
    def lost(self) -> list[str]:
        """The rows whose last version no event carried; others may never have been read."""
        return [str(row) for row in self.committed.rows().items() if row not in self._ids]

    def faults(self, interruptions: Sequence[Interruption]) -> dict[str, list[str]]:
        """Return all that should not be, by what is wrong with it; empty if nothing is."""
        odd = self.without_cause(interruptions)
        known = {(version.id, version.updated_at): version.number for version in self.committed.versions}
        found = {
            "lost": self.lost,
            "repeated without cause": [str(row) for row, ids in self._ids.items() if ids & odd],
            "with more than one id": [str(row) for row, ids in self._ids.items() if len(ids) > 1],
            "never committed": [str(row) for row in self._ids.keys() - known.keys()],
            "of another version than was committed": [
                str(row) for row, numbers in self._numbers.items() if numbers != {known.get(row)}
            ],
        }
        return {fault: sorted(rows) for fault, rows in found.items() if rows}

    def report(self, interruptions: Sequence[Interruption]) -> str:
        """Return the table for the end of a test."""
        versions, rows = len(self.committed.versions), len(self.committed.rows())
        lines = [
            ("rows", versions, f"committed versions of {rows} rows; the last of each is promised"),
            ("delivered", len(self._ids), f"of them, in {self.events} events"),
            ("lost", len(self.lost), ""),
            ("delivered again", len(self.repeats(interruptions)), "each with the same id"),
        ]
        return _report(lines, self.faults(interruptions))


class Window(NamedTuple):
    """The bounds of a window of time: ``low < updated_at <= high``."""

    low: Position
    high: datetime

    def has(self, version: Version) -> bool:
        """Tell whether a version is in it."""
        return version.updated_at <= self.high and is_after(version.updated_at, self.low)


class DeliveredWindows(Deliveries):
    """What windows events told of, each once, and whether they were as final as they are said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = Committed()
        self._windows: dict[str, set[Window]] = defaultdict(set)
        # The writers' clock is time.monotonic(), not that of events.
        self._monotonic_began = datetime.now(UTC).timestamp() - time.monotonic()

    def record(self, events: Iterable[AssetEvent]) -> None:
        """Write down what further events told."""
        for event in events:
            self.events += 1
            watermark = event.payload["watermark"]
            low, high = decode_position(watermark["low"]), decode_position(watermark["high"])
            if low == high:  # it only wakes Airflow
                continue
            assert isinstance(high, datetime)
            self._windows[watermark["event_id"]].add(Window(low, high))
            self.deliver(event, watermark["event_id"])

    @property
    def windows(self) -> list[Window]:
        """All windows, oldest first."""
        found = {window for windows in self._windows.values() for window in windows}
        return sorted(found, key=lambda window: (window.high, is_after(window.low, BEGINNING)))

    @property
    def lost(self) -> list[str]:
        """The rows whose last version is in no window, or came into it after it had been delivered."""
        last = self.committed.rows()
        return [
            str((version.id, version.updated_at))
            for version, delivered in self.told()
            if last.get(version.id) == version.updated_at and (delivered is None or version.sent > delivered)
        ]

    def told(self, versions: Iterable[Version] | None = None) -> Iterator[tuple[Version, float | None]]:
        """Tell for each version when its window was stored first, by ``time.monotonic``.

        :param versions: by default all that were committed
        """
        windows = self.windows  # which do not overlap, or else that is a fault of its own
        highs = [window.high for window in windows]
        first: dict[Window, float] = {}
        for event_id, found in self._windows.items():
            at = min(self.appearances[event_id]).timestamp() - self._monotonic_began
            first.update({window: min(at, first.get(window, at)) for window in found})
        for version in self.committed.versions if versions is None else versions:
            index = bisect_left(highs, version.updated_at)
            has = index < len(windows) and windows[index].has(version)
            yield version, first[windows[index]] if has else None

    def faults(self, interruptions: Sequence[Interruption]) -> dict[str, list[str]]:
        """Return all that should not be, by what is wrong with it; empty if nothing is."""
        windows = self.windows
        found = {
            "lost": self.lost,
            "entered a final window": [
                str(version)
                for version, delivered in self.told()
                if delivered is not None and version.sent > delivered
            ],
            "windows with a gap or an overlap": [
                f"{one.high} and {two.low!r}" for one, two in pairwise(windows) if one.high != two.low
            ],
            "one id for two windows": [name for name, found in self._windows.items() if len(found) > 1],
            "two ids for one window": [] if len(windows) == len(self._windows) else [str(len(self._windows))],
            "repeated without cause": sorted(self.without_cause(interruptions)),
        }
        return {fault: sorted(names) for fault, names in found.items() if names}

    def report(self, interruptions: Sequence[Interruption]) -> str:
        """Return the table for the end of a test."""
        versions = len(self.committed.versions)
        covered = sum(delivered is not None for _, delivered in self.told())
        lines = [
            ("windows", len(self.windows), f"of rows, in {self.events} events"),
            ("versions in them", covered, f"of {versions} committed ones"),
            ("lost", len(self.lost), ""),
            ("delivered again", len(self.repeats(interruptions)), "the very same window with the same id"),
        ]
        return _report(lines, self.faults(interruptions))


def _report(lines: list[tuple[str, int, str]], faults: Mapping[str, list[str]]) -> str:
    found = [
        *lines,
        *((fault, len(names), listed(names)) for fault, names in faults.items() if fault != "lost"),
    ]
    return "\n".join([table(found), *(f"  lost: {name}" for name in faults.get("lost", [])[:20])])
