"""Whatever is wrong with the database, or with what is asked of it: it is told once, and got over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import time
from dataclasses import replace

import pytest

from airflow.providers.watermark.sql import dbapi, links
from devtools.databases import postgres
from devtools.tcp_proxy import TcpProxy
from tests.databases.running import PATIENCE, Running, connection, eventually, make_trigger, running
from tests.databases.wire import Wire

TABLE = "create table events (id int primary key, updated_at timestamptz default now(), note json)"


@pytest.fixture(autouse=True)
def table(server):
    server.execute(TABLE)
    server.execute("insert into events values (1)")


@pytest.fixture(params=["window", "keys"])
def payload(request):
    return request.param


async def goes_on(watcher, rows=1):
    """See that the watcher has got over its error, and has delivered everything once."""
    await watcher.until(lambda watcher: watcher.rows >= rows)
    await eventually(lambda: "Recovered" in str(watcher.messages(logging.INFO)), "recovered")
    await watcher.sweeps(2)
    assert watcher.rows == rows
    assert len(watcher.errors) == 1
    assert "error" not in ((await watcher.state()).status or {})


async def stays(watcher, text):
    """See that an error is told once, however often it is met, and stands in the stored status."""
    error = await watcher.error(text)
    failures = len(watcher.polls)
    await asyncio.sleep(0.5)
    assert watcher.errors == [error]
    assert watcher.events == []
    assert len(watcher.polls) <= failures + 40  # no hot loop
    return error


class TestWhatIsAskedFor:
    async def test_a_table_that_is_missing(self, server, conn_id, payload):
        server.execute("alter table events rename to away")
        async with running(conn_id, payload=payload) as watcher:
            error = await stays(watcher, '"events" does not exist')
            assert "create the table" in error
            server.execute("alter table away rename to events")
            await goes_on(watcher)

    async def test_a_column_that_is_missing(self, server, conn_id, payload):
        server.execute("alter table events rename updated_at to away")
        async with running(conn_id, payload=payload) as watcher:
            error = await stays(watcher, '"updated_at" does not exist')
            assert "correct cursor_column" in error
            server.execute("alter table events rename away to updated_at")
            await goes_on(watcher)

    async def test_a_key_or_a_column_to_deliver_that_is_missing(self, conn_id):
        for arguments in ({"primary_key": "nosuch"}, {"columns": ["nosuch"]}):
            given = {"payload": "rows", "columns": ["note"], **arguments}
            async with running(conn_id, **given) as watcher:
                await stays(watcher, '"nosuch" does not exist')

    @pytest.mark.parametrize("kind", ["boolean", "inet", "int4range", "interval", "integer[]"])
    async def test_a_type_that_is_no_cursor(self, server, conn_id, payload, kind):
        server.execute(f"alter table events add odd {kind}")
        async with running(conn_id, cursor_column="odd", payload=payload) as watcher:
            await stays(watcher, "'odd' cannot be a cursor: its type is ")

    async def test_a_key_that_is_null_in_some_rows_even_between_pages(self, server, conn_id):
        server.execute("alter table events add part integer")
        server.execute("""insert into events (id, part)
                          select n, case when n <= 2100 then n end from generate_series(10, 2200) as n""")
        async with running(conn_id, payload="keys", primary_key="part") as watcher:
            error = await watcher.error("is NULL in some rows")
            assert "primary_key='part'" in error
            server.execute("update events set part = id")
            await watcher.until(lambda watcher: set(watcher.keys) >= {1, *range(10, 2201)})

    async def test_a_key_that_is_no_position(self, server, conn_id):
        server.execute("alter table events add odd boolean default true")
        async with running(conn_id, payload="keys", primary_key="odd") as watcher:
            await stays(watcher, "primary_key='odd' cannot tell rows apart")

    async def test_a_value_that_cannot_be_computed(self, server, conn_id, payload):
        # With the same stamp, or a window might end between the two, and rightly be delivered.
        server.execute("insert into events select 0, updated_at from events")
        async with running(conn_id, where="1 / id > 0", payload=payload) as watcher:
            assert "22012" in await stays(watcher, "cannot be computed")

    async def test_a_type_without_an_order(self, conn_id, payload):
        async with running(conn_id, cursor_column="note", payload=payload) as watcher:
            error = await stays(watcher, "'note' cannot be a cursor: its type is json")
            assert "name one of timestamps" in error

    async def test_a_predicate_that_is_no_sql(self, conn_id, payload):
        async with running(conn_id, where="id = ", payload=payload) as watcher:
            error = await stays(watcher, "syntax error")
            assert "correct the trigger's arguments" in error

    async def test_a_predicate_with_a_parameter(self, conn_id, payload):
        async with running(conn_id, where="id = $1", payload=payload) as watcher:
            assert "42P02" in await stays(watcher, "take no parameters: write values into them")

    async def test_a_query_that_writes_changes_nothing(self, server, conn_id):
        body = "insert into events values (7) returning 1"
        server.execute(f"create function grow() returns int language sql as '{body}'")
        async with running(conn_id, where="grow() = 1") as watcher:
            await stays(watcher, "read-only")
        assert server.execute("select count(*) from events") == [(1,)]


class TestRoles:
    @pytest.fixture
    def role(self, server):
        role = server.create_role("reader")
        server.execute("grant usage on schema public to reader")
        yield role
        server.execute("drop owned by reader; drop role reader")

    async def test_without_the_privilege(self, server, role, payload):
        with connection(role) as conn_id:
            async with running(conn_id, payload=payload) as watcher:
                error = await stays(watcher, "permission denied for table events")
                assert "grant SELECT" in error
                server.execute("grant select on events to reader")
                await goes_on(watcher)

    async def test_whose_privilege_is_revoked_for_a_while(self, server, role, payload):
        server.execute("grant select on events to reader")
        with connection(role) as conn_id:
            async with running(conn_id, payload=payload) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 1)
                server.execute("revoke select on events from reader")
                server.execute("insert into events values (2)")
                await watcher.error("permission denied")
                server.execute("grant select on events to reader")
                await goes_on(watcher, rows=2)

    async def test_with_a_wrong_password(self, server, role, payload):
        server.execute("grant select on events to reader; alter role reader password 'another'")
        with connection(role) as conn_id:
            async with running(conn_id, payload=payload) as watcher:
                error = await stays(watcher, "password authentication failed")
                assert "correct the connection's login or password" in error
                assert role.password not in error
                server.execute(f"alter role reader password '{role.password}'")
                await goes_on(watcher)


class TestConnections:
    async def test_that_is_missing(self, payload):
        async with running("nosuch", payload=payload) as watcher:
            error = await stays(watcher, "'nosuch'")
            assert "create it" in error

    async def test_that_leads_to_no_sql_database(self, payload, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_NOT_SQL", "fs://nowhere")
        async with running("not_sql", payload=payload) as watcher:
            await stays(watcher, "'not_sql'")

    async def test_to_a_database_that_is_missing(self, server, payload):
        described = json.loads(server.airflow_connection_json())
        os.environ["AIRFLOW_CONN_NO_DATABASE"] = json.dumps({**described, "schema": "nosuch"})
        async with running("no_database", payload=payload) as watcher:
            error = await stays(watcher, '"nosuch" does not exist')
            assert "correct the connection's database" in error
        del os.environ["AIRFLOW_CONN_NO_DATABASE"]

    async def test_that_are_cut_are_opened_again(self, server, payload):
        async with Wire(server.port).opened() as wire:
            with connection(wire.in_front_of(server)) as conn_id:
                async with running(conn_id, payload=payload) as watcher:
                    await watcher.until(lambda watcher: watcher.rows == 1)
                    wire.break_connections()
                    server.execute("insert into events values (2)")
                    await watcher.until(lambda watcher: watcher.rows == 2)
                    await watcher.sweeps(2)
                    assert watcher.rows == 2
                    assert len(watcher.errors) <= 1

    async def test_through_a_pooler_are_settled_by_the_clock_which_is_said(self, server, payload):
        async with Wire(server.port).opened() as wire:
            wire.pooled = True
            with connection(wire.in_front_of(server)) as conn_id, server.connect() as other:
                other.execute("begin")
                other.execute("select now()")
                async with running(conn_id, payload=payload, late_arrival=0.5) as watcher:
                    await watcher.until(lambda watcher: watcher.rows == 1)
                    (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
                    assert "pooler" in said
                    assert "pooler" in (await watcher.state()).status["bound"]

    async def test_name_the_watchers_that_use_them(self, server, conn_id, monkeypatch):
        monkeypatch.setattr(links, "MAX_LINKS", 1)

        def names():
            asked = "select application_name from pg_stat_activity where application_name like '%watermark%'"
            return [name for (name,) in server.execute(asked)]

        long = "x" * 100
        async with running(conn_id, asset_name="orders") as first:
            await first.sweeps(1)
            assert names() == ["airflow-watermark: orders"]
            async with running(conn_id, asset_name=long) as second, running(conn_id) as third:
                await second.sweeps(1)
                await third.sweeps(1)
                assert names() == ["airflow-watermark: orders (+2)"]
            await eventually(lambda: names() == ["airflow-watermark: orders"], names)
        async with running(conn_id, asset_name=long) as alone, running(conn_id) as other:
            await alone.sweeps(1)
            await other.sweeps(1)
            (name,) = names()
            assert name == f"airflow-watermark: {long}"[:58] + " (+1)"
        async with running(conn_id, asset_name="\u2603" * 30) as snowy:
            await snowy.sweeps(1)
            assert len(names()) == 1
            assert snowy.errors == []

    async def test_are_refused_where_one_address_leads_to_a_pooler_at_times(
        self, server, conn_id, monkeypatch
    ):
        answers = itertools.cycle([(False, False), (False, True)])

        async def look(connection):
            return next(answers)

        monkeypatch.setattr(links, "_look", look)
        async with running(conn_id) as watcher:
            error = await watcher.error("its address leads to a server, and then to a pooler")
            assert repr(conn_id) in error

    async def test_let_go_of_a_watcher_while_another_ones_query_takes_long(
        self, server, conn_id, monkeypatch
    ):
        """Or a pause would wait for a neighbour's query."""
        monkeypatch.setattr(links, "MAX_LINKS", 1)
        async with running(conn_id, where="pg_sleep(8)::text = ''"):
            async with running(conn_id) as watcher:
                asked = "select count(*) from pg_stat_activity where query like '%pg_sleep(8)%' and pid <> "
                asked += "pg_backend_pid() and state = 'active' and backend_start < now() - interval '0.5 s'"
                await eventually(lambda: server.execute(asked)[0][0], "asleep")
                began = time.monotonic()
            assert time.monotonic() - began < 4
            assert watcher.errors == []

    async def test_are_few_for_many_watchers_and_none_in_the_end(self, server, conn_id):
        asked = "select count(*) from pg_stat_activity where application_name like '%watermark%'"
        async with contextlib.AsyncExitStack() as stack:
            watchers = [
                await stack.enter_async_context(Running(make_trigger(conn_id, payload="keys")))
                for _ in range(12)
            ]
            for watcher in watchers:
                await watcher.until(lambda watcher: watcher.keys == [1])
            assert server.execute(asked)[0][0] <= 4
        await eventually(lambda: server.execute(asked) == [(0,)], "all are closed")

    async def test_honour_the_search_path(self, server):
        server.execute("create schema elsewhere")
        server.execute("create table elsewhere.events (id int primary key, updated_at timestamptz)")
        server.execute("insert into elsewhere.events values (7, now())")
        try:
            with connection(server, options="-c search_path=elsewhere") as conn_id:
                async with running(conn_id, payload="keys") as watcher:
                    await watcher.until(lambda watcher: watcher.keys == [7])
        finally:
            server.execute("drop schema elsewhere cascade")

    async def test_with_tls_asked_for_and_not_to_be_had_are_an_error(self, server):
        with connection(server, sslmode="require") as conn_id:
            async with running(conn_id) as watcher:
                await stays(watcher, "connecting failed")


