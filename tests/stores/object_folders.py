"""Folders for the ``object_storage`` store: on disk, in S3 and in GCS."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.object_storage.store import _FOLDERS, object_name
from airflow.providers.watermark.testing import StoreBackend
from devtools.gcs_servers import fake_gcs
from devtools.s3_servers import S3Server, ministack, moto

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BUCKET = "lake"


class ObjectFolder(StoreBackend):
    def make_store(self) -> ObjectStorageStore:
        return ObjectStorageStore()

    def empty(self) -> None:
        raise NotImplementedError


class OnDisk(ObjectFolder):
    def __init__(self, folder: Path) -> None:
        self.folder, self._elsewhere = folder, folder.with_name("elsewhere")

    def empty(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    async def break_down(self) -> None:
        self.folder.rename(self._elsewhere)

    async def mend(self) -> None:
        self._elsewhere.rename(self.folder)

    async def plant(self, key: WatermarkKey, text: str) -> None:
        (self.folder / object_name(key)).write_text(text)


class InMemory(ObjectFolder):
    """A file system that Airflow knows and this package does not."""

    lacks: ClassVar[Mapping[str, str]] = {"errors": "fsspec's memory does not fail"}

    def __init__(self) -> None:
        self._files = MemoryFileSystem()

    def empty(self) -> None:
        MemoryFileSystem.store.clear()

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self._files.pipe_file(f"/marks/{object_name(key)}", text.encode())


class InBucket(ObjectFolder):
    """A bucket that breaks down by being deleted, and is restored."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get_all(self) -> dict[str, bytes]:
        raise NotImplementedError

    def put(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    def create(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        self.drop()
        self.create()

    async def break_down(self) -> None:
        self._kept = self.get_all()
        self.drop()

    async def mend(self) -> None:
        self.create()
        for name, data in self._kept.items():
            self.put(name, data)

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self.put(f"marks/{object_name(key)}", text.encode())


class InS3(InBucket):
    def __init__(self, server: S3Server) -> None:
        super().__init__()
        self.client = server.client()
        self.create()

    def get_all(self) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        names = [found["Key"] for page in pages for found in page.get("Contents", ())]
        return {name: self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=name, Body=data)

    def create(self) -> None:
        self.client.create_bucket(Bucket=BUCKET)

    def drop(self) -> None:
        for name in self.get_all():
            self.client.delete_object(Bucket=BUCKET, Key=name)
        self.client.delete_bucket(Bucket=BUCKET)


class InGcs(InBucket):
    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.create()

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        ) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            data = reply.read()
        assert reply.status < 400, (method, path, reply.status, data)
        return data

    def get_all(self) -> dict[str, bytes]:
        listed = json.loads(self.ask("GET", f"/storage/v1/b/{BUCKET}/o"))
        names = [found["name"] for found in listed.get("items", ())]
        return {name: self.ask("GET", f"{self._object(name)}?alt=media") for name in names}

    def put(self, name: str, data: bytes) -> None:
        self.ask(
            "POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}", data
        )

    def create(self) -> None:
        self.ask("POST", "/storage/v1/b", json.dumps({"name": BUCKET}).encode())

    def drop(self) -> None:
        for name in self.get_all():
            self.ask("DELETE", self._object(name))
        self.ask("DELETE", f"/storage/v1/b/{BUCKET}")

    @staticmethod
    def _object(name: str) -> str:
        return f"/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}"


@contextlib.contextmanager
def object_folder(name: str, scratch: Path) -> Iterator[ObjectFolder]:
    """
    Make a folder, and configure the ``object_storage`` store for it.

    :param name: ``disk``, ``memory``, ``ministack``, ``moto`` or ``gcs``.
    :param scratch: A scratch folder.
    """
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        folder: ObjectFolder
        match name:
            case "disk":
                folder = OnDisk(scratch / "marks")
                folder.folder.mkdir()
                url = folder.folder.as_uri()
            case "memory":
                stack.enter_context(_known_to_airflow("memory", MemoryFileSystem))
                folder, url = InMemory(), "memory://marks"
            case "ministack" | "moto":
                server = stack.enter_context(ministack() if name == "ministack" else moto())
                patch.setenv(f"AIRFLOW_CONN_{name.upper()}", server.airflow_connection_json())
                folder, url = InS3(server), f"s3://{name}@{BUCKET}/marks"
            case _:
                server = stack.enter_context(fake_gcs())
                port = int(server.endpoint_url.rpartition(":")[2])
                connection = {
                    "conn_type": "google_cloud_platform",
                    "extra": {
                        "is_anonymous": True,
                        "project": "p",
                        "gcs.endpoint": server.endpoint_url,
                    },
                }
                patch.setenv("AIRFLOW_CONN_GCS", json.dumps(connection))
                folder, url = InGcs(port), f"gs://gcs@{BUCKET}/marks"
        patch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", url)
        yield folder
        _FOLDERS.pop(url, None)


@contextlib.contextmanager
def _known_to_airflow(scheme: str, file_system: type[AbstractFileSystem]) -> Iterator[None]:
    """Register a file system, as a provider of one does."""
    from airflow.sdk.io import fs

    fs._BUILTIN_SCHEME_TO_FS[scheme] = lambda *_: file_system()
    fs._register_filesystems.cache_clear()
    try:
        yield
    finally:
        del fs._BUILTIN_SCHEME_TO_FS[scheme]
        fs._register_filesystems.cache_clear()
