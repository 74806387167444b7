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
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

from airflow.providers.watermark.exceptions import ConfigurationError
from airflow.providers.watermark.version_compat import get_connection

__all__ = ["Folder", "Found", "LockedError", "OvertakenError", "folder_at", "folder_class"]

_TIMEOUT: Final = 30.0
_LOCK_TIMEOUT: Final = 10.0
_LINGERS: Final = 60.0
_LEFTOVER: Final = 3600.0
_UNREADABLE: Final = "it exists but cannot be read just now"


class OvertakenError(Exception):
    """Somebody else has changed the object since it was read."""


class LockedError(OSError):
    """Somebody else does not give a lock back; the text says what to do, and no secret."""


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

    :param fs: Its file system, of fsspec, which nobody else uses.
    :param root: Its path there.
    """

    compare_and_set: ClassVar[bool] = True
    """Whether a write fails if somebody else has written meanwhile."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")

    def release(self) -> None:
        """Close the file system, once those that use it just now are done."""
        # In fsspec's own loop: left to garbage collection, it is closed in whichever loop happens to run.
        if (loop := getattr(self._fs, "loop", None)) is not None:
            loop.call_soon_threadsafe(loop.call_later, _LINGERS, self._close)

    def _close(self) -> None:  # noqa: B027 - most have nothing open
        """Close what the file system has open."""

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
    A folder of this machine, or one in what it has mounted.

    A file is replaced in one step and is on the disk before that, so that readers need no lock. Writers take
    turns by a lock on the file ``.lock``: on a file, opened for writing, since NFS passes no other lock on
    to its server. The folder must exist and be no mount point: one that is not mounted would look empty.
    """

    _LOCK: Final = ".lock"

    def __init__(self, fs: Any, root: str) -> None:
        super().__init__(fs, root)
        self._turn = threading.Lock()

    def read(self, name: str) -> Found | None:
        """Read an object."""
        with self._opened() as folder:
            return self._read(folder, name)

    def write(self, name: str, data: bytes, tag: Any) -> None:
        """Write an object as a whole."""
        file = self._file(name)
        with self._locked() as folder:
            self._check(folder, name, tag)
            self._make(file.parent)
            self._remove_leftovers(file)
            # Where locks are not passed on, two hosts must not write into the same file.
            new = file.with_name(f".{file.name}.{secrets.token_hex(4)}.new")
            try:
                with new.open("xb") as opened:
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
        with self._locked() as folder:
            self._check(folder, name, tag)
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
    def _read(folder: int, name: str) -> Found | None:
        def opener(path: str, flags: int) -> int:
            # In the folder that is open, whatever stands in its place by now.
            return os.open(path, flags, dir_fd=folder)

        try:
            with open(name, "rb", opener=opener) as file:
                data = file.read()
        except FileNotFoundError:
            return None
        return Found(data, data)

    def _check(self, folder: int, name: str, tag: Any) -> None:
        found = self._read(folder, name)
        if (found and found.tag) != tag:
            raise OvertakenError

    def _make(self, folder: Path) -> None:
        # Never the folder itself: made where nothing is mounted, it would look empty from then on.
        if folder != Path(self._root) and not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)

    @staticmethod
    def _remove_leftovers(file: Path) -> None:
        """Remove what killed writers have left; what is young may be in use where locks are not passed on."""
        for new in file.parent.iterdir():
            if new.name.startswith(f".{file.name}.") and new.name.endswith(".new"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - new.stat().st_mtime > _LEFTOVER:
                        new.unlink()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        root = self._root or "/"
        if os.path.ismount(os.path.realpath(root)):
            inside = f"{self._root}/watermarks"
            msg = (
                f"[watermark] object_storage_path {root} is a mount point. While nothing is mounted there it "
                "is an empty folder, and all watchers would start anew. Stop the triggerers, make a folder "
                f"in it, such as {inside}, move the watermarks there, and name that: file://{inside}"
            )
            raise ConfigurationError(msg)
        opened = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield opened
        finally:
            os.close(opened)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        until = time.monotonic() + _LOCK_TIMEOUT
        with contextlib.ExitStack() as stack:
            # Threads queue here, which is quick; the file is for other processes, and has to be asked again.
            if not self._turn.acquire(timeout=_LOCK_TIMEOUT):
                raise self._stuck()
            stack.callback(self._turn.release)
            folder = stack.enter_context(self._opened())
            lock = self._open_lock(folder)
            stack.callback(os.close, lock)  # which unlocks it
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise self._stuck() from None
                    time.sleep(0.01)
                else:
                    break
            yield folder

    def _open_lock(self, folder: int) -> int:
        try:
            return os.open(self._LOCK, os.O_RDWR | os.O_CREAT, 0o666, dir_fd=folder)
        except PermissionError:
            # Another user may have made it. A local disk does not mind; NFS refuses to lock it.
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._LOCK, os.O_RDONLY, dir_fd=folder)
            raise

    def _stuck(self) -> OSError:
        return LockedError(
            f"the lock {self._root}/{self._LOCK} was not free for {_LOCK_TIMEOUT:.0f} s; find the process "
            "that holds it with fuser or lslocks, and let it go on or end it"
        )


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

    def _close(self) -> None:
        """Close the client."""
        if (client := getattr(self._fs, "_s3creator", None)) is not None:
            self._fs.close_session(self._fs.loop, client)

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

    def _close(self) -> None:
        """Close the client."""
        self._fs.close_session(self._fs.loop, self._fs._session)  # noqa: SLF001

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

    The connection is read anew each time.

    :param url: What ``ObjectStoragePath`` takes.
    :raises ConfigurationError: There is no such connection, or it cannot be read.
    """
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.io import get_fs

    parts = urlsplit(url)
    conn_id, _, bucket = parts.netloc.rpartition("@")
    # Without its connection: with it Airflow would open a file system, and keep it while the process lives.
    root = str(ObjectStoragePath(parts._replace(netloc=bucket).geturl()).path)
    fs = get_fs(parts.scheme or "file", conn_id or None)
    type(fs)._cache.pop(fs._fs_token, None)  # noqa: SLF001 - fsspec, too, keeps what it has opened
    folder = folder_class(url)
    if conn_id and folder is not LocalFolder:
        _check_connection(conn_id)
    return folder(fs, root)


def _check_connection(conn_id: str) -> None:
    # Airflow takes an AWS connection that is missing, or cannot be read just now, for an empty one. It would
    # ask another S3, or with another identity, and may find no watermarks there.
    try:
        get_connection(conn_id)
    except Exception as error:
        msg = (
            "the connection that [watermark] object_storage_path names before the @ does not exist or cannot "
            f"be read ({type(error).__name__}); create it, or name none to use the machine's own identity"
        )
        raise ConfigurationError(msg) from error
