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
_OPENING: Final = "<Contents><Key>"
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

# [0-9] is looked up faster than \d.
_STAMP: Final = "[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9}+)?+Z"
_CHECKSUM: Final = r"(?:<ChecksumAlgorithm>\w*+</ChecksumAlgorithm>)*+(?:<ChecksumType>\w*+</ChecksumType>)?+"
_REST: Final = (
    r"(?:<Owner>(?:<ID>\w*+</ID>)?+(?:<DisplayName>[^<&]*+</DisplayName>)?+</Owner>)?+"
    r"(?:<StorageClass>\w*+</StorageClass>)?+</Contents>"
)


def _entries(etag: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?:<Contents><Key>[^<]++</Key><LastModified>{_STAMP}</LastModified><ETag>{etag}</ETag>"
        rf"{_CHECKSUM}<Size>[0-9]{{1,18}}+</Size>{_REST})*+",
        re.ASCII,
    )


# To see that entries have the right form takes half as long as to take their texts out.
_FORMS: Final = {0: _entries("[^<]*+"), 2: _entries("&quot;[^<&]*+&quot;")}
"""The form of entries by how many entities each of them has: either none or quotes around its etag."""

_TIME: Final = re.compile("<LastModified>([^<]*)<")

# A text ends where a tag begins: to look at each letter takes three times as long. Entities are looked for in
# all of them at once.
_ENTRY: Final = re.compile(
    rf"<Contents><Key>([^<]+)</Key><LastModified>({_STAMP})</LastModified><ETag>([^<]*)</ETag>"
    rf"{_CHECKSUM}<Size>(\d{{1,18}}+)</Size>{_REST}(?=<Contents>|\Z)",
    re.ASCII,
)
_FEW: Final = 16
"""Entries that are taken from a page one by one; if more of them may be news, all are at once."""

_PLAIN: Final = bytes(range(0x20, 0x7F)).translate(None, b"]&")
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
    entities = entries.translate(None, _PLAIN)
    if entities.strip(b"&"):
        return None
    text = entries.decode("ascii")
    try:
        found = None if whole else _pick(text, count, len(entities), interest)
        found = found or _read(text, count, interest)
    except ValueError:
        return None
    return None if found is None else ScannedPage(*found, count, rest)


_Found = tuple[Sequence[ListedObject], str, str]
"""The objects of interest, the first key and the last."""


class _Columns(NamedTuple):
    """Entries, as they are written."""

    keys: Sequence[str]
    times: Sequence[str]
    etags: Sequence[str]
    sizes: Sequence[str]


def _pick(text: str, count: int, entities: int, interest: Interest) -> _Found | None:
    """
    Take the few objects of interest out of a page that has no more of them.

    :param entities: How many there are in the text.
    :return: ``None`` if it may have more, or is unusual.
    :raises ValueError: A time is none.
    """
    if not isinstance(interest.since, datetime):
        return None
    times = _TIME.findall(text)
    if not len(times) == count > 0:
        return None
    _check_dates(times)
    since, second = _since(interest.since)
    recent = [time for time in times if time >= second]
    each, odd = divmod(entities, count)
    if len(recent) > _FEW or odd or each not in _FORMS or not _FORMS[each].fullmatch(text):
        return None
    last_entry = text.rindex(_OPENING)
    first, last = (unquote_plus(_key_at(text, start)) for start in (0, last_entry))
    if (first >= last and last_entry > 0) or interest.has_key_in(first, last):
        return None
    fresh = {time for time in recent if datetime.fromisoformat(time) > since}
    starts = sorted(
        text.rindex(_OPENING, 0, found.start())
        for time in fresh
        for found in re.finditer(f"<LastModified>{re.escape(time)}<", text)
    )
    if not starts:
        return (), first, last
    rows = [entry.groups() for entry in (_ENTRY.match(text, start) for start in starts) if entry is not None]
    if not len(rows) == len(starts) == sum(map(fresh.__contains__, recent)):
        return None
    columns = _Columns(*zip(*rows, strict=True))
    return _listed(columns._replace(keys=_decode(columns.keys))), first, last


def _check_dates(times: Sequence[str]) -> None:
    for hour in {time[:_TO_THE_HOUR] for time in times}:
        datetime.fromisoformat(hour)  # which is none on the 31st of February


def _key_at(text: str, start: int) -> str:
    start += len(_OPENING)
    return text[start : text.index("<", start)]


def _since(moment: datetime) -> tuple[datetime, str]:
    """Give a time, and its second as a text: fractions of one have any number of digits."""
    since = moment.astimezone(UTC)
    return since, since.isoformat()[:_TO_THE_SECOND]


def _read(text: str, count: int, interest: Interest) -> _Found | None:
    """
    Look at all entries of a page.

    :return: ``None`` if it is unusual, or its keys are out of order.
    :raises ValueError: A time is none.
    """
    rows = _ENTRY.findall(text)
    # Each match is one entry, next to another: as many as there are cover all.
    if not len(rows) == count == text.count("<Contents>"):
        return None
    columns = _Columns(*zip(*rows, strict=True))
    keys, times, etags, _ = columns
    if "&" in "".join(keys) or not _is_quotes_only("".join(etags)):
        return None
    _check_dates(times)
    names = _decode(keys)
    if not all(map(lt, names, names[1:])):
        return None
    found = columns._replace(keys=names)
    if isinstance(interest.since, datetime) and interest.keys is not None:
        since, second = _since(interest.since)
        fresh = {time for time in set(times) if time >= second and datetime.fromisoformat(time) > since}
        awaited = frozenset(interest.keys)
        wanted = [time in fresh or name in awaited for time, name in zip(times, names, strict=True)]
        found = _Columns(*(list(compress(column, wanted)) for column in found))
    return _listed(found), names[0], names[-1]


def _listed(found: _Columns) -> list[ListedObject]:
    etags = "\n".join(found.etags)
    for quote in _QUOTES:
        etags = etags.replace(quote, '"')
    versions = [etag.strip('"') for etag in etags.split("\n")]
    return list(
        map(
            ListedObject,
            found.keys,
            map(datetime.fromisoformat, found.times),
            map(int, found.sizes),
            versions,
        )
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
