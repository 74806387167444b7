"""Which versions of rows were committed, against what a watcher delivered: nothing lost, nothing repeated."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

RowId = int | UUID


class Version(NamedTuple):
    """One committed state of a row.

    :param id: of the row
    :param number: 1 when the row was inserted, and larger with every update
    :param updated_at: what the database wrote into the row
    :param sent: when COMMIT was sent, by ``time.monotonic``: nobody else saw the version before
    :param committed: when COMMIT had returned: everybody could see it by then
    """

    id: RowId
    number: int
    updated_at: datetime
    sent: float
    committed: float


class Delivery(NamedTuple):
    """A version that a watcher delivered; ``at`` is by ``time.monotonic``, which all processes share."""

    id: RowId
    updated_at: datetime
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What the writers committed, as they know it themselves.

    :param versions: all committed versions, in the order in which the commits returned
    :param transactions: how many ended in which way
    """

    versions: list[Version] = field(default_factory=list)
    transactions: Counter[str] = field(default_factory=Counter)

    def lifetimes(self) -> dict[Version, float]:
        """Return for how long each version was certainly there to be seen; the last of a row for ever."""
        rows: dict[RowId, list[Version]] = defaultdict(list)
        for version in sorted(self.versions, key=lambda version: version.number):
            rows[version.id].append(version)
        lifetimes = {versions[-1]: math.inf for versions in rows.values()}
        for versions in rows.values():
            lifetimes.update({old: new.sent - old.committed for old, new in pairwise(versions)})
        return lifetimes

    def rows(self) -> dict[RowId, datetime]:
        """Return what the table must hold in the end."""
        return {v.id: v.updated_at for v, lifetime in self.lifetimes().items() if lifetime == math.inf}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was delivered, against what was committed.

    :param expected: how many versions had to be delivered
    :param missed: those of them that were not
    :param repeated: versions that came more than once, and how often too many
    :param unknown: deliveries of what was never committed
    :param delays: seconds from the return of COMMIT to the first delivery of each version, in rising order; a
        delivery that overtook the writer's own reply counts as 0
    """

    expected: int
    missed: list[Version]
    repeated: dict[tuple[RowId, datetime], int]
    unknown: list[Delivery]
    delays: list[float]

    @property
    def median_delay(self) -> float:
        """The median delay in seconds; NaN if no delivery has a time."""
        return statistics.median(self.delays) if self.delays else math.nan

    @property
    def p99_delay(self) -> float:
        """The delay in seconds that 99 % do not exceed; NaN if no delivery has a time."""
        return self.delays[math.ceil(0.99 * len(self.delays)) - 1] if self.delays else math.nan

    def __str__(self) -> str:
        counts = f"{self.expected:,} expected, {len(self.missed):,} missed"
        oddities = f"{sum(self.repeated.values()):,} repeated, {len(self.unknown):,} unknown"
        return f"{counts}, {oddities}; delay {self.median_delay:.3f} s median, {self.p99_delay:.3f} s p99"


def compare(committed: Committed, delivered: Iterable[Delivery], *, outlives: float = math.inf) -> Comparison:
    """Compare deliveries with the truth.

    :param outlives: versions that lived so many seconds until they were replaced must have been delivered;
        by default, only those that were never replaced
    """
    lifetimes = committed.lifetimes()
    truth = {(version.id, version.updated_at): version for version in lifetimes}
    counts: Counter[tuple[RowId, datetime]] = Counter()
    first: dict[tuple[RowId, datetime], float] = {}
    unknown = []
    for delivery in delivered:
        key = (delivery.id, delivery.updated_at)
        counts[key] += 1
        if key not in truth:
            unknown.append(delivery)
        elif delivery.at is not None:
            first[key] = min(delivery.at, first.get(key, math.inf))
    expected = {key: version for key, version in truth.items() if lifetimes[version] >= outlives}
    return Comparison(
        expected=len(expected),
        missed=[version for key, version in expected.items() if key not in counts],
        repeated={key: count - 1 for key, count in counts.items() if count > 1},
        unknown=unknown,
        delays=sorted(max(0.0, at - truth[key].committed) for key, at in first.items()),
    )
