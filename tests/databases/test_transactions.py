"""Whatever is open, prepared, restarted or set apart on Postgres: windows stay final, the bound goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.sql import postgres as postgres_module
from airflow.providers.watermark.triggers import sql
from devtools.databases import postgres, standby_of
from devtools.tcp_proxy import TcpProxy
from tests.databases.running import connection, eventually, running

TABLE = "create table events (id bigint primary key, updated_at timestamptz not null default now())"


@pytest.fixture(autouse=True)
def table(server):
    server.execute(TABLE)


@pytest.fixture
def session(server):
    """A session with a transaction in it; it is rolled back in the end."""
    with contextlib.closing(psycopg.connect(server.uri)) as session:
        yield session


@contextlib.contextmanager
def prepared(database, name, statement=""):
    """Prepare a transaction, and give what commits it; in the end it is gone."""
    with contextlib.closing(psycopg.connect(database.uri)) as session:
        session.execute(statement or "select txid_current()")
        session.execute(f"prepare transaction '{name}'")
        session.commit()
    try:
        yield lambda: database.execute(f"commit prepared '{name}'")
    finally:
        if database.execute("select 1 from pg_prepared_xacts where gid = %s", [name]):
            database.execute(f"rollback prepared '{name}'")


def insert(database, *ids):
    database.execute("insert into events select unnest(%s::bigint[])", [list(ids)])


def ids_in(database, window):
    low = datetime.min.replace(tzinfo=UTC) if window.low is BEGINNING else window.low
    rows = database.execute(
        "select id from events where updated_at > %s and updated_at <= %s order by id", [low, window.high]
    )
    return [row[0] for row in rows]


class TestALongTransaction:
    async def test_holds_windows_back_until_it_ends_and_then_loses_nothing(self, server, conn_id, session):
        session.execute("insert into events values (1)")
        insert(server, 2)
        async with running(conn_id) as watcher:
            await watcher.sweeps(5)
            assert watcher.windows == []
            session.commit()
            await watcher.until(lambda watcher: watcher.rows == 2)
            assert [id_ for window in watcher.windows for id_ in ids_in(server, window)] == [1, 2]

    async def test_lets_windows_end_before_it_began(self, server, conn_id, session):
        async with running(conn_id) as watcher:
            insert(server, 1)
            await watcher.until(lambda watcher: watcher.rows == 1)
            session.execute("insert into events values (2)")
            insert(server, 3)
            await watcher.sweeps(5)
            (window,) = watcher.windows
            assert ids_in(server, window) == [1]
            session.commit()
            await watcher.until(lambda watcher: watcher.rows == 3)
            assert ids_in(server, window) == [1]

    @pytest.mark.parametrize("payload", ["keys", "rows"])
    async def test_delays_nothing_in_eager_delivery(self, server, conn_id, session, payload):
        session.execute("insert into events values (1)")
        arguments = {"payload": payload, "columns": ["id"] if payload == "rows" else []}
        async with running(conn_id, **arguments) as watcher:
            insert(server, 2)
            await watcher.until(lambda watcher: watcher.keys == [2])
            insert(server, 3)
            await watcher.until(lambda watcher: watcher.keys == [2, 3])
            session.commit()
            await watcher.until(lambda watcher: len(watcher.keys) > 2)
            await watcher.sweeps(5)
            assert watcher.keys == [2, 3, 1]

    async def test_is_waited_for_when_it_has_only_savepoints_with_writes(self, server, conn_id, session):
        session.execute("select now()")
        insert(server, 2)
        async with running(conn_id) as watcher:
            session.execute("savepoint one")
            session.execute("insert into events values (3)")
            session.execute("rollback to savepoint one")
            session.execute("savepoint two")
            session.execute("insert into events values (1)")
            session.execute("release savepoint two")
            await watcher.sweeps(5)
            assert watcher.windows == []
            session.commit()
            await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_stamps_by_the_wall_clock_and_is_waited_for_all_the_same(self, server, conn_id, session):
        session.execute("insert into events values (1, clock_timestamp())")
        async with running(conn_id) as watcher:
            await asyncio.sleep(0.2)
            insert(server, 2)
            await watcher.sweeps(5)
            assert watcher.windows == []
            session.execute("insert into events values (3, clock_timestamp())")
            session.commit()
            await watcher.until(lambda watcher: watcher.rows == 3)
            assert sorted(id_ for window in watcher.windows for id_ in ids_in(server, window)) == [1, 2, 3]


class TestAnIdleSession:
    async def test_holds_windows_back_and_is_named(self, server, conn_id, session, monkeypatch):
        monkeypatch.setattr(postgres_module, "_SLOW_BARRIER", 0.2)
        session.execute("select 1")
        pid = session.info.backend_pid
        insert(server, 1)
        async with running(conn_id) as watcher:
            warnings = await watcher.until(lambda watcher: watcher.warnings)
            await watcher.sweeps(5)
            assert watcher.windows == []
            assert len(warnings) == len(watcher.warnings) == 1
            assert f"session {pid} of role postgres" in warnings[0]
            assert "ignore_roles" in warnings[0]
            session.rollback()
            await watcher.until(lambda watcher: watcher.rows == 1)

    async def test_is_named_to_a_role_without_privileges(self, server, session, monkeypatch):
        monkeypatch.setattr(postgres_module, "_SLOW_BARRIER", 0.2)
        session.execute("select 1")
        with reader(server) as role, connection(role) as conn_id:
            async with running(conn_id) as watcher:
                await watcher.until(lambda watcher: watcher.warnings)
                assert f"session {session.info.backend_pid} of role postgres" in watcher.warnings[0]

    async def test_of_an_ignored_role_holds_nothing(self, server, conn_id):
        with reader(server) as role, contextlib.closing(psycopg.connect(role.uri)) as analyst:
            analyst.execute("select count(*) from events")
            insert(server, 1)
            async with (
                running(conn_id, ignore_roles=[role.user]) as watcher,
                running(conn_id, ignore_roles=["somebody else"]) as held,
            ):
                await watcher.until(lambda watcher: watcher.rows == 1)
                await held.sweeps(3)
                assert held.windows == []

    async def test_holds_no_longer_than_max_bound_wait_which_is_told(self, server, conn_id, session):
        session.execute("select 1")
        insert(server, 1)
        async with running(conn_id, max_bound_wait=0.5) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 1)
            insert(server, 2)
            await watcher.until(lambda watcher: watcher.rows == 2)
            assert f"session {session.info.backend_pid}" in watcher.warnings[0]
            assert "max_bound_wait=0.5 s" in watcher.warnings[0]
            assert "may be lost" in watcher.warnings[0]

    async def test_in_another_database_holds_nothing(self, server, conn_id):
        with other_database(server) as other, contextlib.closing(psycopg.connect(other.uri)) as session:
            session.execute("select txid_current()")
            insert(server, 1)
            async with running(conn_id) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)


class TestAPreparedTransaction:
    async def test_holds_windows_back_and_is_named(self, server, conn_id, monkeypatch):
        monkeypatch.setattr(postgres_module, "_SLOW_BARRIER", 0.2)
        with prepared(server, "transfer", "insert into events values (1)") as commit:
            insert(server, 2)
            async with running(conn_id) as watcher:
                await watcher.until(lambda watcher: watcher.warnings)
                assert "prepared transaction transfer of role postgres" in watcher.warnings[0]
                await watcher.sweeps(3)
                assert watcher.windows == []
                commit()
                await watcher.until(lambda watcher: watcher.rows == 2)
                assert [id_ for window in watcher.windows for id_ in ids_in(server, window)] == [1, 2]

    async def test_in_another_database_holds_nothing(self, server, conn_id):
        with other_database(server) as other, prepared(other, "elsewhere"):
            insert(server, 1)
            async with running(conn_id) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)

    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    async def test_outlives_a_restart_of_the_server_and_its_rows_are_delivered(self, server, conn_id, mode):
        """Recovered, it has another virtual transaction than the one that was waited for."""
        with prepared(server, "transfer", "insert into events values (1)") as commit:
            insert(server, 2)
            arguments = {"payload": "keys", "primary_key": "id"}
            async with running(conn_id) as watcher, running(conn_id, **arguments) as eager:
                await eager.until(lambda watcher: watcher.keys == [2])
                await watcher.sweeps(2)
                server.restart(mode)
                insert(server, 3)
                await eager.until(lambda watcher: watcher.keys == [2, 3])
                await watcher.sweeps(5)
                assert watcher.windows == []
                commit()
                await watcher.until(lambda watcher: watcher.rows == 3)
                await eager.until(lambda watcher: len(watcher.keys) == 3)
                assert [id_ for window in watcher.windows for id_ in ids_in(server, window)] == [1, 2, 3]
                await eager.sweeps(3)
                assert eager.keys == [2, 3, 1]

    async def test_that_was_begun_under_a_barrier_is_waited_for_across_its_prepare(
        self, server, conn_id, session
    ):
        session.execute("insert into events values (1)")
        insert(server, 2)
        async with running(conn_id) as watcher:
            await watcher.sweeps(3)
            session.execute("prepare transaction 'handed over'")
            session.close()
            await watcher.sweeps(5)
            assert watcher.windows == []
            server.execute("commit prepared 'handed over'")
            await watcher.until(lambda watcher: watcher.rows == 2)


class TestStamps:
    async def test_by_a_client_within_late_arrival_are_not_missed(self, server, conn_id):
        async with running(conn_id, late_arrival=1.5) as watcher:
            insert(server, 1)
            stamp = datetime.now(UTC)
            await asyncio.sleep(0.3)  # the row is under way
            await watcher.sweeps(2)
            server.execute("insert into events values (2, %s)", [stamp])
            await watcher.until(lambda watcher: watcher.rows == 2)
            assert [id_ for window in watcher.windows for id_ in ids_in(server, window)] == [1, 2]

    async def test_by_a_client_within_late_arrival_are_delivered_eagerly(self, server, conn_id):
        async with running(conn_id, payload="keys", late_arrival=60) as watcher:
            insert(server, 1)
            await watcher.until(lambda watcher: watcher.keys == [1])
            server.execute("insert into events values (2, now() - interval '50 seconds')")
            await watcher.until(lambda watcher: watcher.keys == [1, 2])
            await watcher.sweeps(3)
            assert watcher.keys == [1, 2]

    async def test_in_the_future_wait_are_told_once_and_hide_nothing(self, server, conn_id):
        async with running(conn_id, payload="keys") as watcher:
            server.execute("insert into events values (1, now() + interval '2 seconds')")
            server.execute("insert into events values (2, '9999-12-31')")
            insert(server, 3)
            await watcher.until(lambda watcher: 1 in watcher.keys)
            await watcher.sweeps(3)
            assert watcher.keys == [3, 1]
            assert len([warning for warning in watcher.warnings if "future" in warning]) == 1

    @pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
    async def test_mean_the_same_in_a_session_with_another_time_zone(self, server, zone):
        with connection(server, options=f"-c timezone={zone}") as conn_id:
            insert(server, 1)
            async with running(conn_id) as watcher, running(conn_id, payload="keys") as eager:
                await watcher.until(lambda watcher: watcher.rows == 1)
                await eager.until(lambda watcher: watcher.keys == [1])
                insert(server, 2)
                await watcher.until(lambda watcher: watcher.rows == 2)
                await eager.until(lambda watcher: watcher.keys == [1, 2])
                (stamp,) = server.execute("select updated_at from events where id = 2")[0]
                assert watcher.windows[-1].high == eager.changes[-1].cursor == stamp
                assert watcher.windows[-1].high.utcoffset() == timedelta(0)


class TestAClockThatIsSetBack:
    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_right_after_a_poll_loses_nothing_that_is_stamped_until_the_next(
        self, server, conn_id, payload, monkeypatch
    ):
        shift = timedelta()
        real = postgres_module.PostgresDatabase.clock_and_locks

        async def shifted(database):
            now, busy = await real(database)
            return now + shift, busy

        def add(id_):
            server.execute("insert into events values (%s, clock_timestamp() + %s)", [id_, shift])

        monkeypatch.setattr(postgres_module.PostgresDatabase, "clock_and_locks", shifted)
        add(1)
        async with running(conn_id, payload=payload, poll_interval=3.0, start_from="now") as watcher:
            await eventually(lambda: watcher.polls, "a poll")
            await asyncio.sleep(0.3)
            shift -= timedelta(hours=1)
            for id_ in range(2, 20):
                add(id_)
                await asyncio.sleep(0.1)
            add(20)
            await watcher.until(lambda watcher: watcher.rows >= 19)
            if payload == "keys":
                assert set(watcher.keys) >= set(range(2, 21))
            assert "taken back" in str(watcher.warnings)


class TestAnIdleConnection:
    async def test_is_not_ended_by_a_time_out_for_idle_sessions(self, server, conn_id):
        server.execute("alter system set idle_session_timeout = '200ms'")
        server.execute("select pg_reload_conf()")
        try:
            async with running(conn_id, poll_interval=0.8) as watcher:
                insert(server, 1)
                await watcher.until(lambda watcher: watcher.rows == 1)
                await watcher.sweeps(2)
                assert watcher.errors == []
        finally:
            server.execute("alter system reset idle_session_timeout")
            server.execute("select pg_reload_conf()")


class TestAStandby:
    async def test_is_watched_by_its_clock_which_is_said(self, server, session):
        insert(server, 1)
        with standby_of(server) as standby, connection(standby) as conn_id:
            async with running(conn_id, late_arrival=1.0) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                session.execute("insert into events values (2)")  # on the primary, where nobody looks
                insert(server, 3)
                await watcher.until(lambda watcher: watcher.rows == 2)
                (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
                assert "this is a standby" in said
                assert "clock" in said
                status = (await watcher.state()).status
                assert status is not None
                assert "standby" in status["bound"]

    async def test_waits_for_sixty_seconds_by_default(self, server):
        insert(server, 1)
        server.execute("insert into events values (2, now() - interval '61 seconds')")
        with standby_of(server) as standby, connection(standby) as conn_id:
            async with running(conn_id, late_arrival=None) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                await watcher.sweeps(3)
                (window,) = watcher.windows
                assert ids_in(server, window) == [2]

    async def test_that_is_promoted_is_watched_by_the_barrier_after_a_reconnect(self, server):
        insert(server, 1)
        with standby_of(server) as standby, connection(standby) as conn_id:
            async with running(conn_id, late_arrival=1.0) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                standby.execute("select pg_promote()")
                end_watchers_sessions(standby)
                with contextlib.closing(psycopg.connect(standby.uri)) as session:
                    session.execute("insert into events values (2)")
                    insert(standby, 3)
                    await eventually(
                        lambda: any("barrier" in text for text in watcher.messages(logging.INFO)), "said"
                    )
                    await asyncio.sleep(1.2)
                    await watcher.sweeps(3)
                    assert watcher.rows == 1
                    session.commit()
                await watcher.until(lambda watcher: watcher.rows == 3)


class Balancer(TcpProxy):
    """Leads the first connection to one server, and all later ones to another."""

    def __init__(self, first, other):
        super().__init__(first)
        self._ports = itertools.chain([first], itertools.repeat(other))

    def _accept(self, reader, writer):
        self._target = next(self._ports)
        super()._accept(reader, writer)


async def test_of_several_servers_behind_one_address_the_one_that_is_asked_counts(server):
    insert(server, 1)
    with (
        standby_of(server) as standby,
        Balancer(server.port, standby.port) as network,
        connection(replace(server, port=network.port)) as conn_id,
    ):
        async with running(conn_id) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 1)
            (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
            assert "this is a standby" in said


class TestRowsCommittedElsewhere:
    """Their transactions are not among those of the server, and the barrier knows nothing of them."""

    @staticmethod
    async def bound(conn_id, **arguments):
        async with running(conn_id, late_arrival=None, **arguments) as watcher:
            await watcher.sweeps(2)
            (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
            assert watcher.trigger.lateness == (5.0 if "exact" in said else 60.0)
            return said

    async def test_of_a_materialized_view(self, server, conn_id):
        server.execute("create materialized view copied as select * from events")
        server.execute("create view seen as select * from copied")
        for arguments in ({"table": "copied"}, {"table": "seen"}, {"query": "select * from seen"}):
            said = await self.bound(conn_id, **arguments)
            assert "less late_arrival, since this is a copy, or another server's: copied" in said

    async def test_of_a_foreign_table_that_is_a_part_of_a_table(self, server, conn_id):
        server.execute("create extension file_fdw; create server far foreign data wrapper file_fdw")
        server.execute("create table parts (id bigint, updated_at timestamptz) partition by list (id)")
        server.execute("create table here partition of parts for values in (1, 3, 4)")
        try:
            assert "exact" in await self.bound(conn_id, table="parts")
            server.execute(
                "create foreign table there partition of parts for values in (2) server far "
                "options (program 'echo 2,2026-01-01', format 'csv')"
            )
            assert "another server's: there" in await self.bound(conn_id, table="parts")
            with contextlib.closing(psycopg.connect(server.uri)) as session:
                session.execute("insert into parts values (1, clock_timestamp())")
                async with running(conn_id, table="parts", payload="keys") as watcher:
                    for number, late in ((3, 0), (4, 0.5)):  # two of them, for the last is never settled
                        await asyncio.sleep(late)
                        server.execute("insert into parts values (%s, clock_timestamp())", [number])
                    await watcher.until(lambda watcher: watcher.keys == [2, 3, 4])
                    await asyncio.sleep(1.5)
                    await watcher.sweeps(3)
                    session.commit()  # the barrier is over what is here, all the same
                    await watcher.until(lambda watcher: watcher.keys == [2, 3, 4, 1])
        finally:
            server.execute("drop extension file_fdw cascade")

    async def test_is_found_out_while_it_is_watched(self, server, conn_id, monkeypatch):
        monkeypatch.setattr(sql, "LOOK_EVERY", 2)
        server.execute("create view seen as select * from events")
        async with running(conn_id, table="seen") as watcher:
            await watcher.sweeps(2)
            server.execute("create materialized view copied as select * from events")
            server.execute("create or replace view seen as select * from copied")
            await watcher.sweeps(3)
            said = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
            assert ["copied" in text for text in said] == [False, True]

    async def test_is_not_settled_behind_what_is_there(self, server, conn_id):
        """Rows of a copy are in order, and may be late by any time."""
        server.execute("create materialized view copied as select * from events")
        async with running(conn_id, table="copied", payload="keys") as watcher:
            for number in (1, 2, 3):
                insert(server, number)
                await asyncio.sleep(1.2)
                await watcher.sweeps(2)
                server.execute("refresh materialized view copied")
                await watcher.until(lambda watcher, number=number: len(watcher.keys) == number)
            server.execute("insert into events select 4, max(updated_at) from events")
            await asyncio.sleep(1.2)
            await watcher.sweeps(2)
            server.execute("refresh materialized view copied")
            await watcher.until(lambda watcher: watcher.keys == [1, 2, 3, 4])
            # A transaction that overlapped with what is there.
            server.execute("insert into events select 5, max(updated_at) - interval '0.05 s' from events")
            server.execute("refresh materialized view copied")
            await watcher.until(lambda watcher: watcher.keys == [1, 2, 3, 4, 5])

    @pytest.mark.parametrize("arguments", [{}, {"payload": "keys", "delivery": "settled"}])
    async def test_of_what_is_final_the_last_waits_for_others_like_it(self, server, conn_id, arguments):
        """Though it was stamped long before: they may be on their way."""
        server.execute("create materialized view copied as select * from events")
        insert(server, 1, 2)
        async with running(conn_id, table="copied", late_arrival=5, **arguments) as watcher:
            await asyncio.sleep(5.5)
            server.execute("refresh materialized view copied")
            await asyncio.sleep(1)
            await watcher.sweeps(2)
            assert watcher.rows == 0
            await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_more_rows_with_one_position_than_are_remembered_are_settled_all_the_same(
        self, server, conn_id
    ):
        insert(server, *range(200))
        server.execute("create materialized view copied as select * from events")
        async with running(conn_id, table="copied", payload="keys", max_seen=50) as watcher:
            await watcher.until(lambda watcher: len(watcher.keys) == 200)
            await watcher.sweeps(3)
            assert len(watcher.keys) == 200

    async def test_of_a_subscription(self):
        options = {"wal_level": "logical"}
        with postgres(options=options) as published:
            published.execute(TABLE)
            published.execute("create table parts (id bigint, updated_at timestamptz)")
            published.execute("create publication changes for table events, parts")
            published.execute("select pg_create_logical_replication_slot('slot', 'pgoutput')")
            published.execute("create database subscriber")
            subscriber = replace(published, dbname="subscriber")
            subscriber.execute(TABLE)
            subscriber.execute("create table own (id bigint, updated_at timestamptz)")
            subscriber.execute("create table parts (like own) partition by list (id)")
            subscriber.execute("create table part partition of parts for values in (1)")
            subscriber.execute(
                f"create subscription changes connection '{published.uri}' publication changes "
                "with (slot_name = 'slot', create_slot = false)"
            )
            with connection(subscriber) as conn_id:
                assert "another server's: events" in await self.bound(conn_id)
                assert "another server's: part" in await self.bound(conn_id, table="part")
                assert "exact" in await self.bound(conn_id, table="own")
            subscriber.execute("alter subscription changes disable")
            subscriber.execute("alter subscription changes set (slot_name = none)")
            subscriber.execute("drop subscription changes")


def end_watchers_sessions(database):
    database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'airflow%'"
    )


@contextlib.contextmanager
def reader(server):
    """A role that may do nothing but SELECT."""
    role = server.create_role("reader")
    server.execute("grant usage on schema public to reader; grant select on events to reader")
    try:
        yield role
    finally:
        server.execute("drop owned by reader; drop role reader")


@contextlib.contextmanager
def other_database(server):
    """Another database of the same server."""
    server.execute("create database other")
    try:
        yield replace(server, dbname="other")
    finally:
        server.execute("drop database other with (force)")


def test_two_phase_commit_may_be_switched_off():
    """Then nobody can have prepared anything; the barrier asks all the same."""

    async def watch(conn_id, database):
        async with running(conn_id) as watcher:
            insert(database, 1)
            await watcher.until(lambda watcher: watcher.rows == 1)

    with postgres(max_prepared_transactions=0) as database, connection(database) as conn_id:
        database.execute(TABLE)
        asyncio.run(watch(conn_id, database))
