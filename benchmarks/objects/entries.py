"""
The listing of a bucket, rendered once: every entry has the same length, so any page of it is a slice.

The server then costs next to nothing beside its clients, wherever a page begins.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from benchmarks.objects.layouts import Layout

MAX_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """
    A page of a listing.

    :param ranges: The numbers of its objects: from, inclusive, and to, exclusive.
    :param prefixes: Its common prefixes.
    :param following: The number with which the next page begins, or ``None`` at the end.
    """

    ranges: list[tuple[int, int]]
    prefixes: list[str]
    following: int | None

    @property
    def count(self) -> int:
        """How many objects there are on it."""
        return sum(stop - start for start, stop in self.ranges)


class Keys:
    """
    The keys of a bucket, in order.

    :param layout: What is in it.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.numbers = range(layout.count)

    def after(self, key: str) -> int:
        """Give the number of the first key after one that need not exist."""
        return bisect_right(self.numbers, key, key=self.layout.key)

    def at(self, key: str) -> int:
        """Give the number of the first key at or after one that need not exist."""
        return bisect_left(self.numbers, key, key=self.layout.key)

    def page(self, prefix: str, start: int, limit: int, delimiter: str = "") -> Page:
        """Give the page that begins with an object, or with the prefix's first one if that comes later."""
        start, end = (
            max(start, self.at(prefix)),
            self.at(prefix + "\U0010ffff") if prefix else len(self.numbers),
        )
        if not delimiter:
            stop = max(start, min(start + limit, end))
            return Page([(start, stop)], [], stop if stop < end else None)
        page = Page([], [], None)
        position, room = start, limit
        while position < end and room:
            key = self.layout.key(position)
            cut = key.find(delimiter, len(prefix))
            if cut < 0:
                page.ranges.append((position, position + 1))
                position += 1
            else:
                page.prefixes.append(key[: cut + len(delimiter)])
                position = self.at(page.prefixes[-1] + "\U0010ffff")
            room -= 1
        return Page(page.ranges, page.prefixes, position if position < end else None)


class Entries:
    """
    The entries of a listing, of one length each.

    :param layout: What is in the bucket.
    :param render: Renders an object's entry.
    """

    def __init__(self, layout: Layout, render: Callable[[Layout, int], bytes]) -> None:
        self.width = len(render(layout, 0)) if layout.count else 1
        self.whole = memoryview(b"".join(_of_one_length(layout, render, self.width)))

    def of(self, page: Page) -> list[memoryview]:
        """Give a page's entries."""
        return [self.whole[start * self.width : stop * self.width] for start, stop in page.ranges]


def _of_one_length(layout: Layout, render: Callable[[Layout, int], bytes], width: int) -> Iterator[bytes]:
    for number in range(layout.count):
        entry = render(layout, number)
        if len(entry) != width:
            raise AssertionError(f"entry {number} has another length: {entry!r}")
        yield entry


def s3_entry(layout: Layout, number: int) -> bytes:
    """Render an object as S3 does, with its key url-encoded and the checksum's kind named."""
    etag = hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()
    key = layout.key(number).replace("=", "%3D")  # the only one there that S3 encodes
    return (
        f"<Contents><Key>{key}</Key><LastModified>{_iso(layout, number)}.000Z"
        f"</LastModified><ETag>&quot;{etag}&quot;</ETag><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
        f"<ChecksumType>FULL_OBJECT</ChecksumType><Size>{1_000_000 + number}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    ).encode()


def _iso(layout: Layout, number: int) -> str:
    return layout.stamp(number).isoformat()[:19]


@lru_cache(maxsize=8)
def s3_entries(layout: Layout) -> Entries:
    """Render a bucket for S3."""
    return Entries(layout, s3_entry)


def gcs_object(layout: Layout, number: int) -> dict[str, Any]:
    """Give an object as GCS does, all fields of the projection ``noAcl`` included."""
    bucket, name = layout.bucket, layout.key(number)
    stamp = f"{_iso(layout, number)}.{number % 1000:03d}Z"
    generation = str(1_700_000_000_000_000 + number)
    host, path = "https://www.googleapis.com", f"storage/v1/b/{bucket}/o/{quote(name, safe='')}"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "selfLink": f"{host}/{path}",
        "mediaLink": f"{host}/download/{path}?generation={generation}&alt=media",
        "name": name,
        "bucket": bucket,
        "generation": generation,
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "size": str(1_000_000 + number),
        "md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg==",
        "crc32c": "AAAAAA==",
        "etag": "CPjf0qXGpocDEAE=",
        "timeCreated": stamp,
        "updated": stamp,
        "timeStorageClassUpdated": stamp,
        "timeFinalized": stamp,
    }


@lru_cache(maxsize=8)
def gcs_entries(layout: Layout, fields: str, *, pretty: bool) -> Entries:
    """
    Render a bucket for GCS.

    :param fields: Which ones, separated by commas, or ``*``.
    :param pretty: Whether the JSON is indented, as it is unless a client asks otherwise.
    """
    wanted = None if fields in {"", "*"} else set(fields.split(","))

    def render(layout: Layout, number: int) -> bytes:
        whole = gcs_object(layout, number)
        some = whole if wanted is None else {name: value for name, value in whole.items() if name in wanted}
        if pretty:  # by hand: json's own indentation is slow, and all values are plain strings
            lines = ",\n".join(f'      "{name}": "{value}"' for name, value in some.items())
            return f"    {{\n{lines}\n    }},\n".encode()
        return json.dumps(some, separators=(",", ":")).encode() + b","

    return Entries(layout, render)
