"""The objects and multipart uploads behind :mod:`devtools.s3_stub`, without HTTP."""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from datetime import date, datetime
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEY_LIMIT = 1024  # bytes

STATUS = {
    "AccessDenied": 403,
    "ExpiredToken": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidPart": 400,
    "KeyTooLongError": 400,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "RequestTimeTooSkewed": 403,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
}


class S3Error(Exception):
    """What S3 answers with an error code; the status is AWS's for that code unless given."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status or STATUS.get(code, 400)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object; the ETag without quotes, the stamp in epoch seconds."""

    etag: str
    last_modified: int
    body: bytes


@dataclass(slots=True)
class Upload:
    """A multipart upload in progress: the second it began in, and its parts by number."""

    key: str
    initiated: int
    parts: dict[int, bytes] = field(default_factory=dict)


class Bulk:
    """Hive-style keys of about 110 bytes, sorted, computed when they are read: no memory and no set-up.

    :param prefix: what every key begins with.
    :param count: how many there are, a thousand to the hour from 2020 on.
    :param last_modified: epoch seconds of the object at an index.
    """

    _FIRST_DAY = date(2020, 1, 1).toordinal()
    _BODY = bytes(1024)

    def __init__(self, prefix: str, count: int, last_modified: Callable[[int], int]) -> None:
        self.prefix, self._count, self._last_modified = prefix, count, last_modified

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < self._count:
            raise IndexError(index)
        hours, part = divmod(index, 1000)
        days, hour = divmod(hours, 24)
        day = date.fromordinal(self._FIRST_DAY + days)
        return (
            f"{self.prefix}year={day.year}/month={day.month:02}/day={day.day:02}/hour={hour:02}/"
            f"part-{part:05}-{index:08x}-0000-4000-8000-{index:012x}.c000.snappy.parquet"
        )

    def object_at(self, index: int) -> StoredObject:
        """Return the object whose key is at the index."""
        return StoredObject(f"{index:032x}", self._last_modified(index), self._BODY)

    def find(self, key: str) -> StoredObject | None:
        """Return the object of the key."""
        index = bisect_left(self, key)
        return self.object_at(index) if index < len(self) and self[index] == key else None


class Store:
    """A bucket's content. Every method is thread-safe."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.time
        """Epoch seconds, from which every stamp comes, rounded down. Assign another to turn it."""
        self._lock = threading.RLock()
        self._keys: list[str] = []
        self._objects: dict[str, StoredObject | None] = {}  # None: a key of a bulk that was deleted
        self._bulks: list[Bulk] = []
        self._uploads: dict[str, Upload] = {}
        self._upload_count = 0

    def put(self, key: str, body: bytes = b"", last_modified: datetime | None = None) -> str:
        """Store an object, stamped by the clock unless told otherwise; return its ETag without quotes."""
        etag = md5(body).hex()
        self._store(key, StoredObject(etag, self._stamp(last_modified), body))
        return etag

    def bulk(
        self, prefix: str, count: int, last_modified: datetime | Callable[[int], datetime] | None = None
    ) -> Bulk:
        """Add ``count`` objects under a prefix at once, and return their keys in order.

        :param last_modified: one stamp for all, or a function of the index; the clock's unless given.
        """
        if callable(last_modified):
            stamp_of = last_modified
            bulk = Bulk(prefix, count, lambda index: int(stamp_of(index).timestamp()))
        else:
            stamp = self._stamp(last_modified)
            bulk = Bulk(prefix, count, lambda _: stamp)
        with self._lock:
            self._bulks.append(bulk)
        return bulk

    def delete(self, key: str) -> None:
        """Delete an object; one that does not exist as well, as on S3."""
        with self._lock:
            if any(bulk.find(key) for bulk in self._bulks):
                self._store(key, None)
            elif self._objects.pop(key, None):
                del self._keys[bisect_left(self._keys, key)]

    def find(self, key: str) -> StoredObject:
        """Return an object.

        :raises S3Error: ``NoSuchKey``.
        """
        with self._lock:
            if key in self._objects:
                found = self._objects[key]
            else:
                found = next(filter(None, (bulk.find(key) for bulk in self._bulks)), None)
        if found is None:
            raise S3Error("NoSuchKey", key)
        return found

    def walk(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, StoredObject]]:
        """Yield the objects that have the prefix and lie after a key, in the order of the keys' UTF-8 bytes.

        Hold no iterator over a change of the store.
        """

        # Strings compare by code point, which is the order of their UTF-8 bytes.
        def begin(keys: list[str] | Bulk) -> int:
            return max(bisect_left(keys, prefix), bisect_right(keys, after))

        def single() -> Iterator[tuple[str, StoredObject | None]]:
            for index in range(begin(self._keys), len(self._keys)):
                yield self._keys[index], self._objects[self._keys[index]]

        def many(keys: Bulk) -> Iterator[tuple[str, StoredObject | None]]:
            for index in range(begin(keys), len(keys)):
                yield keys[index], keys.object_at(index)

        previous = None
        for key, stored in heapq.merge(single(), *map(many, self._bulks), key=itemgetter(0)):
            if not key.startswith(prefix):
                return
            if key != previous and stored is not None:  # of equal keys a single one comes first
                yield key, stored
            previous = key

    def create_upload(self, key: str, initiated: datetime | None = None) -> str:
        """Begin a multipart upload, now unless told otherwise; return its id. Ids sort by age."""
        with self._lock:
            self._upload_count += 1
            upload_id = f"upload-{self._upload_count:09}"
            self._uploads[upload_id] = Upload(_checked(key), self._stamp(initiated))
        return upload_id

    def uploads(self, prefix: str = "") -> list[tuple[str, str, int]]:
        """Return key, id and second of initiation of the uploads in progress, ordered by the first two."""
        with self._lock:
            found = [(upload.key, upload_id, upload.initiated) for upload_id, upload in self._uploads.items()]
        return sorted(upload for upload in found if upload[0].startswith(prefix))

    def upload(self, upload_id: str) -> Upload:
        """Return an upload in progress.

        :raises S3Error: ``NoSuchUpload``.
        """
        if found := self._uploads.get(upload_id):
            return found
        raise S3Error("NoSuchUpload", upload_id)

    def complete_upload(self, upload_id: str, *parts: bytes) -> str:
        """End an upload: its object appears, stamped with the second of its initiation; return the ETag."""
        parts = parts or (b"",)
        body = b"".join(parts)
        etag = f"{md5(b''.join(map(md5, parts))).hex()}-{len(parts)}"
        with self._lock:
            upload = self.upload(upload_id)
            self._store(upload.key, StoredObject(etag, upload.initiated, body))
            del self._uploads[upload_id]
        return etag

    def abort_upload(self, upload_id: str) -> None:
        """End an upload: no object appears."""
        with self._lock:
            self.upload(upload_id)
            del self._uploads[upload_id]

    def _stamp(self, given: datetime | None) -> int:
        return int(self.clock() if given is None else given.timestamp())

    def _store(self, key: str, stored: StoredObject | None) -> None:
        with self._lock:
            if _checked(key) not in self._objects:
                insort(self._keys, key)
            self._objects[key] = stored


def _checked(key: str) -> str:
    if not 0 < len(key.encode()) <= _KEY_LIMIT:
        raise S3Error("KeyTooLongError", f"a key has 1 to {_KEY_LIMIT} bytes, this has {len(key.encode())}")
    return key


def md5(data: bytes) -> bytes:
    """Return the digest that an ETag is made of."""
    return hashlib.md5(data, usedforsecurity=False).digest()
