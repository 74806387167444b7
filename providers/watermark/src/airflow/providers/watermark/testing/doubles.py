"""A source in memory and its watcher: for tests, and to show how short a watcher is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from airflow.providers.watermark.change import Change, HighWatermark, Page, Window
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.position import BEGINNING, Position, is_after
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.watermark import Sweep

__all__ = ["ListSource", "ListTrigger", "ListWindowTrigger", "WatchedList", "WatchedListWindows"]

STEP: Final = timedelta(seconds=1)
_PAGE = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a list: its version, and when it was put."""

    version: int
    stamp: datetime


class ListSource:
    """
    A list of named things with the second in which each was put, and a clock that stands until it is turned.

    :param name: Its name, by which a trigger finds it.
    :ivar clock: The present.
    :ivar entries: The things, by name.
    :ivar uploads: Things that are under way, by name, with the second in which they were begun.
    :ivar password: What opens it.
    :ivar broken: While true, each access is a
        :class:`~airflow.providers.watermark.exceptions.SourceError`.
    :ivar after_access: Called once, after the next access has been answered.
    """

    _all: ClassVar[WeakValueDictionary[str, ListSource]] = WeakValueDictionary()

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.entries: dict[str, Entry] = {}
        self.uploads: dict[str, datetime] = {}
        self.broken = False
        self.password = "open sesame"  # noqa: S105 - a double of one
        self.after_access: Callable[[], Awaitable[None]] | None = None
        self._all[name] = self

    @classmethod
    def named(cls, name: str) -> ListSource:
        """
        Find a list.

        :raises SourceError: There is none of that name.
        """
        try:
            return cls._all[name]
        except KeyError as error:
            msg = f"there is no list {name!r}"
            raise SourceError(msg) from error

    async def ask(self) -> tuple[datetime, dict[str, datetime]]:
        """Tell the present, and what is under way."""
        self._check()
        answer = self.clock, dict(self.uploads)
        await self._accessed()
        return answer

    async def page(self, after: str) -> list[tuple[str, Entry]]:
        """Read some entries in the order of their names: those that follow after ``after``."""
        self._check()
        names = itertools.islice((name for name in sorted(self.entries) if name > after), _PAGE)
        answer = [(name, self.entries[name]) for name in names]
        await self._accessed()
        return answer

    async def find(self, names: list[str]) -> dict[str, Entry]:
        """Read some entries by name."""
        self._check()
        answer = {name: self.entries[name] for name in names if name in self.entries}
        await self._accessed()
        return answer

    async def stamps(self, low: Position, high: Position) -> list[datetime]:
        """Tell when entries were put, oldest first: those after ``low``, up to and with ``high``."""
        self._check()
        answer = sorted(
            entry.stamp
            for entry in self.entries.values()
            if is_after(entry.stamp, low) and not is_after(entry.stamp, high)
        )
        await self._accessed()
        return answer

    def _check(self) -> None:
        if self.broken:
            # As a driver does, which tells everything it knows.
            cause = ConnectionError(f"list://reader:{self.password}@{self.name}")
            msg = f"the list {self.name!r} does not answer; mend it"
            raise SourceError(msg) from cause

    async def _accessed(self) -> None:
        await asyncio.sleep(0)
        action, self.after_access = self.after_access, None
        if action is not None:
            await action()


