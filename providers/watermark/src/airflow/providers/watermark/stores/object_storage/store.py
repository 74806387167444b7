"""The ``object_storage`` store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async

from airflow.providers.watermark.change import digest
from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    StoreError,
    WatermarkConflictError,
)
from airflow.providers.watermark.settings import object_storage_path
from airflow.providers.watermark.stores.base import (
    BaseWatermarkStore,
    WatermarkKey,
    finished,
    from_text,
    key_in,
    to_text,
)
from airflow.providers.watermark.stores.object_storage.folder import (
    Folder,
    LocalFolder,
    LockedError,
    OvertakenError,
    folder_at,
    folder_class,
)
from airflow.providers.watermark.version_compat import call_supervised

__all__ = ["ObjectStorageStore", "object_name"]

_T = TypeVar("_T")
_SUFFIX: Final = ".json"
_MAX_PART: Final = 200  # bytes: a file's name has at most 255, a key of S3 or GCS 1024
_READ_AGAIN: Final = 10.0
_FOLDERS: dict[str, Folder] = {}
_RELEASED: dict[str, float] = {}
# Each their own, so that no load waits for a save that waits for a lock.
_READERS: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="watermark-store-read")
_WRITERS: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="watermark-store-write")


def object_name(key: WatermarkKey) -> str:
    """
    Name the object of a watermark: ``<namespace>/<asset_name>/<key>.json``, each part percent-encoded.

    A part that is too long is cut and ends in a digest of the whole.
    """
    return "/".join(_encode(part) for part in (key.namespace, key.asset_name, key.key)) + _SUFFIX


def _encode(part: str) -> str:
    # A leading dot means a hidden file, or the folder above; "%" alone stands for an empty part.
    encoded = re.sub(r"^\.", "%2E", quote(part, safe="")) or "%"
    if len(encoded) <= _MAX_PART:
        return encoded
    name = digest(part)
    return f"{encoded[: _MAX_PART - len(name) - 1]}~{name}"


def _plain_key(name: str) -> WatermarkKey | None:
    """Read the name of an object that tells the three parts as they are."""
    parts = name.removesuffix(_SUFFIX).split("/")
    if len(parts) != len(WatermarkKey._fields):
        return None
    namespace, asset_name, key = ("" if part == "%" else unquote(part) for part in parts)
    found = WatermarkKey(asset_name, namespace, key)
    return found if object_name(found) == name else None


class ObjectStorageStore(BaseWatermarkStore):
    """
    Keeps each watermark in an object below ``[watermark] object_storage_path``.

    The path is one that Airflow's ``ObjectStoragePath`` takes: ``s3://aws_default@bucket/folder``,
    ``gs://google_cloud_default@bucket/folder``, ``file:///mnt/share/watermarks``. A bucket or local folder
    must exist, and a local folder must be *in* a mount, and no mount point itself: where nothing is mounted,
    a mount point is an empty folder. After an error the connection is read again.

    Writes compare and set: by ``If-Match`` in S3 (a server that ignores it must have one writer only), by
    generation in GCS, by a lock on the file ``.lock`` in a local folder. A mount that several hosts share
    must pass that lock on, as NFS does without ``nolock`` and ``local_lock``. Other mounts and file systems
    have no such thing: there must be one triggerer only. Deleting compares too, but in S3 not in one step.

    :raises ConfigurationError: ``[watermark] object_storage_path`` is not set, or leads nowhere.
    """

    def __init__(self) -> None:
        self._url = _checked(object_storage_path())
        self.compare_and_set = folder_class(self._url).compare_and_set

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark."""

        def work(folder: Folder) -> dict[str, Any] | None:
            found = folder.read(object_name(key))
            return None if found is None else self._read(key, found.data)

        return await self._call(key, work)

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Read, compare, and write on the condition that nobody else has written since."""
        name = object_name(key)
        data = to_text(value, None if _plain_key(name) == key else key).encode()

        def work(folder: Folder) -> None:
            found = folder.read(name)
            self.compare(key, None if found is None else self._read(key, found.data), expected)
            try:
                folder.write(name, data, None if found is None else found.tag)
            except OvertakenError:
                again = folder.read(name)  # a client that tried twice is overtaken by itself
                if again is None or again.data != data:
                    raise

        await self._call(key, work, _WRITERS)

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """Read, compare, and delete."""
        name = object_name(key)

        def work(folder: Folder) -> None:
            if (found := folder.read(name)) is not None:
                self.compare(key, self._read(key, found.data), expected)
                folder.remove(name, found.tag)

        await self._call(key, work, _WRITERS)

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks; those whose names were cut are read."""

        def told(folder: Folder, name: str) -> WatermarkKey | None:
            plain = _plain_key(name)
            if plain is not None and max(map(len, name.split("/"))) < _MAX_PART:
                return plain
            found = folder.read(name)
            key = None if found is None else key_in(found.data)
            return key if key is not None and object_name(key) == name else plain

        def work(folder: Folder) -> list[WatermarkKey]:
            names = [name for name in folder.names() if name.endswith(_SUFFIX)]
            return [key for name in names if (key := told(folder, name)) is not None]

        return await self._call(None, work)

    async def _call(
        self,
        key: WatermarkKey | None,
        work: Callable[[Folder], _T],
        threads: ThreadPoolExecutor = _READERS,
    ) -> _T:
        what = "the watermarks" if key is None else f"the watermark {'/'.join(key)}"
        folder = _FOLDERS.get(self._url)
        try:
            # The connection is read where the task SDK wants that to be done.
            if folder is None:
                folder = await call_supervised(_opened, self._url)
            run = sync_to_async(work, thread_sensitive=False, executor=threads)
            return await finished(run(folder))
        except (StoreError, ConfigurationError):
            raise
        except OvertakenError as error:
            msg = f"{what} was changed by another writer just now"
            raise WatermarkConflictError(msg) from error
        except Exception as error:
            _release(self._url, folder)
            msg = (
                f"{what} cannot be reached in [watermark] object_storage_path {_shown(self._url)} "
                f"({_explained(error)}). Nothing is lost: it is tried again"
            )
            raise StoreError(msg) from error

    def _read(self, key: WatermarkKey, data: bytes) -> dict[str, Any]:
        return from_text(key, data, f"the object {object_name(key)!r} in {_shown(self._url)}")


