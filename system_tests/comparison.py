"""What a source had, against what Dag runs were given of it: pure, so that it can be tested itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from devtools.ledger import Interruption, Repeat

Period = tuple[float, float]
"""From when to when, in seconds since the epoch."""

UNDISTURBED = 30.0
"""Seconds without harm for which a version must have been there, to be promised although it was replaced.

Watchers poll every two seconds; the rest is for a machine that does other things as well."""


RECOVERED = 90.0
"""Seconds after an interruption within which what was not committed must have come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One version of an object or of a row, and what became of it; times in seconds since the epoch.

    :param name: what messages call it
    :param began: by when it was there, for everybody to read
    :param ended: when it was replaced, at the earliest; infinity if it still is there
    :param seen: when the event was stored that gave it to a Dag run first; None if none did
    """

    name: str
    began: float
    ended: float = math.inf
    seen: float | None = None

    @property
    def delay(self) -> float | None:
        """Seconds from its beginning to the event; an event that overtook the writer's answer counts as 0."""
        return None if self.seen is None else max(0.0, self.seen - self.began)

    def is_promised(self, harms: Iterable[Period]) -> bool:
        """Tell whether it had to be delivered: it is still there, or was for long enough.

        :param harms: when watchers could not be asked to read it, in rising order
        """
        at, longest = self.began, 0.0
        for began, ended in harms:
            longest = max(longest, min(began, self.ended) - at)
            at = max(at, ended)
        return max(longest, self.ended - at) > UNDISTURBED


def is_explained(repeat: Repeat, interruptions: Iterable[Interruption], uncommitted_at_most: float) -> bool:
    """Tell whether something came again because its watcher ended before it was committed.

    :param uncommitted_at_most: seconds for which that may have been before the interruption
    """
    before, recovery = timedelta(seconds=uncommitted_at_most), timedelta(seconds=RECOVERED)
    return any(
        each.began - before <= repeat.before <= each.ended
        and each.began <= repeat.at <= each.ended + recovery
        for each in interruptions
    )


def longest_delay(lives: Iterable[Life]) -> float:
    """Return the longest delay of what was delivered, in seconds; 0 if nothing was."""
    return max((life.delay for life in lives if life.delay is not None), default=0.0)


def lost(lives: Iterable[Life], harms: Sequence[Period]) -> list[str]:
    """Return the names of what was promised, and given to no Dag run."""
    return [life.name for life in lives if life.seen is None and life.is_promised(harms)]
