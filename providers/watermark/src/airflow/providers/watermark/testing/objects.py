"""An object store in memory and its watcher: for tests, and to show how short the watcher of a store is."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger

__all__ = ["LocalObjects", "LocalPrefixTrigger", "WatchedObjects"]

STEP: Final = timedelta(seconds=1)


class LocalObjects:
    """
    A bucket in memory, with a clock that stands until it is turned.

    :param name: Its name, by which a trigger finds it.
    :param page_size: The most keys on a page.
    :ivar clock: The present.
    :ivar uploads: Keys of uploads that are under way, each with the second in which it was begun.
    :ivar on_request: Called before each request is answered; it may change the bucket, wait, or raise
        :class:`~airflow.providers.watermark.exceptions.SourceError`.
    """

    _all: ClassVar[WeakValueDictionary[str, LocalObjects]] = WeakValueDictionary()

    def __init__(self, name: str, *, page_size: int = 1000) -> None:
        self.name = name
        self.page_size = page_size
        self.clock = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.uploads: dict[str, datetime] = {}
        self.on_request: Callable[[], Awaitable[None]] | None = None
        self._objects: dict[str, ListedObject] = {}
        self._keys: list[str] = []
        self._all[name] = self

    @classmethod
    def named(cls, name: str) -> LocalObjects:
        """
        Find a bucket.

        :raises SourceError: There is none of that name.
        """
        try:
            return cls._all[name]
        except KeyError as error:
            msg = f"there is no local bucket {name!r}"
            raise SourceError(msg) from error

    # -- What its owner does --------------------------------------------------------------------------

    def put(self, key: str, *, size: int = 1, modified: datetime | None = None) -> None:
        """Put an object, stamped with the present unless told otherwise; another size is another version."""
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = ListedObject(key, modified or self.clock, size, f"v{size}")

    def delete(self, key: str) -> None:
        """Delete an object; if there is none, nothing is done."""
        if self._objects.pop(key, None) is not None:
            self._keys.remove(key)

    # -- What a client asks ---------------------------------------------------------------------------

    async def time(self) -> datetime:
        """Tell the present."""
        await self._answer()
        return self.clock

    async def list(self, prefix: str, after: str, limit: int | None) -> tuple[list[ListedObject], bool]:
        """
        List a page in key order.

        :param prefix: What keys begin with.
        :param after: The key after which the page begins, exclusive.
        :param limit: The most keys on it.
        :return: The objects, and whether more follow.
        """
        await self._answer()
        start = max(bisect_right(self._keys, after), bisect_left(self._keys, prefix))
        end = start + min(limit or self.page_size, self.page_size)
        keys = [key for key in self._keys[start : end + 1] if key.startswith(prefix)]
        return [self._objects[key] for key in keys[: end - start]], len(keys) > end - start

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.on_request is not None:
            await self.on_request()


class LocalPrefixTrigger(ObjectStoreTrigger):
    """
    Deliver each new or overwritten object under a prefix of a bucket in memory.

    :param bucket_name: The bucket's name.

    See :class:`~airflow.providers.watermark.triggers.object_store.ObjectStoreTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "local"
    version_name: ClassVar[str] = "version"
    source_fields: ClassVar[tuple[str, ...]] = ("bucket_name", "prefix", "pattern", "exclude")

    bucket_name: str = ""

    @property
    def source(self) -> str:
        """The prefix as a URI."""
        return f"local://{self.bucket_name}/{self.prefix}"

    @property
    def where(self) -> str:
        """Name the bucket in an error."""
        return f"Local bucket {self.bucket_name!r}"

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from arguments.text("bucket_name", self.bucket_name)

    async def read_clock(self) -> datetime:
        """Ask the bucket's clock."""
        self.requests += 1
        return await LocalObjects.named(self.bucket_name).time()

    async def get_high_watermark(self) -> HighWatermark:
        """Read the bucket's clock and its uploads in progress."""
        now = await self.confirm_clock(await self.read_clock())
        late = [
            (key, begun)
            for key, begun in LocalObjects.named(self.bucket_name).uploads.items()
            if key.startswith(self.head) and self.wants(key)
        ]
        return self.make_bounds(now, step=STEP, late=late)

    async def list_page(
        self,
        keys: KeyRange,
        interest: Interest,  # noqa: ARG002 - what is of no interest may be given
        *,
        token: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        """List a page."""
        self.requests += 1
        bucket = LocalObjects.named(self.bucket_name)
        found, more = await bucket.list(keys.prefix, token or keys.after or "", limit)
        return Listing(
            objects=found,
            first=found[0].key if found else None,
            last=found[-1].key if found else None,
            count=len(found),
            token=found[-1].key if more else None,
        )


class WatchedObjects(WatchedSource):
    """
    A bucket in memory for the contract suite.

    :param arguments: Arguments of its watchers, such as ``list_concurrency``.
    """

    count_limit: ClassVar[str] = "max_objects_per_event"
    trigger_class: ClassVar[type[LocalPrefixTrigger]] = LocalPrefixTrigger
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, *, page_size: int = 1000, **arguments: Any) -> None:
        self.bucket = LocalObjects(f"bucket-{next(self._numbers)}", page_size=page_size)
        self.given = arguments

    def make_trigger(self, **arguments: Any) -> LocalPrefixTrigger:
        """Make a trigger that watches a prefix of the bucket."""
        return self.trigger_class(
            **{"bucket_name": self.bucket.name, "prefix": "in/", **self.given, **arguments}
        )

    def make_stranger(self, **arguments: Any) -> LocalPrefixTrigger:
        """Make a trigger that watches another prefix."""
        return self.make_trigger(**{"prefix": "not-in/", **arguments})

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        """Put objects, all stamped alike."""
        modified = self.bucket.clock - timedelta(seconds=ago)
        for name in names:
            self.bucket.put(f"in/{name}", size=version, modified=modified)

    def name_of(self, change: Mapping[str, Any]) -> str:
        """Tell a delivered object's name."""
        return str(change["key"]).removeprefix("in/")

    async def advance(self, seconds: float) -> None:
        """Turn the clock."""
        self.bucket.clock += timedelta(seconds=seconds)

    def now(self) -> datetime:
        """Tell the bucket's time."""
        return self.bucket.clock

    async def begin(self, name: str) -> Callable[[], Awaitable[None]]:
        """Begin an upload; its object appears stamped with the present second."""
        key, begun = f"in/{name}", self.bucket.clock
        self.bucket.uploads[key] = begun

        async def finish() -> None:
            del self.bucket.uploads[key]
            self.bucket.put(key, modified=begun)

        return finish

    def between_accesses(self, action: Callable[[], Awaitable[None]]) -> None:
        """Have something happen before the access after the next one is answered."""
        accesses = itertools.count()

        async def act() -> None:
            if next(accesses):
                self.bucket.on_request = None
                await action()

        self.bucket.on_request = act

    async def break_down(self) -> None:
        """Let each request fail."""

        async def fail() -> None:
            msg = f"the local bucket {self.bucket.name!r} does not answer; mend it"
            raise SourceError(msg)

        self.bucket.on_request = fail

    async def mend(self) -> None:
        """Let requests succeed."""
        self.bucket.on_request = None
