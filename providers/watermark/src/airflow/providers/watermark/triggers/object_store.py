"""What watchers of object stores share: the arguments, the store's clock, and the sweep of a prefix."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from airflow.providers.watermark.change import Change, Page
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.listing import (
    Interest,
    KeyRange,
    ListedObject,
    Listing,
    read_range,
)
from airflow.providers.watermark.position import format_timestamp
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.globs import KeyFilter
from airflow.providers.watermark.watermark import Sweep

__all__ = ["ObjectStoreTrigger", "parse_date"]

MAX_KEY_BYTES: Final = 1024

MAX_CLOCK_JUMP: Final = 30.0
"""Seconds by which a store's clock may differ from what passed here since its last answer."""

_LOOK_UPS: Final = 8
_SCHEMES: Final = ("s3://", "s3a://", "gs://")


class ObjectStoreTrigger(BaseWatermarkTrigger):
    """
    Deliver each new or overwritten object under a prefix.

    A subclass is one store: it connects, lists a page, tells the store's clock and wraps the store's errors.

    :param prefix: What keys begin with, as plain text (``a/b`` also matches ``a/bc``); empty for all.
    :param pattern: A glob that keys must match. Without a ``/`` it is matched against the last segment of a
        key, with one against the whole key; ``*`` does not cross ``/``, ``**`` does.
    :param exclude: Globs that keys must not match.
    :param max_objects_per_event: The most objects in one event, at least 1.

    See :class:`~airflow.providers.watermark.triggers.base.BaseWatermarkTrigger` for the others.
    """

    prefix: str = ""
    pattern: str | None = None
    exclude: list[str] = dataclasses.field(default_factory=list)
    max_objects_per_event: int = 500

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
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

    @abstractmethod
    def describe(self, found: ListedObject) -> dict[str, Any]:
        """Say what a consumer is told of an object, beside its key, size and time."""

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
        yield from _glob_problems("pattern", self.pattern)
        # What was stored or written may be anything, whatever the annotation says.
        globs: object = self.exclude
        for glob in globs if isinstance(globs, list) else ():
            yield from _glob_problems("exclude", glob)
        yield from arguments.whole("max_objects_per_event", self.max_objects_per_event, at_least=1)

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

    # -- The sweep ------------------------------------------------------------------------------------

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """List the prefix in key order, which is the order of the keys' UTF-8 bytes."""
        after = sweep.cursor if isinstance(sweep.cursor, str) else None
        keys = KeyRange(prefix=self.prefix, after=after)
        async for listing in read_range(self, keys, self._interest(sweep)):
            wanted = [found for found in listing.objects if self._is_news(found, sweep)]
            yield Page(changes=list(map(self._change, wanted)), cursor=listing.last or after)

    def _interest(self, sweep: Sweep) -> Interest:
        return Interest(since=sweep.low, keys=None)

    def _is_news(self, found: ListedObject, sweep: Sweep) -> bool:
        return (
            sweep.concerns(found.key, found.modified)
            and self.wants(found.key)
            and not (found.key.endswith("/") and not found.size)  # a folder marker
        )

    def wants(self, key: str) -> bool:
        """Tell whether a key passes ``pattern`` and ``exclude``."""
        return self._filter.wants(key)

    async def find_changes(self, identities: list[str]) -> Mapping[str, Change]:
        """Look up single keys in listings: HEAD may show another precision of the time."""
        gate = asyncio.Semaphore(_LOOK_UPS)

        async def look_up(key: str) -> list[ListedObject]:
            async with gate:
                page = await self.list_page(KeyRange(prefix=key), Interest(), limit=1)
            return [found for found in page.objects if found.key == key]

        found = await asyncio.gather(*map(look_up, identities))
        return {each.key: self._change(each) for objects in found for each in objects}

    def _change(self, found: ListedObject) -> Change:
        return Change(
            identity=found.key,
            version=found.version,
            position=found.modified,
            detail={
                "key": found.key,
                "size": found.size,
                **self.describe(found),
                "last_modified": format_timestamp(found.modified),
            },
        )

    @functools.cached_property
    def _filter(self) -> KeyFilter:
        return KeyFilter(self.pattern, self.exclude)


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


def _glob_problems(name: str, glob: object) -> Iterator[str]:
    if isinstance(glob, str):
        if "://" in glob:
            yield f"{name}={glob!r}: must match keys, without the bucket"
        if re.search(r"\{[^}]*,[^}]*\}", glob):
            yield f"{name}={glob!r}: braces mean nothing in globs; use several watchers, or exclude"
        try:
            KeyFilter(glob)
        except re.error as error:
            yield f"{name}={glob!r}: is no valid glob ({error})"
