"""The ``object_storage`` store: names, full disks, and what its errors say."""

from __future__ import annotations

import asyncio
import re
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.object_storage import store as object_store
from airflow.providers.watermark.stores.object_storage.folder import Folder, Found, OvertakenError
from airflow.providers.watermark.stores.object_storage.store import object_name
from tests.stores.object_folders import object_folder

KEY = WatermarkKey("orders", "s3", "k")
VALUE = {"revision": 1, "low": 5}


@pytest.fixture
def disk(tmp_path):
    with object_folder("disk", tmp_path) as folder:
        yield folder.folder


# --- names --------------------------------------------------------------------------------------------------

parts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
long_parts = st.builds(lambda text, times: text * times, parts, st.sampled_from([1, 1, 1, 20, 60]))


def test_an_object_is_named_after_its_watermark():
    assert object_name(KEY) == "s3/orders/k.json"
    assert object_name(WatermarkKey("a/b", "s3", "..")) == "s3/a%2Fb/%2E..json"


@given(st.builds(WatermarkKey, long_parts, long_parts, long_parts))
def test_every_name_fits_a_file_system_and_a_bucket(key):
    name = object_name(key)
    folders = name.split("/")
    assert len(folders) == 3
    assert all(0 < len(folder) <= 205 and not folder.startswith(".") for folder in folders)
    assert re.fullmatch(r"[A-Za-z0-9_.~%/-]+", name)


# --- on disk ------------------------------------------------------------------------------------------------


async def test_a_disk_that_takes_no_more_is_an_error_and_the_old_value_stays(disk):
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match=r"orders/s3/k.*OSError: File too large") as caught:
            await store.save(KEY, {"revision": 2, "text": "x" * 100_000}, expected=VALUE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(caught.value, WatermarkConflictError)
    assert await store.load(KEY) == VALUE
    assert [file.name for file in disk.rglob("*") if file.is_file()] == ["k.json"]
    await store.save(KEY, {"revision": 2}, expected=VALUE)
    assert await store.load(KEY) == {"revision": 2}


async def test_what_a_crash_has_left_half_written_is_neither_read_nor_listed(disk):
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    (disk / "s3" / "orders" / ".k.json.new").write_text('{"revis')
    (disk / "s3" / "orders" / ".another.json").write_text("{}")
    assert await store.load(KEY) == VALUE
    assert await store.keys() == [KEY]
    await store.save(KEY, {"revision": 2}, expected=VALUE)
    assert await store.load(KEY) == {"revision": 2}


async def test_a_folder_that_is_not_there_is_an_error_and_is_not_made(disk):
    disk.rmdir()
    store = ObjectStorageStore()
    for work in (store.load(KEY), store.save(KEY, VALUE, expected=None), store.keys()):
        with pytest.raises(StoreError, match=r"file://.*does not exist; mount or create"):
            await work
    assert not disk.exists()


async def test_a_folder_that_may_not_be_read_is_an_error(disk, monkeypatch):
    (disk / "s3" / "orders" / "k.json").mkdir(parents=True)  # for root may read everything
    with pytest.raises(StoreError, match="IsADirectoryError"):
        await ObjectStorageStore().load(KEY)


async def test_the_event_loop_is_free_while_a_writer_waits_for_another(disk):
    import fcntl
    import os

    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    held = os.open(disk, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    save = asyncio.create_task(store.save(KEY, {"revision": 2}, expected=VALUE))
    await asyncio.sleep(0.2)
    assert not save.done()
    assert await store.load(KEY) == VALUE
    os.close(held)
    await save
    assert await store.load(KEY) == {"revision": 2}


# --- overtaking ---------------------------------------------------------------------------------------------


class Twice(Folder):
    """A client that writes, loses the answer, tries again, and is refused."""

    def __init__(self):
        self.data = None
        self.by_another = False

    def read(self, name):
        return None if self.data is None else Found(self.data, self.data)

    def write(self, name, data, tag):
        self.data = b"{}" if self.by_another else data
        raise OvertakenError

    def remove(self, name, tag):
        raise OvertakenError


async def test_a_client_that_is_overtaken_by_itself_has_saved(monkeypatch):
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", "s3://b/f")
    folder = Twice()
    monkeypatch.setitem(object_store._FOLDERS, "s3://b/f", folder)
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    assert await store.load(KEY) == VALUE
    folder.by_another = True
    with pytest.raises(WatermarkConflictError, match="changed by another writer just now"):
        await store.save(KEY, {"revision": 2}, expected=VALUE)
    with pytest.raises(WatermarkConflictError):
        await store.delete(KEY, expected={})


# --- configuration ------------------------------------------------------------------------------------------


def test_a_folder_must_be_named():
    with pytest.raises(ConfigurationError, match=r"\[watermark\] object_storage_path is not set"):
        ObjectStorageStore()


@pytest.mark.parametrize(
    ("url", "can"),
    [("s3://c@b/f", True), ("gs://b/f", True), ("file:///f", True), ("/f", True), ("memory://f", False)],
)
def test_a_store_says_whether_it_compares_and_sets(monkeypatch, url, can):
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", url)
    assert ObjectStorageStore().compare_and_set is can


async def test_an_error_shows_the_path_without_its_login(monkeypatch):
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", "nonsense://me:hunter2@host/f")
    with pytest.raises(ConfigurationError, match=r"nonsense://host/f cannot be opened") as caught:
        await ObjectStorageStore().load(KEY)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("watermarks", "is no absolute path"),  # another folder for whoever starts elsewhere
        ("./watermarks", "is no absolute path"),
        ("s3://", "names no bucket"),
        ("gs://google_cloud_default@", "names no bucket"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_of_the_configuration(monkeypatch, url, message):
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", url)
    with pytest.raises(
        ConfigurationError, match=rf"object_storage_path {url.replace('google_cloud_default@', '')} {message}"
    ):
        ObjectStorageStore()
