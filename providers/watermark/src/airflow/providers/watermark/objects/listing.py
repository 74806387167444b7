"""
Listings of an object store, page by page, in key order: that of the keys' UTF-8 bytes.

Knows no cloud: a store gives pages, which are checked here. Progress is kept as a key; a listing that ends
too early, or is not in key order, would lose what it leaves out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, Protocol

from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.position import BEGINNING, Position

__all__ = ["Interest", "KeyRange", "ListedObject", "Listing", "ObjectStore", "read_range"]


class ListedObject(NamedTuple):
    """
    An object in a listing.

    :ivar key: Its whole key.
    :ivar modified: When this version of it was finished, by the store's clock; aware, UTC.
    :ivar size: In bytes.
    :ivar version: What tells this version from others of the key: an etag, a generation.
    """

    key: str
    modified: datetime
    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """
    Which objects can be news; a store may leave out what cannot, and need not.

    :param since: Objects modified after it are of interest.
    :param keys: So are these, whenever they were modified, in order; ``None``: any key may be.
    """

    since: Position = BEGINNING
    keys: Sequence[str] | None = ()

    def has_key_in(self, first: str, last: str) -> bool:
        """
        Tell whether a part of a listing may have a key that is of interest whenever it was modified.

        :param first: The part's first key, inclusive.
        :param last: Its last key, inclusive.
        """
        if self.keys is None:
            return True
        index = bisect_left(self.keys, first)
        return index < len(self.keys) and self.keys[index] <= last


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """
    A page of a listing.

    :param objects: Those of interest, in key order.
    :param first: The first key on the page, of interest or not; ``None`` if the page is empty.
    :param last: Likewise the last one.
    :param count: How many keys there are on the page; of one that is cut off, how many at least.
    :param token: What the store wants to hear to go on behind this page; ``None`` at the end.
    """

    objects: Sequence[ListedObject]
    first: str | None
    last: str | None
    count: int
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """
    A part of the keys of a store.

    :param prefix: What its keys begin with.
    :param after: Keys at or before it are left out; ``None``: none are.
    :param until: Keys after it are left out; ``None``: none are.
    """

    prefix: str
    after: str | None = None
    until: str | None = None


class ObjectStore(Protocol):
    """What a store can do."""

    @property
    def where(self) -> str:
        """Name the store in an error."""

    async def list_page(
        self, keys: KeyRange, interest: Interest, *, token: str | None = None, limit: int | None = None
    ) -> Listing:
        """
        List a page, sending one request.

        :param keys: Which; a store that cannot end a listing lists on, and the end is cut off elsewhere.
        :param interest: Which objects to give.
        :param token: That of the page before.
        :param limit: The most keys on the page; by default as many as the store gives.
        :raises WatermarkError: The store cannot answer.
        """


async def read_range(store: ObjectStore, keys: KeyRange, interest: Interest) -> AsyncGenerator[Listing, None]:
    """
    List a range of keys, page by page, up to its end.

    :raises SourceError: The pages are not in key order, or break off.
    :raises WatermarkError: The store cannot answer; pages until then count.
    """
    last, token = keys.after, None
    tokens: set[str] = set()
    while True:
        page = await store.list_page(keys, interest, token=token)
        _check_order(store, page, last)
        last = page.last or last
        if keys.until is not None and last is not None and last >= keys.until:
            yield _cut(page, keys.until)
            return
        yield page
        token = page.token
        if token is None:
            return
        if not token or token in tokens:
            what = "goes in a circle" if token else "ends without a token though it is truncated"
            msg = f"{store.where}: the listing {what} (after {last or ''!r}); it is tried again"
            raise SourceError(msg)
        tokens.add(token)


def _check_order(store: ObjectStore, page: Listing, after: str | None) -> None:
    """Check that keys grow, from the one before the page to its last one."""
    if page.first is None:
        return
    if after is not None and page.first <= after:
        _refuse(store, page.first, after)
    previous, is_new = page.first, True
    for each in page.objects:
        if each.key < previous or (each.key == previous and not is_new):
            _refuse(store, each.key, previous)
        previous, is_new = each.key, False
    if page.last is not None and page.last < previous:
        _refuse(store, page.last, previous)


def _refuse(store: ObjectStore, key: str, previous: str) -> None:
    msg = (
        f"{store.where}: the listing is not in key order ({key!r} comes after {previous!r}), so progress in "
        "it means nothing; this server cannot be watched"
    )
    raise SourceError(msg)


def _cut(page: Listing, until: str) -> Listing:
    """Leave out what comes after a key, which is at or before the page's last one."""
    if page.last == until:
        return replace(page, token=None)
    objects = [each for each in page.objects if each.key <= until]
    first = page.first if page.first is not None and page.first <= until else None
    return Listing(objects=objects, first=first, last=until, count=len(objects), token=None)