async def test_a_server_that_is_down_is_told_once_and_nothing_is_lost(payload):
    with postgres() as database, connection(database) as conn_id:
        database.execute(TABLE)
        database.execute("insert into events values (1)")
        async with running(conn_id, payload=payload) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 1)
            database.stop("immediate")
            await watcher.until(lambda watcher: watcher.errors)
            await asyncio.sleep(0.7)
            told = len(watcher.errors)
            assert told <= 2  # the connection was lost; the server cannot be reached
            database.start()
            database.execute("insert into events values (2)")
            await watcher.until(lambda watcher: watcher.rows == 2)
            await watcher.sweeps(2)
            assert (watcher.rows, len(watcher.errors)) == (2, told)


async def test_a_server_that_is_down_at_the_start_is_waited_for(payload):
    with postgres() as database, connection(database) as conn_id:
        database.execute(TABLE)
        database.stop()
        async with running(conn_id, payload=payload) as watcher:
            await stays(watcher, "nothing is lost")
            database.start()
            database.execute("insert into events values (1)")
            await goes_on(watcher)


class TestANetworkThatDropsPackets:
    """Nothing arrives, in neither direction, and nobody says so: a watcher must not wait for ever."""

    @staticmethod
    async def gives_up(watcher, network, database, text):
        await watcher.until(lambda watcher: watcher.rows == 1)
        network.hang()
        database.execute("insert into events (id) values (2)")
        await watcher.error(text)
        network.heal()
        await goes_on(watcher, rows=2)

    async def test_postgres(self, server, payload, monkeypatch):
        monkeypatch.setattr(links, "ANSWER_TIMEOUT", 1.0)
        with TcpProxy(server.port) as network, connection(replace(server, port=network.port)) as conn_id:
            async with running(conn_id, payload=payload) as watcher:
                await self.gives_up(watcher, network, server, "a query failed (08003)")

    async def test_watchers_of_one_connection_that_are_to_end(self, server, monkeypatch):
        monkeypatch.setattr(links, "ANSWER_TIMEOUT", 1.0)
        monkeypatch.setattr(links, "MAX_LINKS", 1)
        with TcpProxy(server.port) as network, connection(replace(server, port=network.port)) as conn_id:
            async with running(conn_id) as watcher, running(conn_id) as other:
                await watcher.until(lambda watcher: watcher.rows == 1)
                await other.until(lambda other: other.rows == 1)
                network.hang()
                began = time.monotonic()
            assert time.monotonic() - began < PATIENCE

    async def test_another_database(self, running_mariadb, monkeypatch):
        monkeypatch.setattr(dbapi, "ANSWER_TIMEOUT", 1.0)
        running_mariadb.execute("drop table if exists events")
        running_mariadb.execute(
            "create table events (id int primary key, updated_at datetime(6) default now(6))"
        )
        running_mariadb.execute("insert into events (id) values (1)")
        with (
            TcpProxy(running_mariadb.port) as network,
            connection(replace(running_mariadb, port=network.port)) as conn_id,
        ):
            async with running(conn_id, payload="keys", cursor_timezone="UTC") as watcher:
                await self.gives_up(watcher, network, running_mariadb, "failed (TimeoutError)")
