"""Watched through a real PgBouncer, which hands sessions out for a transaction, and has few of them."""

from __future__ import annotations

import logging
import threading

import psycopg
import pytest

from airflow.providers.watermark.sql import links
from devtools.databases import pgbouncer_of
from tests.databases.running import connection, running

TABLE = """
create type mood as enum ('sad', 'ok');
create table events (
    id int primary key, updated_at timestamptz default now(),
    mood mood default 'ok', took interval default '1 month 2 d');
insert into events values (1)
"""


@pytest.fixture(scope="module")
def running_pooler(running_postgres, pgbouncer_or_skip):
    with pgbouncer_of(running_postgres) as pooler:
        yield pooler


@pytest.fixture
def pooler(server, running_pooler):
    server.execute(TABLE)
    return running_pooler


@pytest.fixture
def conn_id(pooler):
    with connection(pooler) as conn_id:
        yield conn_id


@pytest.fixture
def others(pooler):
    """Other clients, which take the sessions in turns: whoever counts on the same one is found out."""
    done = threading.Event()

    def work():
        with psycopg.connect(pooler.uri, autocommit=True, prepare_threshold=None) as client:
            while not done.is_set():
                client.execute("select pg_sleep(0.002)")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield
    done.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("payload", ["window", "keys", "rows"])
@pytest.mark.usefixtures("others")
async def test_rows_are_delivered_by_the_clock_which_is_said(server, conn_id, payload):
    columns = {"columns": ["mood", "took"]} if payload == "rows" else {}
    async with running(conn_id, payload=payload, late_arrival=0.5, **columns) as watcher:
        await watcher.until(lambda watcher: watcher.rows == 1)
        (said,) = [text for text in watcher.messages(logging.INFO) if "settled bound" in text]
        assert "pooler" in said
        server.execute("insert into events select generate_series(2, 500)")
        await watcher.until(lambda watcher: watcher.rows == 500)
        await watcher.sweeps(5)
        assert watcher.rows == 500
        assert watcher.errors == []


async def test_nothing_is_written_and_nothing_left_to_others(server, pooler, conn_id):
    server.execute("""
        create function write() returns int language sql as
        $$ insert into events values (7) on conflict do nothing returning id $$""")
    async with running(conn_id, payload="keys", where="write() is null") as watcher:
        error = await watcher.error("25006")
        assert "only read" in error
    assert server.execute("select count(*) from events") == [(1,)]
    with psycopg.connect(pooler.uri, autocommit=True) as client:
        for _ in range(5):
            assert client.execute("show default_transaction_read_only").fetchone() == ("off",)
            assert client.execute("show statement_timeout").fetchone() == ("0",)


async def test_a_query_that_takes_too_long_is_ended(conn_id, monkeypatch):
    monkeypatch.setitem(links._SETTINGS, "statement_timeout", "100")
    async with running(conn_id, payload="keys", where="pg_sleep(1) is not null") as watcher:
        error = await watcher.error("57014")
        assert "an index that begins with the cursor column" in error


async def test_a_setting_that_the_pooler_does_not_take_is_told_with_what_to_do(pooler):
    with connection(pooler, options="-c search_path=public") as conn_id:
        async with running(conn_id, payload="keys") as watcher:
            error = await watcher.error("connecting failed")
            assert "ignore_startup_parameters" in error
            assert "options" in error
