"""
Folders of small objects that are replaced as a whole, each by its own means of doing that safely.

All of it blocks, and is called in threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

__all__ = ["Folder", "Found", "OvertakenError", "folder_at", "folder_class"]

_TIMEOUT: Final = 30.0
_UNREADABLE: Final = "it exists but cannot be read just now"


class OvertakenError(Exception):
    """Somebody else has changed the object since it was read."""


class Found(NamedTuple):
    """
    An object.

    :ivar data: What it holds.
    :ivar tag: Tells this version from others.
    """

    data: bytes
    tag: Any


class Folder(ABC):
    """
    A folder.

    :param path: An ``ObjectStoragePath`` that leads to it.
    """

    compare_and_set: ClassVar[bool] = True
    """Whether a write fails if somebody else has written meanwhile."""

    def __init__(self, path: Any) -> None:
        self._fs = path.fs
        self._root = str(path.path).rstrip("/")

    @abstractmethod
    def read(self, name: str) -> Found | None:
        """Read an object; ``None`` if it is known to be missing, else an error."""

    @abstractmethod
    def write(self, name: str, data: bytes, tag: Any) -> None:
        """
        Write an object as a whole.

        :param name: Its path in the folder.
        :param data: What it shall hold.
        :param tag: What :meth:`read` told, or ``None`` if there was none.
        :raises OvertakenError: It is another one by now.
        """

    @abstractmethod
    def remove(self, name: str, tag: Any) -> None:
        """
        Remove an object.

        :raises OvertakenError: It is another one by now, and the folder can tell.
        """

    def names(self) -> list[str]:
        """List all objects by their paths in the folder."""
        self._fs.invalidate_cache()
        # A bucket's root has no slash; a local root is absolute for us and for the filesystem.
        return [path.removeprefix(f"{self._root}/") for path in self._fs.find(self._root)]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _place(self, name: str) -> tuple[str, str]:
        """Split a path in a bucket."""
        bucket, _, key = self._path(name).partition("/")
        return bucket, key


class LocalFolder(Folder):
    """
    A folder of this machine, or one that it has mounted.

    A file is replaced in one step and is on the disk before that; writers take turns by a lock on the
    folder. The folder must exist: without the check, one that is not mounted would look empty.
    """

    def read(self, name: str) -> Found | None:
        """Read an object."""
        with self._opened():
            return self._read(self._file(name))

    def write(self, name: str, data: bytes, tag: Any) -> None:
        """Write an object as a whole."""
        file = self._file(name)
        new = file.with_name(f".{file.name}.new")
        with self._locked():
            self._check(file, tag)
            self._make(file.parent)
            try:
                with new.open("wb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(opened.fileno())
                new.replace(file)
            except BaseException:
                with contextlib.suppress(OSError):
                    new.unlink(missing_ok=True)
                raise
            _sync(file.parent)

    def remove(self, name: str, tag: Any) -> None:
        """Remove an object."""
        file = self._file(name)
        with self._locked():
            self._check(file, tag)
            file.unlink()
            _sync(file.parent)

    def names(self) -> list[str]:
        """List all objects by their paths in the folder."""
        with self._opened():
            root = Path(self._root)
            files = [file.relative_to(root) for file in root.rglob("*.json")]
            return [file.as_posix() for file in files if not file.name.startswith(".")]

    def _file(self, name: str) -> Path:
        return Path(self._path(name))

    @staticmethod
    def _read(file: Path) -> Found | None:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        return Found(data, data)

    def _check(self, file: Path, tag: Any) -> None:
        found = self._read(file)
        if (found and found.tag) != tag:
            raise OvertakenError

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        opened = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield opened
        finally:
            os.close(opened)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._opened() as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class S3Folder(Folder):
    """A folder in S3, written with ``If-Match`` and ``If-None-Match``."""

    _OVERTAKEN: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
    _MISSING: Final = frozenset({"NoSuchKey", "404"})

    def read(self, name: str) -> Found | None:
        """Read an object."""
        bucket, key = self._place(name)
        try:
            found: Found = self._call(self._get, bucket, key)
        except OSError as error:
            # A missing bucket, too, is a FileNotFoundError.
            if _s3_code(error) not in self._MISSING:
                raise
        else:
            return found
        listed = self._call(self._fs._call_s3, "list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)  # noqa: SLF001
        if any(found["Key"] == key for found in listed.get("Contents", ())):
            raise OSError(_UNREADABLE)
        return None

    async def _get(self, bucket: str, key: str) -> Found:
        reply = await self._fs._call_s3("get_object", Bucket=bucket, Key=key)  # noqa: SLF001
        return Found(await reply["Body"].read(), reply["ETag"])

    def write(self, name: str, data: bytes, tag: Any) -> None:
        """Write an object as a whole."""
        bucket, key = self._place(name)
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            self._call(
                self._fs._call_s3,  # noqa: SLF001
                "put_object",
                Bucket=bucket,
                Key=key,
                Body=data,
                ContentType="application/json",
                **condition,
            )
        except OSError as error:
            # With If-Match, an object that has vanished is NoSuchKey.
            if _s3_code(error) in self._OVERTAKEN | self._MISSING:
                raise OvertakenError from error
            raise

    def remove(self, name: str, tag: Any) -> None:  # noqa: ARG002 - few servers can delete conditionally
        """Remove an object."""
        bucket, key = self._place(name)
        self._call(self._fs._call_s3, "delete_object", Bucket=bucket, Key=key)  # noqa: SLF001

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        from fsspec.asyn import sync  # type: ignore[import-untyped, unused-ignore]

        return sync(self._fs.loop, function, *args, timeout=_TIMEOUT, **kwargs)


def _s3_code(error: BaseException) -> str:
    """Find the code of S3's error behind the ``OSError`` that s3fs makes of it."""
    while (reply := getattr(error, "response", None)) is None and error.__cause__ is not None:
        error = error.__cause__
    return str(reply.get("Error", {}).get("Code", "")) if isinstance(reply, dict) else ""