class ListTrigger(BaseWatermarkTrigger):
    """
    Deliver each thing that is put into a list.

    :param list_name: The list's name.
    :param max_entries_per_event: The most entries in one event, at least 1.

    See :class:`~airflow.providers.watermark.triggers.base.BaseWatermarkTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "list"
    source_fields: ClassVar[tuple[str, ...]] = ("list_name",)

    list_name: str = ""
    max_entries_per_event: int = 500

    @property
    def source(self) -> str:
        """The list as a URI."""
        return f"list://{self.list_name}"

    @property
    def max_changes_per_event(self) -> int:
        """The most entries in one event."""
        return self.max_entries_per_event

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from arguments.text("list_name", self.list_name)
        yield from arguments.whole("max_entries_per_event", self.max_entries_per_event, at_least=1)

    async def get_high_watermark(self) -> HighWatermark:
        """Ask the list's own clock."""
        now, uploads = await ListSource.named(self.list_name).ask()
        return HighWatermark.from_clock(now, late_arrival=self.late_arrival, step=STEP, late=uploads)

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """Read the list in the order of its names."""
        after = sweep.cursor if isinstance(sweep.cursor, str) else ""
        while entries := await ListSource.named(self.list_name).page(after):
            yield Page(changes=[_change(name, entry) for name, entry in entries])
            after = entries[-1][0]

    async def find_changes(self, identities: list[str]) -> Mapping[str, Change]:
        """Look up single entries."""
        found = await ListSource.named(self.list_name).find(identities)
        return {name: _change(name, entry) for name, entry in found.items()}


class ListWindowTrigger(ListTrigger):
    """Deliver windows of a list: final ones, each with the number of its entries."""

    delivery: str = "settled"

    @property
    def delivers_windows(self) -> bool:
        """Windows, and no changes."""
        return True

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        """Find the next entries, and whatever was put together with the last of them."""
        source = ListSource.named(self.list_name)
        if high is None:
            stamps = await source.stamps(low, bound)
            if not stamps:
                return None
            high = stamps[: self.max_entries_per_event][-1]
        return Window(high=high, count=len(await source.stamps(low, high)))


def _change(name: str, entry: Entry) -> Change:
    detail = {"name": name, "version": entry.version}
    return Change(identity=name, version=str(entry.version), position=entry.stamp, detail=detail)


class WatchedList(WatchedSource):
    """A list for the contract suite: it can do all that a source may."""

    count_limit: ClassVar[str] = "max_entries_per_event"
    trigger_class: ClassVar[type[ListTrigger]] = ListTrigger
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self) -> None:
        self.list = ListSource(f"list-{next(self._numbers)}")
        self.stranger = ListSource(f"{self.list.name}-stranger")

    def make_trigger(self, **arguments: Any) -> ListTrigger:
        """Make a trigger that watches the list."""
        return self.trigger_class(**{"list_name": self.list.name, **arguments})

    def make_stranger(self, **arguments: Any) -> ListTrigger:
        """Make a trigger that watches another list."""
        return self.trigger_class(**{"list_name": self.stranger.name, **arguments})

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        """Put entries, all stamped alike."""
        for name in names:
            self.list.entries[name] = Entry(version, self.list.clock - timedelta(seconds=ago))

    @property
    def secrets(self) -> list[str]:
        """What opens the list."""
        return [self.list.password]

    def between(self, low: Position | None, high: Position) -> list[str]:
        """Tell what is in a window now."""
        entries = self.list.entries.items()
        return [
            name
            for name, entry in entries
            if not is_after(entry.stamp, high) and is_after(entry.stamp, low or BEGINNING)
        ]

    def name_of(self, change: Mapping[str, Any]) -> str:
        """Tell a delivered entry's name."""
        return str(change["name"])

    async def advance(self, seconds: float) -> None:
        """Turn the clock."""
        self.list.clock += timedelta(seconds=seconds)

    def now(self) -> datetime:
        """Tell the list's time."""
        return self.list.clock

    async def begin(self, name: str) -> Callable[[], Awaitable[None]]:
        """Begin an entry; it appears stamped with the present second."""
        begun = self.list.clock
        self.list.uploads[name] = begun

        async def finish() -> None:
            del self.list.uploads[name]
            self.list.entries[name] = Entry(1, begun)

        return finish

    def between_accesses(self, action: Callable[[], Awaitable[None]]) -> None:
        """Have something happen after the next access."""
        self.list.after_access = action

    async def break_down(self) -> None:
        """Let each access fail."""
        self.list.broken = True

    async def mend(self) -> None:
        """Let accesses succeed."""
        self.list.broken = False


class WatchedListWindows(WatchedList):
    """A list whose watcher delivers windows."""

    trigger_class: ClassVar[type[ListTrigger]] = ListWindowTrigger
