"""MariaDB and SQLite through their Airflow hooks: naive stamps, empty tables, open transactions."""

# ruff: noqa: S608 (the names of tables are our own)

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sqlite3
import threading
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pymysql
import pytest

from airflow.providers.watermark.sql import dbapi, settling
from airflow.providers.watermark.sql.dbapi import DbApiDatabase
from airflow.providers.watermark.sql.query import WatchedQuery
from devtools.databases import mariadb
from devtools.tcp_proxy import TcpProxy
from tests.contract.supervisor import supervisor
from tests.databases.running import Running, connection, eventually, make_trigger, running


@pytest.fixture
def mariadb_id(running_mariadb):
    running_mariadb.execute("drop table if exists events")
    running_mariadb.execute("drop view if exists seen")
    with connection(running_mariadb) as conn_id:
        yield conn_id


@pytest.fixture
def table(running_mariadb, mariadb_id):
    running_mariadb.execute("create table events (id int primary key, updated_at datetime(6))")
    return running_mariadb


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    path = tmp_path / "watched.db"
    monkeypatch.setenv("AIRFLOW_CONN_WATCHED_SQLITE", f"sqlite:///{path}")

    def execute(sql, *values):
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as database, database:
            return database.execute(sql, values).fetchall()

    return execute


@contextlib.contextmanager
def repeating(database):
    """Keep InnoDB from looking at its transactions: it goes on saying that there are none."""
    database.execute(
        "create or replace procedure ask() begin declare n int; while is_free_lock('ended') do "
        "select count(*) into n from information_schema.innodb_trx; do sleep(0.005); end while; end"
    )
    with contextlib.closing(database.connect()) as session, session.cursor() as ender:
        asking = [threading.Thread(target=database.execute, args=["call ask()"]) for _ in range(2)]
        for each in asking:
            each.start()
        time.sleep(0.3)
        try:
            yield
        finally:
            ender.execute("select get_lock('ended', 10)")
            for each in asking:
                each.join()
            database.execute("drop procedure ask")


@contextlib.contextmanager
def uncommitted_row(table):
    """Begin a transaction that inserts row 1, and give its cursor; in the end it is rolled back."""
    with contextlib.closing(table.connect()) as session, session.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute("insert into events values (1, utc_timestamp(6))")
        yield cursor


def execute_within_sweep(watcher, number, table, *statements):
    """Let statements be executed when the settled bound has been asked for so often, before rows are read."""
    ask = vars(watcher.trigger)["get_high_watermark"]

    async def ask_and_execute():
        bounds = await ask()
        if len(watcher.polls) == number:
            for statement in statements:
                table.execute(statement)
        return bounds

    vars(watcher.trigger)["get_high_watermark"] = ask_and_execute


