"""
Pages of a listing, as Amazon S3 writes them, read without an XML parser. Pure.

A parser makes an object of everything on a page, and takes fifty times as long as it takes to see that
nothing on it is new. What is read here is only what S3 and its like really write: every byte of a page is
checked against that form, and whatever differs in any way is left to an ordinary parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress
from operator import lt
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from airflow.providers.watermark.objects.listing import Interest, ListedObject

__all__ = ["ScannedPage", "scan_page"]

_BEGIN: Final = b"<Contents>"
_END: Final = b"</Contents>"
_TO_THE_HOUR: Final = len("2026-03-01T12")
_TO_THE_SECOND: Final = len("2026-03-01T12:00:00")

# Flat elements alone: one that is nested could hold what looks like an entry, or an end of the listing.
_ELEMENTS: Final = rb"(?:<(\w+)(?:>[^<]*</\1>| ?/>))*"
_HEAD: Final = re.compile(
    rb"(?:<\?xml version=[\"']1\.0[\"'](?: encoding=[\"'](?i:UTF-8)[\"'])?\?>\s*)?"
    rb"<ListBucketResult(?: xmlns=[\"'][\w:/.-]*[\"'])?>" + _ELEMENTS
)
_TAIL: Final = re.compile(_ELEMENTS + rb"</ListBucketResult>\s*")
_KEY_COUNT: Final = re.compile(rb"<KeyCount>(\d{1,9})</KeyCount>")
_ENCODING: Final = re.compile(rb"<EncodingType>([^<]*)</EncodingType>")

# A text ends where a tag begins: to look at each letter takes three times as long. What must not be in a text
# is looked for on the whole page at once.
_ENTRY: Final = re.compile(
    r"<Contents><Key>([^<]+)</Key><LastModified>(\d{4}-\d\d-\d\dT\d\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?Z)</LastModified>"
    r"<ETag>([^<]*)</ETag>"
    r"(?:<ChecksumAlgorithm>\w*</ChecksumAlgorithm>)*(?:<ChecksumType>\w*</ChecksumType>)?"
    r"<Size>(\d{1,18})</Size>"
    r"(?:<Owner>(?:<ID>\w*</ID>)?(?:<DisplayName>[^<&]*</DisplayName>)?</Owner>)?"
    r"(?:<StorageClass>\w*</StorageClass>)?</Contents>(?=<Contents>|\Z)",
    re.ASCII,
)
_PLAIN: Final = bytes(range(0x20, 0x7F)).replace(b"]", b"")
"""Bytes that mean themselves: an XML parser changes or refuses others, and the end of a CDATA section."""

_QUOTES: Final = ("&quot;", "&#34;")
"""Quotes around etags; other entities are not read here."""


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """
    A page.

    :param objects: Those of interest, in key order.
    :param first: The first key on the page, of interest or not.
    :param last: Likewise the last one.
    :param count: How many keys there are on the page, at least 1.
    :param rest: The document without its entries: tokens, and whether there are more pages.
    """

    objects: Sequence[ListedObject]
    first: str
    last: str
    count: int
    rest: bytes


def scan_page(body: bytes, interest: Interest, *, whole: bool = False) -> ScannedPage | None:
    """
    Read a page.

    :param body: The answer to ``ListObjectsV2``.
    :param interest: Which objects to give. Without any on the page, it costs a look at the stamps.
    :param whole: Look at all keys all the same.
    :return: ``None`` if it is not exactly what S3 writes, is empty, or has keys out of order: an ordinary
        parser then says what it is.
    """
    start, end = body.find(_BEGIN), body.rfind(_END) + len(_END)
    if not 0 <= start < end:
        return None
    head, tail = body[:start], body[end:]
    if not _HEAD.fullmatch(head) or not _TAIL.fullmatch(tail):
        return None
    rest = head + tail
    counts = _KEY_COUNT.findall(rest)
    if len(counts) != 1 or _ENCODING.findall(rest) != [b"url"]:
        return None
    entries, count = body[start:end], int(counts[0])
    if entries.count(_BEGIN) != count or entries.translate(None, _PLAIN):
        return None
    rows = _ENTRY.findall(entries.decode("ascii"))
    if len(rows) != count:  # each match is one entry, next to another: as many as there are cover all
        return None
    columns = _Columns(*zip(*rows, strict=True))
    if "&" in "".join(columns.keys) or not _is_quotes_only("".join(columns.etags)):
        return None
    try:
        found = _choose(columns, interest, whole=whole)
    except ValueError:
        return None
    return None if found is None else ScannedPage(*found, count, rest)


class _Columns(NamedTuple):
    """Entries, as they are written."""

    keys: Sequence[str]
    times: Sequence[str]
    etags: Sequence[str]
    sizes: Sequence[str]


def _choose(
    columns: _Columns, interest: Interest, *, whole: bool
) -> tuple[Sequence[ListedObject], str, str] | None:
    """
    Give the objects of interest, the first key and the last; ``None``: keys are out of order.

    :raises ValueError: A time is none.
    """
    keys, times, _, _ = columns
    for hour in {time[:_TO_THE_HOUR] for time in times}:
        datetime.fromisoformat(hour)  # which is none on the 31st of February
    since = interest.since.astimezone(UTC) if isinstance(interest.since, datetime) else None
    # As texts, times can be compared with a whole second: fractions of one have any number of digits.
    second = "" if since is None else since.isoformat()[:_TO_THE_SECOND]
    if max(times) < second and not whole:
        first, last = unquote_plus(keys[0]), unquote_plus(keys[-1])
        if (first < last or len(keys) == 1) and not interest.has_key_in(first, last):
            return (), first, last
    names = _decode(keys)
    if not all(map(lt, names, names[1:])):
        return None
    found = columns._replace(keys=names)
    if since is not None and interest.keys is not None:
        fresh = {time for time in set(times) if time >= second and datetime.fromisoformat(time) > since}
        awaited = frozenset(interest.keys)
        wanted = [time in fresh or name in awaited for time, name in zip(times, names, strict=True)]
        found = _Columns(*(list(compress(column, wanted)) for column in found))
    return _listed(found), names[0], names[-1]


def _listed(found: _Columns) -> list[ListedObject]:
    moments = {time: datetime.fromisoformat(time) for time in set(found.times)}
    etags = "\n".join(found.etags)
    for quote in _QUOTES:
        etags = etags.replace(quote, '"')
    versions = [etag.strip('"') for etag in etags.split("\n")]
    return list(
        map(ListedObject, found.keys, map(moments.__getitem__, found.times), map(int, found.sizes), versions)
    )


def _is_quotes_only(etags: str) -> bool:
    """Tell whether there are no other entities."""
    return etags.count("&") == sum(map(etags.count, _QUOTES))


def _decode(keys: Sequence[str]) -> list[str]:
    """Decode keys as botocore does, all at once: one by one takes five times as long."""
    text = "\n".join(keys)
    if "%0A" in text or "%0a" in text:
        return list(map(unquote_plus, keys))
    # Hive's equals signs are most of what is ever escaped.
    return unquote_plus(text.replace("%3D", "=")).split("\n")
