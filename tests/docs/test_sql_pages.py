"""The SQL of the pages is enough for a watcher, and no more than it needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow.providers.watermark.testing import Delivery, Harness
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from devtools.databases import Database, mariadb, postgres
from tests.docs.pages import DOCS, blocks_of


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with postgres() as database:
        yield database


def run_page(database: Database, page: Path, test: str) -> Iterator[None]:
    """Run the statements that a page leaves to a test, one block after another."""
    for block in blocks_of(page, "sql", "postgresql"):
        if (block.word, block.note) == ("run by", test):
            # Drivers of MySQL take one statement at a time; a function has semicolons of its own.
            for statement in block.code.split(";\n") if database.name == "mariadb" else [block.code]:
                if statement.strip():
                    database.execute(statement)
            yield


async def deliver(
    database: Database, monkeypatch: pytest.MonkeyPatch, bound: str = "exact", **arguments: object
) -> list[Delivery]:
    """Watch the table as the role of a connection, and see where its settled bound comes from."""
    monkeypatch.setitem(os.environ, "AIRFLOW_CONN_SHOP", database.airflow_connection_json())
    trigger = SQLUpdatedAtTrigger(
        asset_name="sales",
        conn_id="shop",
        table="sales",
        start_from="beginning",
        late_arrival=0.1,
        **arguments,
    )
    async with Harness(trigger, lull=lambda: asyncio.sleep(1.2)) as watcher:
        events = await watcher.deliver(2)
        assert not [record for record in watcher.records if record.levelname == "ERROR"]
        assert watcher.trigger.facts["bound"].startswith(bound)
    return events


async def test_permissions(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    server.execute(
        "create table sales (id int primary key, amount int, updated_at timestamptz default now())"
    )
    server.execute("insert into sales select n, n from generate_series(1, 3) n")
    blocks = run_page(server, DOCS / "how-to/permissions.md", "test_permissions")
    next(blocks)
    role = replace(server, user="airflow_watcher", password="change-me")
    assert [event.payload["count"] for event in await deliver(role, monkeypatch)] == [3]
    next(blocks)
    keys = await deliver(role, monkeypatch, payload="keys", primary_key="id")
    assert [event.payload["count"] for event in keys] == [3]
    with pytest.raises(Exception, match="permission denied"):
        role.execute("select amount from sales")
    next(blocks)
    assert [*blocks] == []
    assert server.execute(
        "select indisvalid from pg_index where indexrelid = 'sales_by_updated_at'::regclass"
    )
    server.execute("drop table sales")


async def test_watch_postgres(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    server.execute("create table sales (id int primary key, amount int)")
    assert len([*run_page(server, DOCS / "how-to/watch-postgres.md", "test_watch_postgres")]) == 2
    server.execute("insert into sales values (1, 1), (2, 2)")
    before = server.execute("select updated_at from sales where id = 1")
    server.execute("update sales set amount = 3 where id = 1")
    assert server.execute("select updated_at from sales where id = 1") > before
    events = await deliver(server, monkeypatch, payload="rows", primary_key="id", columns=["amount"])
    rows = [change["row"]["amount"] for event in events for change in event.payload["changes"]]
    assert sorted(rows) == [2, 3]
    server.execute("drop table sales")


@pytest.mark.usefixtures("mariadb_or_skip")
async def test_permissions_on_mariadb(monkeypatch: pytest.MonkeyPatch) -> None:
    with mariadb() as server:
        server.execute("create database shop")
        server.execute("create table shop.sales (id int primary key, updated_at datetime(6))")
        server.execute("insert into shop.sales values (1, utc_timestamp(6)), (2, utc_timestamp(6))")
        page = DOCS / "how-to/permissions.md"
        assert len([*run_page(server, page, "test_permissions_on_mariadb")]) == 1
        role = replace(server, user="airflow_watcher", password="change-me", dbname="shop")
        bound = "the server's clock, or the oldest open transaction"
        events = await deliver(role, monkeypatch, bound, cursor_timezone="UTC")
    assert sum(event.payload["count"] for event in events) == 2
