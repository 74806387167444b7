"""
A listing in parts, which are read at the same time and given in key order.

So one cursor still tells how far it has come, and whoever goes on from it finds the same as a listing from
end to end would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, Literal

from airflow.providers.watermark.objects.landmarks import Landmarks
from airflow.providers.watermark.objects.listing import Interest, KeyRange, Listing, ObjectStore, read_range
from airflow.providers.watermark.objects.pace import Pace

__all__ = ["Lister", "read_ranges"]

MAX_AHEAD: Final = 16384
"""Objects and pages that are kept until their turn comes; then only the part whose turn it is goes on."""

MAX_PREFIXES: Final = 256
"""Prefixes whose landmarks are kept beside those of the present listing."""


class Lister:
    """
    Lists a store again and again, the better the more often.

    The first listing is sequential. A later one is cut where pages of the one before ended, which costs no
    request and assumes nothing of the keys.

    :param store: The store.
    :param concurrency: The most requests at a time, at least 1.
    :param say: Told what to warn about, and ``False`` once it is over.
    :ivar pace: The store, asked with care.
    """

    def __init__(
        self, store: ObjectStore, concurrency: int, say: Callable[[str | Literal[False]], None]
    ) -> None:
        self.pace = Pace(store, concurrency, say)
        self._landmarks: dict[str, Landmarks] = {}

    def landmarks(self, prefix: str) -> Landmarks:
        """Give what is known of where the pages of a prefix end."""
        return self._landmarks.setdefault(prefix, Landmarks())

    async def read(self, ranges: Sequence[KeyRange], interest: Interest) -> AsyncGenerator[Listing, None]:
        """
        List ranges of keys, page by page, in key order, up to their ends.

        :param ranges: In key order, each of another prefix, none of which begins another.
        :param interest: Which objects to give.
        :raises SourceError: The pages are not in key order, or break off.
        :raises WatermarkError: The store cannot answer; pages until then count.
        """
        if len(self._landmarks) > MAX_PREFIXES:
            self._landmarks = {keys.prefix: self.landmarks(keys.prefix) for keys in ranges}
        parts = [
            part for keys in ranges for part in self.landmarks(keys.prefix).split(keys, self.pace.concurrency)
        ]
        seen = [Landmarks() for _ in ranges]
        ended = 0
        try:
            async with aclosing(read_ranges(self.pace, parts, interest)) as pages:
                async for part, page in pages:
                    while ranges[ended].prefix != part.prefix:
                        ended += 1
                    if page.last is not None:
                        seen[ended].add(page.last, page.count)
                    yield page
            ended = len(ranges)
        finally:
            for number, (keys, marks) in enumerate(zip(ranges, seen, strict=True)):
                is_at_end = number < ended and keys.until is None
                if is_at_end or marks.last is not None:
                    until = None if is_at_end else marks.last
                    self.landmarks(keys.prefix).replace(marks, after=keys.after, until=until)


class _Reader:
    """
    A range that is read, page by page.

    :ivar keys: The range.
    :ivar found: Pages whose turn has not come.
    :ivar weight: How many pages and objects these are.
    :ivar ended: Whether there are no more pages.
    :ivar error: Why there are none.
    """

    def __init__(self, store: Pace, keys: KeyRange, interest: Interest) -> None:
        self._pages = read_range(store, keys, interest)
        self._task: asyncio.Task[None] | None = None
        self.keys = keys
        self.found: deque[Listing] = deque()
        self.weight = 0
        self.ended = False
        self.error: Exception | None = None

    def go_on(self) -> asyncio.Task[None] | None:
        """Ask for the next page, if there may be one and it is not asked for already."""
        if self.ended or self.error is not None or not (self._task is None or self._task.done()):
            return None
        self._task = asyncio.create_task(self._read())
        return self._task

    async def _read(self) -> None:
        try:
            page = await anext(self._pages)
        except StopAsyncIteration:
            self.ended = True
        except Exception as error:  # noqa: BLE001 - it is raised once its turn comes
            self.error = error
        else:
            self.found.append(page)
            self.weight += _weight(page)

    def take(self) -> Listing:
        """Give the first page that was found."""
        page = self.found.popleft()
        self.weight -= _weight(page)
        return page

    async def close(self) -> None:
        """Let go of a request that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pages.aclose()


def _weight(page: Listing) -> int:
    return 1 + len(page.objects)


async def read_ranges(
    store: Pace, ranges: Iterable[KeyRange], interest: Interest
) -> AsyncGenerator[tuple[KeyRange, Listing], None]:
    """
    List ranges of keys at the same time, and give their pages, each with its range, in the ranges' order.

    The first range that has not ended is never held up by those behind it; these are read ahead as long as
    not too much of them has to be kept.

    :param store: The store; its ``limit`` tells how many requests may be under way.
    :param ranges: The ranges, in key order.
    :param interest: Which objects to give.
    :raises WatermarkError: The store cannot answer; all pages before the one that is missing were given.
    """
    waiting = deque(ranges)
    readers: deque[_Reader] = deque()
    requests: set[asyncio.Task[None]] = set()
    try:
        while waiting or readers:
            requests = {request for request in requests if not request.done()}
            requests |= set(_go_on(store, readers, waiting, interest, store.limit - len(requests)))
            head = readers[0]
            if head.found:
                yield head.keys, head.take()
                await asyncio.sleep(0)  # pages that are ready must not keep the loop to themselves
            elif head.error is not None:
                raise head.error
            elif head.ended:
                readers.popleft()
            else:
                await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await asyncio.gather(*(reader.close() for reader in readers))


def _go_on(
    store: Pace, readers: deque[_Reader], waiting: deque[KeyRange], interest: Interest, free: int
) -> Iterator[asyncio.Task[None]]:
    """Ask for pages of the foremost ranges, as many as are free to be; begin with ranges if need be."""
    room = MAX_AHEAD - sum(reader.weight for reader in readers)
    position = 0
    while free > 0:
        if position == len(readers):
            if not waiting or (readers and room <= 0):
                return
            readers.append(_Reader(store, waiting.popleft(), interest))
        reader = readers[position]
        if reader.error is not None:
            return  # what is behind it is not wanted any more
        is_next = position == 0 and not reader.found
        if (room > 0 or is_next) and (request := reader.go_on()) is not None:
            free -= 1
            yield request
        position += 1