class TestMariaDB:
    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_rows_are_delivered_once(self, table, mariadb_id, payload):
        async with running(mariadb_id, payload=payload, cursor_timezone="UTC") as watcher:
            for id_ in (1, 2, 3):
                table.execute("insert into events values (%s, utc_timestamp(6))", [id_])
                await watcher.until(lambda watcher, rows=id_: watcher.rows == rows)
            await watcher.sweeps(3)
            assert watcher.rows == 3
            (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
            assert "clock" in said

    async def test_an_open_transaction_is_waited_for_where_it_can_be_seen(self, table, mariadb_id):
        with uncommitted_row(table) as cursor:
            async with running(mariadb_id, cursor_timezone="UTC") as watcher:
                await asyncio.sleep(0.3)
                table.execute("insert into events values (2, utc_timestamp(6))")
                await asyncio.sleep(1.5)
                await watcher.sweeps(3)
                assert watcher.rows == 0
                cursor.execute("commit")
                await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_an_open_transaction_is_waited_for_by_positions_without_a_clock_too(
        self, table, mariadb_id
    ):
        with uncommitted_row(table) as cursor:
            async with running(mariadb_id, payload="keys", delivery="settled", cursor_column="id") as watcher:
                table.execute("insert into events values (2, null)")
                await asyncio.sleep(2.5)
                await watcher.sweeps(3)
                assert watcher.rows == 0
                cursor.execute("commit")
                await watcher.until(lambda watcher: watcher.keys == [1, 2])

    async def test_a_prepared_transaction_is_waited_for_even_after_a_crash(self, monkeypatch):
        """The server says of it that it began when the server did."""
        monkeypatch.setattr(dbapi, "_TOLD_AFTER", 0.5)
        with mariadb() as server, connection(server) as conn_id:
            server.execute("create table events (id int primary key, updated_at datetime(6))")
            with contextlib.closing(server.connect()) as session, session.cursor() as cursor:
                cursor.execute("xa start 'one'")
                cursor.execute("insert into events values (1, utc_timestamp(6))")
                cursor.execute("xa end 'one'")
                cursor.execute("xa prepare 'one'")
                server.restart("immediate")
                with contextlib.suppress(pymysql.err.Error):
                    cursor.execute("select 1")  # it is gone with the server
            await asyncio.sleep(1.5)
            async with running(conn_id, cursor_timezone="UTC") as watcher:
                server.execute("insert into events values (2, utc_timestamp(6))")
                await asyncio.sleep(2.5)
                await watcher.sweeps(3)
                assert watcher.rows == 0
                assert len([text for text in watcher.warnings if "XA RECOVER" in text]) == 1
                server.execute("xa commit 'one'")
                await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_a_prepared_transaction_without_a_session_is_as_old_as_it_is(self, monkeypatch):
        """If it was begun since the server was first seen, and so after its start."""
        monkeypatch.setattr(dbapi, "_TOLD_AFTER", 0.5)
        with mariadb() as server, connection(server) as conn_id:
            server.execute("create table events (id int primary key, updated_at datetime(6))")
            server.execute("insert into events values (0, utc_timestamp(6))")
            async with running(conn_id, cursor_timezone="UTC") as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                await asyncio.sleep(2)
                server.execute("insert into events values (1, utc_timestamp(6) - interval 1 second)")
                with contextlib.closing(server.connect()) as session, session.cursor() as cursor:
                    cursor.execute("xa start 'one'")
                    cursor.execute("insert into events values (2, utc_timestamp(6))")
                    cursor.execute("xa end 'one'")
                    cursor.execute("xa prepare 'one'")
                server.execute("insert into events values (3, utc_timestamp(6))")
                await asyncio.sleep(2.5)
                await watcher.sweeps(3)
                assert watcher.rows <= 2
                assert watcher.warnings == []
                server.execute("xa commit 'one'")
                await watcher.until(lambda watcher: watcher.rows == 4)

    @pytest.mark.parametrize(
        ("started", "now", "age"),
        [
            ("2026-07-01 10:00:00", "2026-07-01T14:00:07Z", 7),
            # Clocks are put back from 02:00 to 01:00 at 06:00 UTC.
            ("2026-11-01 00:59:00", "2026-11-01T06:10:00Z", 71 * 60),
            ("2026-11-01 01:50:00", "2026-11-01T06:10:00Z", 20 * 60),
            ("2026-11-01 02:00:00", "2026-11-01T07:00:01Z", 1),
        ],
    )
    def test_the_age_of_a_transaction_is_right_where_clocks_are_put_back(
        self, monkeypatch, started, now, age
    ):
        monkeypatch.setenv("TZ", "America/New_York")
        with mariadb() as server, contextlib.closing(server.connect()) as session, session.cursor() as cursor:
            cursor.execute("set timestamp = %s", [datetime.fromisoformat(now).timestamp()])
            cursor.execute("set time_zone = '+00:00'")
            cursor.execute(f"select {dbapi.AGE} from (select cast('{started}' as datetime) trx_started) t")
            assert cursor.fetchone()[0] == age

    async def test_a_clock_that_is_set_right_between_two_polls_hides_nothing(
        self, table, mariadb_id, monkeypatch
    ):
        """Though the column has no time zone, and the low watermark is behind the clock again by then."""
        ahead, clock = [2.5], dbapi.DbApiDatabase.clock

        async def read(self):
            return await clock(self) + timedelta(seconds=ahead[0])

        monkeypatch.setattr(dbapi.DbApiDatabase, "clock", read)
        table.execute("insert into events values (1, utc_timestamp(6))")
        arguments = {"poll_interval": 3.0, "payload": "keys", "cursor_timezone": "UTC"}
        async with running(mariadb_id, **arguments) as watcher:
            await watcher.until(lambda watcher: watcher.keys == [1])
            await asyncio.sleep(0.3)  # the sweep is over
            ahead[0] = 0.0
            table.execute("insert into events values (2, utc_timestamp(6))")
            await watcher.until(lambda watcher: 2 in watcher.keys)
            assert any("set back" in text for text in watcher.warnings)

    async def test_an_open_transaction_that_holds_the_bound_back_for_long_is_told_of(
        self, table, mariadb_id, monkeypatch
    ):
        monkeypatch.setattr(settling, "_SLOW", 2.0)
        monkeypatch.setattr(dbapi, "_TOLD_AFTER", 0.2)
        table.execute("insert into events values (2, utc_timestamp(6))")
        with uncommitted_row(table) as cursor:
            cursor.execute("select connection_id()")
            (session,) = cursor.fetchone()
            async with running(mariadb_id, cursor_timezone="UTC") as watcher:
                await watcher.until(lambda watcher: watcher.warnings)
                await watcher.sweeps(3)
                (warning,) = watcher.warnings
                assert "The settled bound is held back" in warning
                assert f"what session {session} does has taken" in warning

    async def test_a_statement_that_waits_for_a_lock_is_waited_for(self, table, mariadb_id):
        """It has the time of its begin, and no transaction yet."""
        table.execute("insert into events values (1, utc_timestamp(6))")
        async with running(mariadb_id, payload="keys", cursor_timezone="UTC") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [1])
            with contextlib.closing(table.connect()) as session, session.cursor() as cursor:
                cursor.execute("lock tables events read")
                insert = "insert into events values (2, utc_timestamp(6))"
                with contextlib.closing(table.connect()) as other, other.cursor() as writer:
                    writer.execute("begin")
                    writing = threading.Thread(target=writer.execute, args=[insert])
                    writing.start()
                    await asyncio.sleep(2.5)
                    await watcher.sweeps(3)
                    cursor.execute("unlock tables")
                    await asyncio.to_thread(writing.join)
                    # From here on the transaction is younger than its row.
                    await asyncio.sleep(1)
                    await watcher.sweeps(3)
                    writer.execute("commit")
            await watcher.until(lambda watcher: watcher.keys == [1, 2])

    async def test_many_watchers_do_not_keep_innodb_from_looking(self, table, mariadb_id):
        async with contextlib.AsyncExitStack() as stack:
            watchers = [
                await stack.enter_async_context(running(mariadb_id, cursor_timezone="UTC")) for _ in range(12)
            ]
            for watcher in watchers:
                await watcher.sweeps(1)
            table.execute("insert into events values (1, utc_timestamp(6))")
            for watcher in watchers:
                await watcher.until(lambda watcher: watcher.rows == 1)
                (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
                assert "innodb_trx" in said

    @pytest.mark.parametrize(
        ("variable", "told"),
        [("read_only", "a replica (read_only=ON)"), (None, "the oldest open transaction in innodb_trx")],
    )
    async def test_of_a_replica_nothing_is_settled_behind_what_is_there(self, variable, told):
        """What it gets is in order, and may be late by any time."""
        with mariadb() as server, connection(server) as conn_id:
            server.execute("create table events (id int primary key, updated_at datetime(6))")
            if variable is not None:
                server.execute(f"set global {variable} = 1")
            insert = "insert into events values (%s, utc_timestamp(6) - interval %s second)"
            server.execute(insert, [1, 60])
            async with running(conn_id, payload="keys", cursor_timezone="UTC") as watcher:
                await watcher.until(lambda watcher: watcher.keys == [1])
                await asyncio.sleep(1.5)
                await watcher.sweeps(3)
                for number in (2, 3):
                    server.execute(insert, [number, 60 - number * 10])
                    await watcher.sweeps(3)
                (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
                assert told in said
                assert watcher.keys == ([1] if variable is None else [1, 2, 3])

    async def test_an_open_transaction_is_not_missed_while_innodb_does_not_look(self, table, mariadb_id):
        """It does not look again at its transactions while it is asked more than ten times a second."""
        with uncommitted_row(table), repeating(table):
            async with running(mariadb_id, cursor_timezone="UTC") as watcher:
                await asyncio.sleep(0.3)
                table.execute("insert into events values (2, utc_timestamp(6))")
                await asyncio.sleep(1.5)
                await watcher.sweeps(2)
                assert watcher.rows == 0
        async with running(mariadb_id, cursor_timezone="UTC") as watcher:  # that session has rolled back
            await watcher.until(lambda watcher: watcher.rows == 1)

    async def test_an_open_transaction_is_not_missed_when_the_question_for_it_gets_no_answer(self, table):
        with (
            TcpProxy(table.port) as network,
            connection(replace(table, port=network.port)) as conn_id,
            uncommitted_row(table) as cursor,
        ):
            async with running(conn_id, cursor_timezone="UTC") as watcher:
                await asyncio.sleep(0.3)
                table.execute("insert into events values (2, utc_timestamp(6))")
                await asyncio.sleep(1.5)
                network.cut(b"trx_mysql_thread_id")  # the name of a column of the answer
                await eventually(lambda: network.cut_off, "answer that is cut off")
                network.heal()
                await watcher.sweeps(3)
                assert watcher.rows == 0
                cursor.execute("commit")
                await watcher.until(lambda watcher: watcher.rows == 2)
                (error,) = watcher.errors
                assert "reading innodb_trx failed" in error

    @pytest.mark.parametrize("payload", ["window", "rows"])
    async def test_timestamps_are_instants_whatever_the_zones_of_the_server(self, monkeypatch, payload):
        monkeypatch.setenv("TZ", "America/New_York")
        options = {"default-time-zone": "+05:30"}
        with mariadb(options=options) as server, connection(server) as conn_id:
            server.execute(
                "create table events (id int primary key, updated_at timestamp(6), at datetime(6))"
            )
            stamp = "'2026-01-01 05:30:00.000001'"
            server.execute(f"insert into events values (1, {stamp}, {stamp})")
            columns = ["updated_at", "at"] if payload == "rows" else []
            trigger = make_trigger(conn_id, payload=payload, columns=columns)
            instant = datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
            async with Running(trigger) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                if payload == "rows":
                    (change,) = watcher.changes
                    assert change.cursor == change.row["updated_at"] == instant
                    assert change.row["at"] == datetime(2026, 1, 1, 5, 30, 0, 1)  # noqa: DTZ001
                else:
                    assert watcher.windows[0].high == instant
                with contextlib.closing(server.connect()) as session, session.cursor() as cursor:
                    cursor.execute("begin")
                    cursor.execute("insert into events values (2, now(6), null)")
                    await asyncio.sleep(0.3)
                    server.execute("insert into events values (3, now(6), null)")
                    await asyncio.sleep(1.5)
                    await watcher.sweeps(2)
                    assert watcher.rows == (1 if payload == "window" else 2)
                    cursor.execute("commit")
                    await watcher.until(lambda watcher: watcher.rows == 3)
                assert watcher.errors == []
            async with Running(trigger, watcher.store) as again:
                server.execute("insert into events values (4, now(6), null)")
                await again.until(lambda again: again.rows)
                assert again.errors == []

    async def test_texts_without_the_order_of_code_points_are_refused(self, running_mariadb, mariadb_id):
        running_mariadb.execute("create table events (id int primary key, updated_at varchar(20))")
        running_mariadb.execute("insert into events values (1, 'a')")
        async with running(mariadb_id, payload="keys") as watcher:
            await watcher.error("have another order in the database")

    async def test_an_account_that_may_not_see_transactions_is_told_what_to_grant(self, table, mariadb_id):
        role = table.create_role("reader")
        try:
            with connection(role) as conn_id:
                async with running(conn_id, cursor_timezone="UTC") as watcher:
                    table.execute("insert into events values (1, utc_timestamp(6))")
                    await watcher.until(lambda watcher: watcher.rows == 1)
                    assert any("PROCESS" in text for text in watcher.messages(logging.INFO))
        finally:
            table.execute("drop user reader")

    async def test_from_an_instant_what_comes_at_or_after_it_is_delivered(self, table, mariadb_id):
        table.execute("insert into events values (1, '2026-01-01 11:59:59.999999')")
        table.execute("insert into events values (2, '2026-01-01 12:00:00')")
        for start in ("2026-01-01T13:00:00+01:00", "2026-01-01T12:00:00"):
            arguments = {"start_from": start, "cursor_timezone": "UTC", "payload": "keys"}
            async with running(mariadb_id, **arguments) as watcher:
                await watcher.until(lambda watcher: watcher.keys)
                assert watcher.keys == [2]

    async def test_rows_of_the_future_wait_are_told_and_hide_nothing(self, table, mariadb_id):
        table.execute("insert into events values (1, '9999-12-31')")
        async with running(mariadb_id, payload="keys", cursor_timezone="UTC") as watcher:
            table.execute("insert into events values (2, utc_timestamp(6))")
            await watcher.until(lambda watcher: watcher.keys == [2])
            assert len([text for text in watcher.warnings if "future" in text]) == 1

    async def test_a_table_that_is_empty_at_first_is_no_table_without_a_clock(self, table, mariadb_id):
        async with running(mariadb_id, payload="keys", cursor_timezone="UTC") as watcher:
            await watcher.sweeps(2)
            table.execute("insert into events values (1, '9999-12-31')")
            await watcher.sweeps(4)
            table.execute("insert into events values (2, utc_timestamp(6))")
            await watcher.until(lambda watcher: watcher.keys)
            await watcher.sweeps(4)
            assert watcher.keys == [2]

    async def test_a_first_row_that_comes_within_a_sweep_is_read_by_the_next(self, table, mariadb_id):
        """The settled bound was asked for without knowing the column's type: it tells nothing of the row."""
        watcher = Running(make_trigger(mariadb_id, payload="keys", cursor_timezone="UTC"))
        rows = "insert into events values (1, '9999-12-31'), (2, utc_timestamp(6))"
        execute_within_sweep(watcher, 3, table, rows)
        async with watcher:
            await watcher.until(lambda watcher: watcher.keys)
            await watcher.sweeps(4)
            assert watcher.keys == [2]

    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_first_rows_that_come_while_a_watcher_begins_from_now_are_news(
        self, table, mariadb_id, payload
    ):
        arguments = {"payload": payload, "cursor_timezone": "UTC", "start_from": "now"}
        watcher = Running(make_trigger(mariadb_id, **arguments))
        rows = [f"insert into events values ({number}, utc_timestamp(6))" for number in (1, 2)]
        execute_within_sweep(watcher, 1, table, *rows)
        async with watcher:
            await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_a_time_zone_is_asked_for_with_the_first_row(self, table, mariadb_id):
        async with running(mariadb_id) as watcher:
            await watcher.sweeps(2)
            assert watcher.errors == []
            table.execute("insert into events values (1, utc_timestamp(6))")
            await watcher.error("cursor_timezone")

    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_dates_and_numbers_are_positions_too(self, running_mariadb, mariadb_id, payload):
        values = {"date": ["'2026-01-01'"] * 2, "bigint": ["7", "8"], "decimal(20,2)": ["1.10", "1.20"]}
        for column, (first, second) in values.items():
            running_mariadb.execute("drop table if exists events")
            running_mariadb.execute(f"create table events (id int primary key, updated_at {column})")
            running_mariadb.execute(f"insert into events values (1, {first}), (2, {second})")
            async with running(mariadb_id, payload=payload, cursor_timezone="UTC") as watcher:
                await watcher.until(lambda watcher: watcher.rows == 2)
                await watcher.sweeps(2)
                assert watcher.rows == 2
                if column == "date" and payload == "keys":
                    assert watcher.changes[0].cursor == date(2026, 1, 1)

    async def test_names_predicates_and_views_may_be_anything(self, table, mariadb_id):
        table.execute("create view seen as select id as `the id:%s`, updated_at as `at` from events")
        table.execute("insert into events values (1, utc_timestamp(6)), (2, utc_timestamp(6))")
        arguments = {"cursor_timezone": "UTC", "payload": "keys", "cursor_column": "at"}
        arguments |= {"table": "test.seen", "primary_key": "the id:%s"}
        where = "`the id:%s` % 2 = 1 and ':x' <> '%s' -- odd"
        async with running(mariadb_id, where=where, **arguments) as watcher:
            await watcher.until(lambda watcher: watcher.keys == [1])
            assert watcher.changes[0].key == {"the id:%s": 1}

    async def test_errors_are_told_once_and_got_over(self, table, mariadb_id):
        table.execute("insert into events values (1, utc_timestamp(6))")
        table.execute("alter table events rename to away")
        try:
            async with running(mariadb_id, cursor_timezone="UTC") as watcher:
                error = await watcher.error("events' doesn't exist")
                await asyncio.sleep(0.5)
                assert watcher.errors == [error]
                table.execute("alter table away rename to events")
                await watcher.until(lambda watcher: watcher.rows == 1)
        finally:
            table.execute("drop table if exists away")

    async def test_a_connection_that_is_lost_is_opened_again(self, table, mariadb_id):
        table.execute("insert into events values (1, utc_timestamp(6))")
        async with running(mariadb_id, cursor_timezone="UTC", payload="keys") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [1])
            query = "select id from information_schema.processlist where id <> connection_id()"
            for (number,) in table.execute(query):
                with contextlib.suppress(pymysql.err.OperationalError):  # it has just ended
                    table.execute(f"kill {number}")
            table.execute("insert into events values (2, utc_timestamp(6))")
            await watcher.until(lambda watcher: watcher.keys == [1, 2])
            assert len(watcher.errors) <= 1

    async def test_connections_are_closed_though_nobody_collects_garbage(self, table, mariadb_id):
        """A server has room for some hundred; a watcher opens one again after each error."""
        with contextlib.closing(table.connect()) as session, session.cursor() as cursor:

            def ask(query):
                cursor.execute(query)
                return int(cursor.fetchone()[-1])

            def made():
                return ask("show global status like 'Connections'")

            def present():
                return ask("select count(*) from information_schema.processlist")

            first, before = made(), present()
            gc.disable()
            try:
                async with running(mariadb_id, table="nosuch"):
                    await eventually(lambda: made() >= first + 5, made)
                    await eventually(lambda: present() <= before + 1, present)
                await eventually(lambda: present() <= before, present)
            finally:
                gc.enable()

    async def test_an_error_is_told_with_the_servers_number(self, table, mariadb_id):
        """Of which classes of drivers' errors say little."""
        with contextlib.ExitStack() as stack:
            administrator = stack.enter_context(contextlib.closing(table.connect())).cursor()
            administrator.execute("set global max_connections = 10")
            stack.callback(administrator.execute, "set global max_connections = default")
            with contextlib.suppress(pymysql.err.OperationalError):
                while True:
                    stack.enter_context(contextlib.closing(table.connect()))
            async with running(mariadb_id) as watcher:
                error = await watcher.error("1040")
                assert "connecting failed" in error
                assert "it is tried again" in error


class TestSQLite:
    async def test_what_was_seen_counts_as_seen_when_its_answer_came(self, sqlite, monkeypatch):
        """Not when it was asked for: a question may wait for its turn, and late_arrival would be less."""
        sqlite("create table events (id integer primary key, updated_at integer)")
        sqlite("insert into events values (1, 1)")
        database = DbApiDatabase("watched_sqlite", log=logging.getLogger())
        await database.open()
        fetch, waits = database.fetch, [0.6, 0.0, 0.6]

        async def fetch_in_turn(question):
            await asyncio.sleep(waits.pop(0))
            return await fetch(question)

        monkeypatch.setattr(database, "fetch", fetch_in_turn)
        query = WatchedQuery(table="events", query=None, cursor_column="id")
        assert await database.settled_position(query, 0.5) is None
        assert await database.settled_position(query, 0.5) is None
        assert await database.settled_position(query, 0.5) == 1
        await database.close()

    @pytest.mark.parametrize("ticks", range(12))
    async def test_a_watcher_that_is_stopped_just_as_its_answer_comes_stops(self, sqlite, ticks):
        """Or pausing its Dag would wait for it for ever: asyncio.wait_for gives the answer in place."""
        loop = asyncio.get_running_loop()
        database = DbApiDatabase("watched_sqlite", log=logging.getLogger())
        await database.open()
        cancelled = []

        def cancel(left):
            if left:
                loop.call_soon(cancel, left - 1)
            else:
                cancelled.append(task.cancel())

        def answer():
            loop.call_soon_threadsafe(cancel, ticks)

        async def ask():
            await database._call("a query", answer)
            return "answer"

        task = asyncio.create_task(ask())
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: cancelled, "cancelled")
        assert isinstance(result, asyncio.CancelledError) or cancelled == [False]
        await database.close()

    @pytest.mark.parametrize("payload", ["window", "keys"])
    @pytest.mark.parametrize("column", ["text", "integer", "real"])
    async def test_rows_are_delivered_once_and_go_on_after_a_restart(self, sqlite, payload, column):
        sqlite(f"create table events (id integer primary key, updated_at {column})")
        values = {"text": ["a", "b", "c"], "integer": [1, 2, 3], "real": [0.5, 1.5, 2.5]}[column]
        trigger = make_trigger("watched_sqlite", payload=payload)
        async with Running(trigger) as watcher:
            for id_ in (1, 2):
                sqlite("insert into events values (?, ?)", id_, values[id_ - 1])
                await watcher.until(lambda watcher, rows=id_: watcher.rows == rows)
            await asyncio.sleep(0.3)
        async with Running(trigger, watcher.store) as again:
            sqlite("insert into events values (3, ?)", values[2])
            await again.until(lambda again: again.rows == 1)
            await again.sweeps(2)
            assert again.rows == 1

    async def test_from_now_on_an_empty_table_everything_is_news(self, sqlite):
        sqlite("create table events (id integer primary key, updated_at text)")
        async with running("watched_sqlite", payload="keys", start_from="now") as watcher:
            await watcher.sweeps(2)
            sqlite("insert into events values (1, ?)", datetime.now(UTC).isoformat())
            await watcher.until(lambda watcher: watcher.keys == [1])

    async def test_where_to_start_is_read_with_the_first_row(self, sqlite):
        sqlite("create table events (id integer primary key, updated_at integer)")
        async with running("watched_sqlite", payload="keys", start_from="5") as watcher:
            await watcher.error("there is no row yet")
            for id_, value in enumerate((4, 5, 6)):
                sqlite("insert into events values (?, ?)", id_, value)
            await watcher.until(lambda watcher: len(watcher.keys) == 2)
            assert watcher.keys == [1, 2]

    async def test_errors_leave_no_threads_behind(self, sqlite):
        sqlite("create table events (id integer primary key, updated_at text)")
        before = threading.active_count()
        async with running("watched_sqlite", table="nosuch") as watcher:
            await watcher.error("no such table")
            await asyncio.sleep(1.0)
        await eventually(lambda: threading.active_count() <= before + 1, threading.enumerate)

    async def test_a_connection_that_only_airflow_knows_is_found_by_the_triggerer(
        self, sqlite, tmp_path, monkeypatch
    ):
        """The hook asks the task SDK from a thread of its own; the answer comes by the event loop."""
        sqlite("create table events (id integer primary key, updated_at integer)")
        sqlite("insert into events values (1, 1)")
        monkeypatch.delenv("AIRFLOW_CONN_WATCHED_SQLITE")
        home = tmp_path / "home"
        home.mkdir()
        with supervisor(home) as triggerer:
            triggerer.execute(
                "insert into connection (conn_id, conn_type, host, is_encrypted, is_extra_encrypted) "
                "values ('known_to_airflow', 'sqlite', ?, 0, 0)",
                str(tmp_path / "watched.db"),
            )
            async with triggerer.attached(), running("known_to_airflow", payload="keys") as watcher:
                await watcher.until(lambda watcher: watcher.keys == [1])
                assert watcher.errors == []
