"""The ``sql`` store: its table, its connections, and what its errors say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from urllib.parse import quote

import aiosqlite
import pytest
from sqlalchemy.exc import IntegrityError

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.sql import SqlStore, engine, migrate, schema
from airflow.providers.watermark.stores.sql import store as sql_store
from airflow.providers.watermark.stores.sql.schema import REVISION, VERSION_TABLE, table
from devtools.databases import mariadb, postgres
from tests.stores.sql_databases import sql_database, sqlite_execute

KEY = WatermarkKey("orders", "s3", "k")
VALUE = {"revision": 1, "low": 5}


@pytest.fixture
def path(monkeypatch, tmp_path):
    """Configure the store for an SQLite file that is not there yet."""
    path = tmp_path / "watermarks.db"
    monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
    monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    return path


@pytest.fixture
async def store(path):
    store = SqlStore()
    yield store
    await store.close()


async def migrated():
    await asyncio.to_thread(migrate)


# --- the table ----------------------------------------------------------------------------------------------


async def test_without_its_table_every_call_says_what_to_run_and_goes_on_once_that_is_done(store):
    for work in (
        store.load(KEY),
        store.save(KEY, VALUE, expected=None),
        store.delete(KEY, expected=VALUE),
        store.keys(),
    ):
        with pytest.raises(
            StoreError, match=r"no table asset_watermarks yet; run 'airflow watermarks migrate'"
        ):
            await work
    await migrated()
    assert await store.load(KEY) is None
    await store.save(KEY, VALUE, expected=None)
    assert await store.load(KEY) == VALUE


@pytest.mark.parametrize("revision", ["0000", "9999"], ids=["older", "newer"])
async def test_the_table_of_another_release_is_refused_until_it_is_migrated(store, path, revision):
    await migrated()
    execute = sqlite_execute(path)
    execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))  # noqa: S608
    with pytest.raises(StoreError, match=rf"revision '{revision}', and this release needs '{REVISION}'; run"):
        await store.load(KEY)
    execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (REVISION,))  # noqa: S608
    assert await store.load(KEY) is None


async def test_a_table_that_is_dropped_later_is_missed(store, path):
    await migrated()
    await store.save(KEY, VALUE, expected=None)
    sqlite_execute(path)("DROP TABLE asset_watermarks")
    with pytest.raises(StoreError):
        await store.load(KEY)
    with pytest.raises(StoreError, match="airflow watermarks migrate"):
        await store.load(KEY)


@pytest.mark.parametrize("times", [1, 3, 4])
def test_who_meets_another_migration_tries_again_for_a_while(path, monkeypatch, times):
    """Postgres then has a unique violation in its own catalogue, MariaDB an error 1684."""
    upgrade, failures = schema._upgrade, [IntegrityError("CREATE", {}, Exception("pg_type"))] * times

    def met(connection):
        if failures:
            raise failures.pop()
        upgrade(connection)

    monkeypatch.setattr(schema, "_upgrade", met)
    monkeypatch.setattr(schema, "_PAUSE", 0)
    if times < 4:
        assert migrate() == REVISION
    else:
        with pytest.raises(StoreError, match="could not be migrated"):
            migrate()


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mariadb"])
def test_a_migration_does_not_wait_for_a_lock_for_ever(name, path, request, monkeypatch):
    """A thread that waits for the database cannot be interrupted: not even by Ctrl-C."""
    with contextlib.ExitStack() as stack:
        if name == "sqlite":
            holder = sqlite3.connect(path, isolation_level=None)
            lock = ["BEGIN EXCLUSIVE"]
        else:
            if name == "mariadb":
                request.getfixturevalue("mariadb_or_skip")
            server = stack.enter_context(postgres() if name == "postgres" else mariadb())
            monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", server.airflow_connection_json())
            holder = server.connect()
            lock = {
                "postgres": ["BEGIN", f"LOCK TABLE {VERSION_TABLE}"],
                "mariadb": [f"LOCK TABLES {VERSION_TABLE} WRITE"],
            }[name]
        stack.enter_context(contextlib.closing(holder))
        migrate()
        cursor = holder.cursor()
        for statement in lock:
            cursor.execute(statement)
        monkeypatch.setattr(schema, "_LOCK_TIMEOUT", 1)
        monkeypatch.setattr(schema, "_TRY_AGAIN_WITHIN", 0)
        with pytest.raises(StoreError, match=r"'watermarks' could not be migrated .* has locked .* for 1 s"):
            migrate()
        cursor.execute("UNLOCK TABLES" if name == "mariadb" else "ROLLBACK")
        assert migrate() == REVISION


def test_a_table_that_was_dropped_alone_is_made_anew(path):
    migrate()
    sqlite_execute(path)("DROP TABLE asset_watermarks")
    assert migrate() == REVISION
    assert sqlite_execute(path)("SELECT * FROM asset_watermarks") == []


def test_a_table_of_a_later_release_is_left_as_it_is_and_told(path):
    migrate()
    sqlite_execute(path)(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608
    with pytest.raises(
        StoreError, match=r"revision '9999', and this release needs '0001'; .* newest release"
    ):
        migrate()
    assert sqlite_execute(path)(f"SELECT version_num FROM {VERSION_TABLE}") == [("9999",)]  # noqa: S608


@pytest.mark.parametrize(
    ("name", "fault"), [("postgres", "InsufficientPrivilegeError"), ("mariadb", "OperationalError 1142")]
)
def test_who_lacks_a_privilege_is_told_the_databases_own_word_for_it(name, fault, request, monkeypatch):
    if name == "mariadb":
        request.getfixturevalue("mariadb_or_skip")

    async def work():
        store = SqlStore()
        try:
            assert await store.load(KEY) is None
            with pytest.raises(StoreError, match=rf"failed \({fault}\); .* may select, insert, update and"):
                await store.save(KEY, VALUE, expected=None)
        finally:
            await store.close()

    with postgres() if name == "postgres" else mariadb() as server:
        monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", server.airflow_connection_json())
        migrate()
        role = server.create_role("reader")
        if name == "postgres":
            server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", role.airflow_connection_json())
        asyncio.run(work())


def test_who_may_not_read_the_version_is_told_of_that_table(monkeypatch):
    with postgres() as server:
        monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", server.airflow_connection_json())
        migrate()
        role = server.create_role("writer")
        server.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON asset_watermarks TO writer")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", role.airflow_connection_json())
        with pytest.raises(StoreError, match=f"InsufficientPrivilege.* select in {VERSION_TABLE}"):
            asyncio.run(SqlStore().load(KEY))


def test_migrating_twice_changes_nothing(path):
    assert migrate() == REVISION
    sqlite_execute(path)("INSERT INTO asset_watermarks VALUES ('a', 'n', 'k', '{}', 1, '2026-01-01')")
    assert migrate() == REVISION
    assert sqlite_execute(path)("SELECT asset_name FROM asset_watermarks") == [("a",)]


def test_a_migration_that_was_interrupted_is_taken_up(path):
    migrate()
    sqlite_execute(path)(f"DELETE FROM {VERSION_TABLE}")  # noqa: S608 - as MySQL leaves it: DDL is no transaction
    migrate()
    assert sqlite_execute(path)(f"SELECT version_num FROM {VERSION_TABLE}") == [(REVISION,)]  # noqa: S608


def test_this_release_needs_the_newest_migration():
    from pathlib import Path

    from alembic.script import ScriptDirectory

    folder = Path(sql_store.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_heads() == [REVISION]


def test_the_table_has_the_columns_that_queries_use_and_is_unique_on_the_first_three(path):
    migrate()
    columns = sqlite_execute(path)("PRAGMA table_info(asset_watermarks)")
    assert [column[1] for column in columns] == [column.name for column in table().columns]
    assert [column[1] for column in columns if column[5]] == ["asset_name", "namespace", "key"]


async def test_a_row_can_be_read_by_people(store, path):
    await migrated()
    await store.save(KEY, VALUE, expected=None)
    ((asset, namespace, key, value, revision, updated),) = sqlite_execute(path)(
        "SELECT * FROM asset_watermarks"
    )
    assert (asset, namespace, key, json.loads(value), revision) == (*KEY, VALUE, 1)
    assert updated.startswith("20")


# --- comparing and setting ----------------------------------------------------------------------------------


async def test_what_an_operator_has_written_in_other_words_is_no_conflict_but_another_value_is(store, path):
    await migrated()
    await store.save(KEY, VALUE, expected=None)
    edit = "UPDATE asset_watermarks SET value = ?"
    sqlite_execute(path)(edit, ('{ "low": 5, "revision": 1 }',))
    await store.save(KEY, {"revision": 2, "low": 6}, expected=VALUE)
    sqlite_execute(path)(edit, ('{"low": 0, "revision": 2}',))
    with pytest.raises(WatermarkConflictError, match="it was edited"):
        await store.save(KEY, {"revision": 3, "low": 7}, expected={"revision": 2, "low": 6})


@pytest.mark.parametrize("revision", [2**70, None, "x", -1], ids=repr)
async def test_any_revision_that_an_operator_writes_can_be_overwritten(store, path, revision):
    await migrated()
    edited = {"revision": revision, "low": 1}
    await store.save(KEY, VALUE, expected=None)
    sqlite_execute(path)("UPDATE asset_watermarks SET value = ?", (json.dumps(edited),))
    assert await store.load(KEY) == edited
    await store.save(KEY, VALUE, expected=edited)
    assert await store.load(KEY) == VALUE


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mariadb"])
def test_what_a_database_would_take_for_equal_is_kept_apart(name, tmp_path, request):
    if name == "mariadb":
        request.getfixturevalue("mariadb_or_skip")
    parts = ["a", "a ", "a  ", "A", "\u00e4", "a\u0308", "a\0", "a\0b", "x" * 200, "x" * 201, "x" * 2000, ""]
    keys = [KEY._replace(**{field: part}) for part in parts for field in KEY._fields]

    async def work():
        store = SqlStore()
        try:
            for number, key in enumerate(keys):
                await store.save(key, {"revision": 1, "number": number}, expected=None)
            assert [(await store.load(key))["number"] for key in keys] == list(range(len(keys)))
            assert set(await store.keys()) == set(keys)
        finally:
            await store.close()

    with sql_database(name, tmp_path):
        asyncio.run(work())


# --- connections --------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    with postgres() as server:
        monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", server.airflow_connection_json())
        migrate()
        yield server


async def test_a_restart_of_the_database_is_an_error_while_it_lasts_and_then_forgotten(server):
    store = SqlStore()
    await store.save(KEY, VALUE, expected=None)
    await asyncio.to_thread(server.stop)
    with pytest.raises(StoreError, match=r"orders/s3/k.*'watermarks' failed \(\w+\)") as caught:
        await store.load(KEY)
    assert server.password not in str(caught.value)
    await asyncio.to_thread(server.start)
    assert await store.load(KEY) == VALUE
    await asyncio.to_thread(server.restart)
    assert await store.load(KEY) == VALUE
    await store.close()


async def test_a_new_password_is_used_without_a_restart(server, monkeypatch):
    store = SqlStore()
    await store.save(KEY, VALUE, expected=None)
    server.execute("ALTER ROLE postgres PASSWORD 'another one'")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'airflow%'"
    with contextlib.closing(await asyncio.to_thread(_connect, server, "another one")) as connection:
        connection.execute(end)
    with pytest.raises(StoreError) as caught:
        await store.load(KEY)
    assert "another one" not in str(caught.value)
    new = json.loads(server.airflow_connection_json())
    monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", json.dumps({**new, "password": "another one"}))
    assert await store.load(KEY) == VALUE
    await store.close()


def _connect(server, password):
    from dataclasses import replace

    return replace(server, password=password).connect()


async def test_hundreds_of_watchers_share_ten_connections(server):
    stores = [SqlStore() for _ in range(200)]
    keys = [KEY._replace(key=str(number)) for number in range(200)]
    await asyncio.gather(
        *(store.save(key, VALUE, expected=None) for store, key in zip(stores, keys, strict=True))
    )
    loaded = asyncio.gather(*(store.load(key) for store, key in zip(stores, keys, strict=True)))
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-provider-watermark'"
    ((most,),) = await asyncio.to_thread(server.execute, count)
    assert await loaded == [VALUE] * 200
    assert 1 <= most <= 10
    await stores[0].close()
    ((left,),) = await asyncio.to_thread(server.execute, count)
    assert left == 0


async def test_a_database_that_hangs_is_an_error_in_time(server, monkeypatch):
    monkeypatch.setattr(sql_store, "_TIMEOUT", 0.5)
    store = SqlStore()
    await store.save(KEY, VALUE, expected=None)
    with contextlib.closing(server.connect()) as connection:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE asset_watermarks")
        with pytest.raises(StoreError, match="TimeoutError"):
            await asyncio.wait_for(store.load(KEY), 10)
    assert await store.load(KEY) == VALUE
    await store.close()


# --- configuration ------------------------------------------------------------------------------------------


def test_a_connection_must_be_named():
    with pytest.raises(ConfigurationError, match=r"\[watermark\] sql_conn_id is not set"):
        SqlStore()


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (None, "cannot be read"),
        ({"conn_type": "http", "host": "x", "password": "hunter2"}, "is of type 'http'"),
        ({"conn_type": "sqlite"}, "names no file"),
        ({"conn_type": "sqlite", "schema": "wm.db"}, "'wm.db', which is no absolute path; .* sqlite:////"),
        ({"conn_type": "sqlite", "host": "~/wm.db"}, "'~/wm.db', which is no absolute path"),
        ({"conn_type": "sqlite", "host": ":memory:"}, "':memory:', which is no absolute path"),
        ({"conn_type": "sqlite", "host": "file:/wm.db"}, "'file:/wm.db', which is no absolute path"),
    ],
    ids=["missing", "no database", "no file", "another file in each folder", "home", "memory", "file URI"],
)
def test_a_connection_that_will_not_do_is_an_error_that_names_it(monkeypatch, connection, message):
    monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "mine")
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(connection))
    for work in (migrate, lambda: asyncio.run(SqlStore().load(KEY))):
        with pytest.raises(ConfigurationError, match=message) as caught:
            work()
        assert "sql_conn_id" in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["sqlite:///{}", "sqlite://{}"], ids=["as a path", "as the host"])
def test_an_sqlite_file_is_named_by_its_absolute_path(path, monkeypatch, uri):
    odd = path.with_name("50% of #1?.db")
    monkeypatch.setenv(
        "AIRFLOW_CONN_WATERMARKS", uri.format(quote(str(odd), safe="/" if ":///" in uri else ""))
    )
    assert migrate() == REVISION
    assert sqlite_execute(odd)("SELECT * FROM asset_watermarks") == []


def test_reading_does_not_make_the_sqlite_file_but_asks_where_it_is(path, tmp_path):
    migrate()
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(
        StoreError, match=r"orders/s3/k .*does not exist .* migrate'. If it did exist, bring it"
    ):
        asyncio.run(SqlStore().load(KEY))
    assert not path.exists()


def test_a_running_store_misses_its_sqlite_file_and_goes_on_when_it_is_back(path, tmp_path):
    async def work():
        store = SqlStore()
        with pytest.raises(StoreError, match="does not exist"):
            await store.load(KEY)
        (tmp_path / "elsewhere.db").rename(path)
        assert await store.load(KEY) is None
        await store.close()

    migrate()
    path.rename(tmp_path / "elsewhere.db")
    asyncio.run(work())


@pytest.mark.parametrize(
    ("place", "fault", "missing"),
    [
        ("nowhere/watermarks.db", "does not exist", "folder"),
        ("watermarks.db", "does not exist", None),
        (".", "SQLITE_CANTOPEN", "could not be migrated"),
    ],
    ids=["no folder", "no file", "a folder"],
)
def test_an_sqlite_file_that_cannot_be_opened_is_told_without_a_traceback(
    path, monkeypatch, place, fault, missing
):
    stop, told = aiosqlite.Connection.stop, []

    def stop_slowly(connection):
        connection._tx.put_nowait((None, lambda: time.sleep(0.2)))
        return stop(connection)

    monkeypatch.setattr(aiosqlite.Connection, "stop", stop_slowly)
    monkeypatch.setattr(threading, "excepthook", told.append)
    connection = {"conn_type": "sqlite", "host": str(path.parent / place)}
    monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", json.dumps(connection))
    with pytest.raises(StoreError, match=fault):
        asyncio.run(SqlStore().load(KEY))
    if missing:
        with pytest.raises((ConfigurationError, StoreError), match=missing):
            migrate()
    time.sleep(0.3)
    assert not told, "the driver's thread has outlived the event loop"


def test_a_missing_driver_is_named_with_the_command_that_installs_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiosqlite", None)
    with pytest.raises(
        ConfigurationError, match=r"pip install 'airflow-provider-watermark\[store-sql\]' aiosqlite"
    ):
        migrate()


def test_an_sqlalchemy_that_is_too_old_is_told_when_the_store_is_built(path, monkeypatch):
    monkeypatch.setattr(engine, "version", lambda _: "1.4.54")  # as Airflow 3.0 requires
    for work in (SqlStore, migrate):
        with pytest.raises(ConfigurationError, match=r"Airflow 3\.1 or later; here is SQLAlchemy 1\.4\.54"):
            work()
    assert not path.exists()


def test_importing_the_store_imports_no_driver():
    imported = "sorted({'alembic', 'aiomysql', 'asyncpg'} & {*sys.modules})"
    code = f"import sys, airflow.providers.watermark.stores.sql; assert not {imported}, {imported}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
