"""The ``object_storage`` store: names, full disks, and what its errors say."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.object_storage import folder as folders
from airflow.providers.watermark.stores.object_storage import store as object_store
from airflow.providers.watermark.stores.object_storage.folder import (
    Folder,
    Found,
    LocalFolder,
    OvertakenError,
    folder_at,
)
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
    assert sorted(file.name for file in disk.rglob("*") if file.is_file()) == [".lock", "k.json"]
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
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    held = os.open(disk / ".lock", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    save = asyncio.create_task(store.save(KEY, {"revision": 2}, expected=VALUE))
    await asyncio.sleep(0.2)
    assert not save.done()
    assert await store.load(KEY) == VALUE
    os.close(held)
    await save
    assert await store.load(KEY) == {"revision": 2}


@contextlib.contextmanager
def stuck_holder(lock):
    """Another process that has the lock, and is stopped."""
    code = f"import fcntl; held = open({str(lock)!r}); fcntl.flock(held, fcntl.LOCK_EX); print(1); input()"
    holder = subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


async def test_a_holder_of_the_lock_that_is_stuck_is_an_error_and_delays_no_load(disk, monkeypatch):
    monkeypatch.setattr(folders, "_LOCK_TIMEOUT", 2.0)
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    others = [KEY._replace(key=f"k{number}") for number in range(8)]
    with stuck_holder(disk / ".lock"):
        began = time.monotonic()
        saves = [asyncio.create_task(store.save(key, VALUE, expected=None)) for key in others]
        await asyncio.sleep(0.2)
        assert await store.load(KEY) == VALUE
        assert await store.keys() == [KEY]
        assert time.monotonic() - began < 1.5
        for save in saves:
            with pytest.raises(StoreError, match=r"the lock /.*/\.lock was not free for 2 s; find"):
                await save
        assert time.monotonic() - began < 6
        with pytest.raises(StoreError, match="lslocks"):
            await store.delete(KEY, expected=VALUE)
    assert await store.keys() == [KEY]
    await store.save(others[0], VALUE, expected=None)


async def test_the_lock_is_one_that_nfs_passes_on(disk, monkeypatch):
    locked = []

    def flock(file, how):
        locked.append((stat.S_ISREG(os.fstat(file).st_mode), fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE))

    monkeypatch.setattr(folders.fcntl, "flock", flock)
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    await store.delete(KEY, expected=VALUE)
    assert locked == [(True, os.O_RDWR)] * 2


async def test_a_lock_of_another_user_serves(disk, monkeypatch):
    (disk / ".lock").touch()
    opened = os.open

    def refusing(path, flags, *args, **kwargs):
        if path == ".lock" and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(folders.os, "open", refusing)
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    (disk / ".lock").unlink()
    with pytest.raises(StoreError, match="PermissionError"):
        await store.save(KEY, {"revision": 2}, expected=VALUE)


def test_two_hosts_whose_locks_do_not_meet_write_no_mixture(disk, monkeypatch):
    monkeypatch.setattr(folders.fcntl, "flock", lambda *_: None)
    here, there = LocalFolder(None, str(disk)), LocalFolder(None, str(disk))
    sync = os.fsync

    def meanwhile(file):
        monkeypatch.setattr(folders.os, "fsync", sync)
        there.write("s3/orders/k.json", b"theirs, which is longer", None)
        sync(file)

    here.write("s3/orders/other.json", b"{}", None)
    monkeypatch.setattr(folders.os, "fsync", meanwhile)
    here.write("s3/orders/k.json", b"ours", None)
    assert here.read("s3/orders/k.json").data == b"ours"
    assert sorted(file.name for file in (disk / "s3" / "orders").iterdir()) == ["k.json", "other.json"]


async def test_what_killed_writers_have_left_is_removed_an_hour_later(disk):
    store = ObjectStorageStore()
    await store.save(KEY, VALUE, expected=None)
    folder = disk / "s3" / "orders"
    for name, age in [(".k.json.new", 3700), (".k.json.0a.new", 3700), (".k.json.0b.new", 60)]:
        (folder / name).write_text("{")
        os.utime(folder / name, (time.time() - age,) * 2)
    await store.save(KEY, {"revision": 2}, expected=VALUE)
    assert sorted(file.name for file in folder.iterdir()) == [".k.json.0b.new", "k.json"]


@pytest.mark.parametrize("through_link", [False, True])
async def test_a_mount_point_is_refused_for_it_looks_empty_when_not_mounted(
    tmp_path, monkeypatch, through_link
):
    mount_point = Path("/proc")
    if through_link:
        mount_point = tmp_path / "link"
        mount_point.symlink_to("/proc")
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", f"file://{mount_point}")
    store = ObjectStorageStore()
    for work in (store.load(KEY), store.save(KEY, VALUE, expected=None), store.keys()):
        with pytest.raises(
            ConfigurationError, match=rf"{mount_point} is a mount point.* file://{mount_point}/watermarks"
        ):
            await work


def test_a_folder_that_vanishes_during_a_save_is_not_made(disk, monkeypatch):
    folder = LocalFolder(None, str(disk))
    monkeypatch.setattr(folders.fcntl, "flock", lambda *_: disk.rename(disk.with_name("away")))
    with pytest.raises(FileNotFoundError):
        folder.write("s3/orders/k.json", b"{}", None)
    assert not disk.exists()


# --- mended connections -------------------------------------------------------------------------------------


@pytest.fixture(params=["ministack", "gcs"])
def bucket(request, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "_RELEASED", {})
    with object_folder(request.param, tmp_path) as folder:
        folder.connection = f"AIRFLOW_CONN_{request.param.upper()}"
        yield folder


def edited(connection, port):
    """Lead a connection to another port."""
    return re.sub(r"(http://[^:/\"]+):\d+", rf"\1:{port}", connection)


async def test_a_connection_that_was_edited_is_adopted_after_an_error(bucket, monkeypatch):
    store = ObjectStorageStore()
    right = os.environ[bucket.connection]
    monkeypatch.setattr(folders, "_TIMEOUT", 3.0)
    monkeypatch.setenv(bucket.connection, edited(right, 1))
    with pytest.raises(StoreError, match="cannot be reached"):
        await store.load(KEY)
    monkeypatch.setenv(bucket.connection, right)
    assert await store.load(KEY) is None
    await store.save(KEY, VALUE, expected=None)
    assert await store.load(KEY) == VALUE


async def test_a_client_that_is_given_up_is_closed(bucket, monkeypatch):
    monkeypatch.setattr(folders, "_LINGERS", 0.0)
    store = ObjectStorageStore()
    assert await store.load(KEY) is None
    folder = object_store._FOLDERS[store._url]
    await bucket.break_down()
    with pytest.raises(StoreError):
        await store.load(KEY)

    def closed():
        if hasattr(folder._fs, "_session"):
            return folder._fs._session.closed
        sessions = folder._fs._s3._endpoint.http_session._sessions
        return not sessions or all(session.closed for session in sessions.values())

    async with asyncio.timeout(5):
        while not closed():  # noqa: ASYNC110 - it is closed in another loop
            await asyncio.sleep(0.05)
    await bucket.mend()
    assert await store.load(KEY) is None
    assert object_store._FOLDERS[store._url] is not folder


async def test_a_connection_that_is_missing_is_not_taken_for_an_empty_one(bucket, monkeypatch):
    """With the machine's own identity there may be another bucket of that name, without watermarks."""
    right = os.environ[bucket.connection]
    if "aws" in right:
        for name, key in (("ACCESS_KEY_ID", "login"), ("SECRET_ACCESS_KEY", "password")):
            monkeypatch.setenv(f"AWS_{name}", json.loads(right)[key])
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", json.loads(right)["extra"]["endpoint_url"])
    monkeypatch.delenv(bucket.connection)
    store = ObjectStorageStore()
    with pytest.raises((ConfigurationError, StoreError), match=r"NotFound"):
        await store.load(KEY)
    monkeypatch.setenv(bucket.connection, right)
    assert await store.load(KEY) is None


