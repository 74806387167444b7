"""What watchers of object stores share: the arguments, the store's clock, and the sweep of a prefix."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import ClassVar, Final

from airflow.providers.watermark.change import Change, HighWatermark, Page
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.changes import object_changes
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing
from airflow.providers.watermark.objects.parallel import Lister
from airflow.providers.watermark.objects.templates import AHEAD, PrefixTemplate
from airflow.providers.watermark.position import BEGINNING, Position, is_after
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.globs import KeyFilter, glob_problems
from airflow.providers.watermark.watermark import Sweep

__all__ = ["ObjectStoreTrigger", "parse_date"]

MAX_KEY_BYTES: Final = 1024

MAX_CLOCK_JUMP: Final = 30.0
"""Seconds by which a store's clock may differ from what passed here since its last answer."""

MAX_CONCURRENCY: Final = 64

MAX_PARTITIONS: Final = 1000
"""Partitions that a sweep lists one by one; it lists all if there are more, as after a long pause."""

SLICE_SIZE: Final = 100
"""
Objects that changes are made of at a time, before the event loop has its turn.

So few are soon gone again: what lives for long has Python collect garbage everywhere, which holds the loop.
"""

_SCHEMES: Final = ("s3://", "s3a://", "gs://")


class ObjectStoreTrigger(BaseWatermarkTrigger):
    """
    Deliver each new or overwritten object under a prefix.

    A subclass is one store: it connects, lists a page, tells the store's clock, counts its requests and wraps
    the store's errors.

    Each sweep lists the whole prefix, for want of a list by time. A long prefix is listed in parts at the
    same time, but for the first time after a start.

    With ``scan="ordered"`` a sweep lists the end of the prefix only. **That is outside the promise that
    nothing is lost**, unless keys only ever grow, as those that begin with a time or a counter do. Lost is
    whatever appears under a key that sorts before the ``lookback_keys`` last ones, if all of these are
    settled: an object put or replaced there, one under a key made by a slow clock, one of a long multipart
    upload. The first sweep lists the whole prefix all the same, and so does the one after a rewind.

    With dates in its ``prefix``, in braces and in the manner of ``strftime`` (``events/{%Y/%m/%d}/``, in UTC,
    of ``%Y %m %d %H %j``), a sweep lists only the partitions from ``partition_lookback`` before the low
    watermark to a day ahead. Objects in others are delivered by a listing of all, every
    ``reconcile_interval``, once they are settled. Nothing is lost by this, and nothing comes twice. Keys that
    are in no partition are not watched.

    :param prefix: What keys begin with, as plain text (``a/b`` also matches ``a/bc``), or with dates in
        braces; empty for all.
    :param pattern: A glob that keys must match. Without a ``/`` it is matched against the last segment of a
        key, with one against the whole key; ``*`` does not cross ``/``, ``**`` does.
    :param exclude: Globs that keys must not match.
    :param max_objects_per_event: The most objects in one event, at least 1.
    :param list_concurrency: The most requests at a time, 1 to 64; 1 lists from end to end. A store that asks
        for fewer gets fewer.
    :param scan: ``"full"``, or ``"ordered"`` if new keys always sort last.
    :param lookback_keys: For ``"ordered"``: how many of the last keys are listed again at least, 1 or more.

    :param partition_lookback: For dates in the prefix: seconds, at least 0.
    :param reconcile_interval: Likewise: seconds, above 0.

    See :class:`~airflow.providers.watermark.triggers.base.BaseWatermarkTrigger` for the others.
    """

    version_name: ClassVar[str]
    """What consumers know the version of an object as, such as ``etag``; a subclass says so."""

    prefix: str = ""
    pattern: str | None = None
    exclude: list[str] = dataclasses.field(default_factory=list)
    max_objects_per_event: int = 500
    list_concurrency: int = 8
    scan: str = "full"
    lookback_keys: int = 1000
    partition_lookback: float = 172800.0
    reconcile_interval: float = 86400.0

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
        self.requests = 0
        """Requests sent since this instance was made; a subclass counts them."""
        self._requests_before = 0
        self._requests_told = 0
        self._late_keys: dict[str, str | None] = {}
        self._reconciled_at: float | None = None
        self._reconciled_epoch: int | None = None
        self._clock_was: datetime | None = None
        self._clock_at = 0.0

    # -- What a store answers -------------------------------------------------------------------------

    @property
    @abstractmethod
    def where(self) -> str:
        """Name the bucket in an error."""

    @abstractmethod
    async def read_clock(self) -> datetime:
        """Read the store's clock, which is never ours; aware, UTC."""

    @abstractmethod
    async def list_page(
        self, keys: KeyRange, interest: Interest, *, token: str | None = None, limit: int | None = None
    ) -> Listing:
        """List a page; see :class:`~airflow.providers.watermark.objects.listing.ObjectStore`."""

    # -- Arguments ------------------------------------------------------------------------------------

    @property
    def max_changes_per_event(self) -> int:
        """The most objects in one event."""
        return self.max_objects_per_event

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from arguments.text("prefix", self.prefix, empty=True)
        if len(str(self.prefix).encode(errors="replace")) > MAX_KEY_BYTES:
            yield f"prefix={self.prefix!r}: must be at most {MAX_KEY_BYTES} bytes, as keys are"
        if str(self.prefix).lower().startswith(_SCHEMES):
            yield f"prefix={self.prefix!r}: must be what keys begin with, without the bucket"
        yield from arguments.text("pattern", self.pattern, optional=True)
        yield from arguments.flat_list("exclude", self.exclude)
        yield from glob_problems("pattern", self.pattern)
        # What was stored or written may be anything, whatever the annotation says.
        globs: object = self.exclude
        for glob in globs if isinstance(globs, list) else ():
            yield from glob_problems("exclude", glob)
        yield from arguments.whole("max_objects_per_event", self.max_objects_per_event, at_least=1)
        yield from arguments.whole(
            "list_concurrency", self.list_concurrency, at_least=1, at_most=MAX_CONCURRENCY
        )
        yield from arguments.choice("scan", self.scan, ("full", "ordered"))
        yield from arguments.whole("lookback_keys", self.lookback_keys, at_least=1)
        template = PrefixTemplate(str(self.prefix))
        if problem := template.problem():
            yield f"prefix={self.prefix!r}: {problem}"
        if template.is_dated and self.scan == "ordered":
            yield "scan='ordered': must be 'full' where the prefix has dates in it"
        yield from arguments.number("partition_lookback", self.partition_lookback)
        yield from arguments.number("reconcile_interval", self.reconcile_interval, above=0)
        yield from self._idle_arguments(is_dated=template.is_dated)

    def _idle_arguments(self, *, is_dated: bool) -> Iterator[str]:
        """Find arguments that would mean nothing: whoever sets them expects something of them."""
        idle = {"lookback_keys": "scan='ordered'"} if self.scan == "full" else {}
        if not is_dated:
            idle |= dict.fromkeys(("partition_lookback", "reconcile_interval"), "dates in the prefix")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in idle and value != field.default:
                yield f"{field.name}={value!r}: means nothing without {idle[field.name]}"

    async def open(self) -> None:
        """Say what is odd about the prefix; a subclass connects."""
        self.say_once(
            "siblings",
            bool(self.prefix)
            and not self.prefix.endswith("/")
            and f"the prefix {self.prefix!r} has no trailing slash, so it also matches its siblings, such as "
            f"{self.prefix + 'x'!r}",
        )

    # -- The clock ------------------------------------------------------------------------------------

    async def confirm_clock(self, now: datetime) -> datetime:
        """
        Have a jump of the store's clock confirmed by another answer, which may come from another server.

        One server with a wrong clock would else move the watermark into the future, or hold it.
        """
        passed = time.monotonic() - self._clock_at
        was = self._clock_was
        if was is not None and abs((now - was).total_seconds() - passed) > MAX_CLOCK_JUMP:
            second = await self.read_clock()
            if abs((second - now).total_seconds()) > MAX_CLOCK_JUMP:
                msg = (
                    f"{self.where}: two answers tell times as far apart as {now} and {second}; one of its "
                    "servers, or a proxy, has a wrong clock. It is tried again"
                )
                raise SourceError(msg)
        self._clock_was, self._clock_at = now, time.monotonic()
        return now

    def make_bounds(
        self, now: datetime, *, step: timedelta, late: Iterable[tuple[str, datetime]] | None = ()
    ) -> HighWatermark:
        """
        Derive the bounds from the store's clock.

        Strays have a bound of their own: it is held back by what is late among them, which so needs no slot.

        :param now: The clock, read before the listing.
        :param step: The coarsest precision that the store uses.
        :param late: The uploads in progress, each with its key and its time: of two of the same key one may
            become a stray, and the other not. ``None`` if they are not told.
        """
        first: datetime | None = None
        hot: dict[str, datetime] = {}
        for key, since in late or ():
            if self._is_stray(key, since):
                first = since if first is None else min(first, since)
            else:
                hot[key] = min(since, hot.get(key, since))
        bounds = HighWatermark.from_clock(
            now, late_arrival=self.late_arrival, step=step, late=None if late is None else hot
        )
        if not self._template.is_dated:
            return bounds
        bound: Position = BEGINNING
        if self._is_reconciliation_due(now):
            is_held = first is not None and is_after(bounds.bound, first - step)
            bound = first - step if first is not None and is_held else bounds.bound
        rule = f"partition_lookback={self.partition_lookback:g} ahead={AHEAD}"
        return dataclasses.replace(bounds, strays=bound, stray_rule=rule)

    def _is_reconciliation_due(self, now: datetime) -> bool:
        state = self._committer.head if self._committer is not None else None
        epoch = None if state is None else state.epoch
        if epoch != self._reconciled_epoch:  # rewound: strays have been, too
            self._reconciled_at, self._reconciled_epoch = None, epoch
        passed = None if self._reconciled_at is None else time.monotonic() - self._reconciled_at
        if passed is not None and passed < self.reconcile_interval:
            return False  # what is late may hold the cut back for longer
        if state is None:
            return True
        since = state.low if state.stray_low is None else state.stray_low
        return not isinstance(since, datetime) or (now - since).total_seconds() >= self.reconcile_interval

    # -- The sweep ------------------------------------------------------------------------------------

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """List the prefix in key order, which is the order of the keys' UTF-8 bytes."""
        is_ordered, is_whole = self.scan == "ordered", sweep.cursor is None
        start = sweep.cursor or (sweep.anchor if is_ordered else None)
        after = start if isinstance(start, str) else None
        unsettled: str | None = None
        listed = 0
        ranges = [
            KeyRange(prefix=prefix, after=after)
            for prefix in self._prefixes(sweep)
            if after is None or after < prefix or after.startswith(prefix)
        ]
        listings = self._lister.read(ranges, self._interest(sweep))
        async with aclosing(listings):
            async for listing in listings:
                wanted = self._news(listing.objects, sweep)
                listed += listing.count
                if is_ordered and unsettled is None:
                    unsettled = next(
                        (each.key for each in wanted if is_after(each.modified, sweep.high)), None
                    )
                for page in self._pages(wanted, listing.last or after):
                    yield page
                    await asyncio.sleep(0)
        if is_whole:
            # What is not settled may have to wait, and is looked for again.
            if is_ordered:
                landmarks = self._lister.landmarks(self.prefix)
                found = landmarks.before_last(self.lookback_keys, below=unsettled)
                # With too few keys left behind the anchor, the next sweep looks for another one.
                sweep.anchor = sweep.anchor if found is None and listed >= self.lookback_keys else found
            else:
                sweep.anchor = None
            self._tell_requests(self.requests - self._requests_before)
        self._requests_before = self.requests
        if sweep.stray_high is not None:
            self._reconciled_at = time.monotonic()

    def _pages(self, wanted: Sequence[ListedObject], last: str | None) -> Iterator[Page]:
        """
        Make changes of what a listing has, some at a time.

        :param last: How far the listing has come.
        """
        for start in range(0, len(wanted) or 1, SLICE_SIZE):
            part = wanted[start : start + SLICE_SIZE]
            is_end = start + SLICE_SIZE >= len(wanted)
            yield Page(changes=self._changes(part), cursor=last if is_end else part[-1].key)

    def _prefixes(self, sweep: Sweep) -> list[str]:
        """Give the prefixes to list: the partitions around now, or what all of them begin with."""
        template, earliest = self._template, sweep.earliest
        if not template.is_dated:
            return [self.prefix]
        if sweep.stray_high is not None or not (
            isinstance(earliest, datetime) and isinstance(sweep.due, datetime)
        ):
            return [template.head]
        first = template.earliest(earliest, self._lookback)
        found = template.partitions(first, sweep.due + AHEAD, limit=MAX_PARTITIONS)
        return [template.head] if found is None else found

    def _is_stray(self, key: str, modified: datetime) -> bool:
        return self._template.is_dated and self._template.is_stray(key, modified, self._lookback)

    def _interest(self, sweep: Sweep) -> Interest:
        """Ask for what is newer than the low watermark, and for what an upload may have left before it."""
        # A store tells of an upload no more once it has ended; a restart forgets which key it was.
        self._late_keys = {name: key or self._late_keys.get(name) for name, key in sweep.awaited.items()}
        keys = [key for key in self._late_keys.values() if key is not None]
        return Interest(since=sweep.since, keys=sorted(keys) if len(keys) == len(self._late_keys) else None)

    def _tell_requests(self, requests: int) -> None:
        """Note how many requests a poll takes, if that has changed by a tenth: each time is a save."""
        if abs(requests - self._requests_told) > self._requests_told / 10:
            self._requests_told = requests

    @property
    def facts(self) -> Mapping[str, str]:
        """Say how many requests a whole poll takes: they cost the money and the time."""
        return {"requests": str(self._requests_told)} if self._requests_told else {}

    def _news(self, listed: Sequence[ListedObject], sweep: Sweep) -> list[ListedObject]:
        """Choose what can be news. Folder markers are none: keys that end in a slash and hold no bytes."""
        found = [each for each in listed if each.size or not each.key.endswith("/")]
        # A backlog is long: what needs no look at each object gets none.
        if self._template.is_dated:
            strays = [self._is_stray(each.key, each.modified) for each in found]
            asked = zip(found, strays, strict=True)
            found = [each for each, stray in asked if sweep.concerns(each.key, each.modified, stray=stray)]
            outside = next((each.key for each in found if self._template.partition(each.key) is None), None)
            if outside is not None:
                self.say_once(
                    "no partition",
                    f"keys in no partition of the prefix {self.prefix!r} are not watched, such as {outside!r}"
                    "; numbers have all their digits there, as in month=03",
                )
        else:
            found = [each for each in found if sweep.concerns(each.key, each.modified)]
        wants_all = not self._template.is_dated and self.pattern is None and not self.exclude
        return found if wants_all else [each for each in found if self.wants(each.key)]

    def wants(self, key: str) -> bool:
        """Tell whether a key is in a partition, and passes ``pattern`` and ``exclude``."""
        is_dated = self._template.is_dated
        return (not is_dated or self._template.partition(key) is not None) and self._filter.wants(key)

    async def find_changes(self, identities: list[str]) -> Mapping[str, Change]:
        """Look up single keys in listings: HEAD may show another precision of the time."""
        pace = self._lister.pace
        gate = asyncio.Semaphore(pace.limit)

        async def look_up(key: str) -> list[ListedObject]:
            async with gate:
                page = await pace.list_page(KeyRange(prefix=key), Interest(), limit=1)
            return [found for found in page.objects if found.key == key]

        look_ups = [asyncio.create_task(look_up(key)) for key in identities]
        try:
            found = await asyncio.gather(*look_ups)
        finally:
            for each in look_ups:
                each.cancel()
            await asyncio.gather(*look_ups, return_exceptions=True)
        changes = self._changes([each for objects in found for each in objects])
        return {change.identity: change for change in changes}

    def _changes(self, found: Sequence[ListedObject]) -> list[Change]:
        return object_changes(found, self.version_name, self._is_stray if self._template.is_dated else None)

    @property
    def head(self) -> str:
        """What all keys begin with: the prefix, up to the first date in it."""
        return self._template.head

    @functools.cached_property
    def _template(self) -> PrefixTemplate:
        return PrefixTemplate(self.prefix)

    @functools.cached_property
    def _lookback(self) -> timedelta:
        return timedelta(seconds=self.partition_lookback)

    @functools.cached_property
    def _filter(self) -> KeyFilter:
        return KeyFilter(self.pattern, self.exclude)

    @functools.cached_property
    def _lister(self) -> Lister:
        return Lister(self, self.list_concurrency, functools.partial(self.say_once, "throttled"))


def parse_date(text: str | None, where: str) -> datetime:
    """
    Read an HTTP ``Date`` header.

    :raises SourceError: It is none, so there is no clock to go by.
    """
    try:
        return parsedate_to_datetime(text or "").astimezone(UTC)
    except ValueError as error:
        msg = f"{where} answered without a usable Date header ({text!r}), so there is no clock to go by"
        raise SourceError(msg) from error
