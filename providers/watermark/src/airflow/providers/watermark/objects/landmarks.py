"""Where the pages of earlier listings ended: places at which a listing can be cut into parts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from airflow.providers.watermark.objects.listing import KeyRange

__all__ = ["Landmarks"]

MAX_LANDMARKS: Final = 2048
"""Ends that are kept, of a listing of any length: beyond it, they are kept twice as far apart."""

PAGES_PER_PART: Final = 24
"""
Pages in a part, at least, where there are many.

With keys that were put since, the last page of a part reaches into the next part, and is read in vain: one
request in 24, at the worst.
"""

FEWEST_PAGES: Final = 4
"""The same where there are only a few pages: a few requests more are cheap there."""

_KEY: Final = itemgetter(0)


class Landmarks:
    """
    Ends of pages, each with how many keys lie between the one before and it; in memory alone.

    They are never wrong, only more or less useful: any key may part a listing.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[str, int]] = []
        self._page_size = 1
        self._apart = 0

    def add(self, key: str, count: int) -> None:
        """
        Note the end of a page.

        :param key: Its last key, which comes after all ends so far.
        :param count: How many keys it had, at least.
        """
        self._page_size = max(self._page_size, count)
        self._keep([(key, count)])

    @property
    def last(self) -> str | None:
        """The last end; ``None`` if there is none."""
        return self._ends[-1][0] if self._ends else None

    def replace(self, newer: Landmarks, *, after: str | None, until: str | None) -> None:
        """
        Replace what another listing has seen anew.

        :param newer: Its ends.
        :param after: Where it began, exclusive; ``None``: at the beginning.
        :param until: Where it stopped, inclusive; ``None``: at the end.
        """
        before = self._ends[: self._index(after)]
        behind = [] if until is None else self._ends[self._index(until) :]
        self._page_size = max(self._page_size, newer._page_size)
        self._apart = max(self._apart, newer._apart)
        self._ends = before
        self._keep([*newer._ends, *behind])

    def _keep(self, ends: Iterable[tuple[str, int]]) -> None:
        """Keep further ends, but not too many."""
        for key, count in ends:
            if self._ends and self._ends[-1][1] + count <= self._apart:
                self._ends[-1] = (key, self._ends[-1][1] + count)
            else:
                self._ends.append((key, count))
            if len(self._ends) > MAX_LANDMARKS:
                self._apart = 2 * max(self._apart, self._page_size)
                all_ends, self._ends = self._ends, []
                self._keep(all_ends)

    def _index(self, key: str | None) -> int:
        """Count the ends at or before a key."""
        return 0 if key is None else bisect_right(self._ends, key, key=_KEY)

    def split(self, keys: KeyRange, concurrency: int) -> list[KeyRange]:
        """
        Cut a range into parts of about the same size, to be listed at the same time.

        :param keys: The range.
        :param concurrency: How many parts are listed at a time.
        :return: The parts, in key order: together they are the range, and no key is in two. A short range, or
            one that is not known yet, is one part.
        """
        until = None if keys.until is None else self._index(keys.until)
        ends = self._ends[self._index(keys.after) : until]
        total = sum(count for _, count in ends)
        pages = -(-total // self._page_size)
        many = pages // PAGES_PER_PART // concurrency * concurrency
        number = (many or min(concurrency, pages // FEWEST_PAGES)) if concurrency > 1 else 1
        parts: list[KeyRange] = []
        after, passed = keys.after, 0
        for key, count in ends[:-1]:
            passed += count
            if len(parts) < number - 1 and passed * number >= total * (len(parts) + 1):
                parts.append(KeyRange(prefix=keys.prefix, after=after, until=key))
                after = key
        return [*parts, KeyRange(prefix=keys.prefix, after=after, until=keys.until)]

    def before_last(self, count: int, *, below: str | None = None) -> str | None:
        """
        Find an end that has some keys behind it.

        :param count: How many, at least.
        :param below: The end comes before this key.
        :return: The last such end; ``None`` if none is known.
        """
        behind = 0
        for key, keys in reversed(self._ends):
            if behind >= count and (below is None or key < below):
                return key
            behind += keys
        return None