def _shown(url: str) -> str:
    """Give a path without what may be a login."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme}{colon}{rest.rpartition('@')[2]}"


def _checked(url: str) -> str:
    """
    Refuse what would be another folder in each process, or none.

    :raises ConfigurationError: It is no absolute path, or names no bucket.
    """
    _, separator, rest = url.partition("://")
    host, slash, _ = rest.partition("/")
    if separator and folder_class(url) is LocalFolder:
        # Airflow would take file://folder for a folder in the one that this process was started in.
        what = "" if slash and not host.rpartition("@")[2] else "is no absolute path"
    elif separator:
        what = "" if rest.rpartition("@")[2].strip("/") else "names no bucket"
    else:
        what = "" if url.startswith("/") else "is no absolute path, and no URL"
    if what:
        msg = (
            f"[watermark] object_storage_path {_shown(url)} {what}; it is like "
            "s3://aws_default@bucket/folder or file:///mnt/share/watermarks"
        )
        raise ConfigurationError(msg)
    return url


def _release(url: str, folder: Folder | None) -> None:
    """
    Forget a folder that has failed, so that the next attempt reads its connection anew: it may be mended.

    Not again soon, since hundreds of watchers may fail together, and a client takes time and memory.
    """
    now = time.monotonic()
    soon = url in _RELEASED and now < _RELEASED[url] + _READ_AGAIN
    if folder is not None and _FOLDERS.get(url) is folder and not soon:
        _RELEASED[url] = now
        del _FOLDERS[url]
        folder.release()


def _opened(url: str) -> Folder:
    if (folder := _FOLDERS.get(url)) is None:
        try:
            folder = folder_at(url)
        except (ValueError, ImportError) as error:
            msg = (
                f"[watermark] object_storage_path {_shown(url)} cannot be opened ({type(error).__name__}); "
                "correct it, or install the provider that has such a file system"
            )
            raise ConfigurationError(msg) from error
    return _FOLDERS.setdefault(url, folder)


def _explained(error: Exception) -> str:
    """Tell an error by its kind: texts of clients may carry what is secret."""
    if isinstance(error, FileNotFoundError):  # of the folder: an object that is missing is no error
        return "it does not exist; mount or create the folder or bucket"
    if isinstance(error, LockedError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None and error.strerror and not error.__cause__:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__