class Failing(Folder):
    """A folder whose server does not answer, unless it is told what to hold."""

    def __init__(self, data=None):
        self.data = data
        self.released = 0

    def read(self, name):
        if self.data is None:
            raise OSError
        return Found(self.data, self.data)

    def write(self, name, data, tag):
        raise OvertakenError

    def remove(self, name, tag):
        raise OvertakenError

    def release(self):
        self.released += 1


async def test_hundreds_of_watchers_that_fail_together_do_not_make_hundreds_of_clients(monkeypatch):
    url = "s3://b/f"
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", url)
    first, second = Failing(), Failing()
    monkeypatch.setattr(object_store, "_RELEASED", {})
    monkeypatch.setattr(object_store, "_FOLDERS", {url: first})
    monkeypatch.setattr(object_store, "folder_at", lambda _: second)
    store = ObjectStorageStore()
    for _ in range(5):
        with pytest.raises(StoreError):
            await store.load(KEY)
    assert (first.released, second.released) == (1, 0)
    object_store._RELEASED[url] -= 11
    with pytest.raises(StoreError):
        await store.load(KEY)
    assert second.released == 1


async def test_a_conflict_or_a_damaged_watermark_does_not_give_the_client_up(monkeypatch):
    url = "s3://b/f"
    monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", url)
    folder = Failing(b'{"revision":1}')
    monkeypatch.setattr(object_store, "_RELEASED", {})
    monkeypatch.setattr(object_store, "_FOLDERS", {url: folder})
    store = ObjectStorageStore()
    with pytest.raises(WatermarkConflictError):
        await store.save(KEY, {"revision": 2}, expected={"revision": 1})
    folder.data = b"\xff"
    with pytest.raises(StoreError):
        await store.load(KEY)
    assert object_store._FOLDERS[url] is folder
    assert not folder.released


def test_a_file_system_is_not_one_that_airflow_or_fsspec_keeps(bucket):
    url = os.environ["AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH"]
    first, second = folder_at(url)._fs, folder_at(url)._fs
    assert first is not second
    assert first._fs_token not in type(first)._cache


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
    [
        ("s3://c@b/f", True),
        ("gs://b/f", True),
        ("file:///f", True),
        ("file:///a@b/f", True),
        ("/f", True),
        ("memory://f", False),
    ],
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
        ("file://watermarks", "is no absolute path"),
        ("file://mnt/watermarks", "is no absolute path"),
        ("local://watermarks", "is no absolute path"),
        ("file://", "is no absolute path"),
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