class _Body(io.BytesIO):
    """A body that can be sent again: aiohttp closes what it has sent."""

    def close(self) -> None:
        self.seek(0)


class GcsFolder(Folder):
    """A folder in GCS, written with ``ifGenerationMatch``."""

    def read(self, name: str) -> Found | None:
        """Read an object."""
        bucket, key = self._place(name)
        try:
            headers, data = self._call("GET", "b/{}/o/{}", bucket, key, alt="media")
        except FileNotFoundError:
            # As above: a bucket that is not there makes this one fail.
            if key in self._list(bucket, key):
                raise OSError(_UNREADABLE) from None
            return None
        return Found(data, headers["X-Goog-Generation"])

    def write(self, name: str, data: bytes, tag: Any) -> None:
        """Write an object as a whole."""
        bucket, key = self._place(name)
        # A watermark has no line breaks, and so nothing in it looks like the boundary.
        part = "--watermark\r\nContent-Type: application/json\r\n\r\n"
        about = json.dumps({"name": key, "contentType": "application/json"})
        try:
            self._call(
                "POST",
                f"{self._fs._location}/upload/storage/v1/b/{bucket}/o",  # noqa: SLF001
                uploadType="multipart",
                ifGenerationMatch=tag or "0",
                headers={"Content-Type": "multipart/related; boundary=watermark"},
                data=_Body(f"{part}{about}\r\n{part}".encode() + data + b"\r\n--watermark--"),
            )
        except FileExistsError as error:
            raise OvertakenError from error

    def remove(self, name: str, tag: Any) -> None:
        """Remove an object."""
        bucket, key = self._place(name)
        try:
            self._call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=tag)
        except FileExistsError as error:
            raise OvertakenError from error

    def names(self) -> list[str]:
        """List all objects by their paths in the folder."""
        bucket, start = self._place("")
        return [name.removeprefix(start) for name in self._list(bucket, start)]

    def _list(self, bucket: str, prefix: str) -> list[str]:
        # Not fs.find(): gcsfs first asks what kind of bucket it is, by another API.
        names: list[str] = []
        page: dict[str, str] = {}
        while True:
            reply = self._call("GET", "b/{}/o", bucket, prefix=prefix, json_out=True, **page)
            names += [found["name"] for found in reply.get("items", ())]
            if "nextPageToken" not in reply:
                return names
            page = {"pageToken": reply["nextPageToken"]}

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._fs.call(*args, timeout=_TIMEOUT, **kwargs)


class AnyFolder(Folder):
    """A folder in any other file system of Airflow's: for one writer at a time."""

    compare_and_set: ClassVar[bool] = False

    def read(self, name: str) -> Found | None:
        """Read an object."""
        self._fs.invalidate_cache()
        try:
            return Found(self._fs.cat_file(self._path(name)), None)
        except FileNotFoundError:
            if self._path(name) in self._fs.find(self._root):
                raise OSError(_UNREADABLE) from None
            return None

    def write(self, name: str, data: bytes, tag: Any) -> None:  # noqa: ARG002
        """Write an object as a whole."""
        path = self._path(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, data)

    def remove(self, name: str, tag: Any) -> None:  # noqa: ARG002
        """Remove an object."""
        self._fs.rm_file(self._path(name))


_FOLDERS: Final[dict[str, type[Folder]]] = {
    **dict.fromkeys(("file", "local", ""), LocalFolder),
    **dict.fromkeys(("s3", "s3a", "s3n"), S3Folder),
    **dict.fromkeys(("gs", "gcs"), GcsFolder),
}


def folder_class(url: str) -> type[Folder]:
    """Choose by the scheme of a URL."""
    scheme, separator, _ = url.partition("://")
    return _FOLDERS.get(scheme if separator else "", AnyFolder)


def folder_at(url: str) -> Folder:
    """
    Open a folder, with the Airflow connection that its URL names: ``s3://aws_default@bucket/folder``.

    :param url: What ``ObjectStoragePath`` takes.
    """
    from airflow.sdk import ObjectStoragePath

    return folder_class(url)(ObjectStoragePath(url))
