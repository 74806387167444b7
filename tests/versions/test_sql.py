"""SQL watchers with what else an Airflow brings: its hooks, and SQLAlchemy 1.4 with the oldest one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.triggers import sql as watcher
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from devtools.databases import postgres
from tests.unit.watching_now import WatchingNow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CREATE = "create table events (id integer primary key, note text, updated_at {} not null)"
INSERT = "insert into events values ({mark}, {mark}, {mark})"
UPDATE = "update events set note = {mark}, updated_at = {mark} where id = {mark}"


@pytest.fixture
def on_postgres(monkeypatch):
    with postgres() as server:
        server.execute(CREATE.format("timestamptz"))
        monkeypatch.setenv("AIRFLOW_CONN_DB", server.airflow_connection_json())

        def execute(statement, *values):
            server.execute(statement.format(mark="%s"), values)

        yield execute


@pytest.fixture
def on_sqlite(monkeypatch, tmp_path):
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(CREATE.format("text"))
        monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))

        def execute(statement, *values):
            texts = [str(value) if isinstance(value, datetime) else value for value in values]
            connection.execute(statement.format(mark="?"), texts)

        yield execute


@pytest.fixture(params=["on_postgres", "on_sqlite"])
def execute(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch):
    monkeypatch.setattr(watcher, "PAGE_SIZE", 3)
    monkeypatch.setattr(watcher, "FIRST_PAGE_SIZE", 2)


class Watching(WatchingNow):
    @property
    def keys(self):
        return [change["key"]["id"] for change in self.changes]


def watching(**arguments):
    return Watching(
        SQLUpdatedAtTrigger(
            asset_name="rows",
            conn_id="db",
            table="events",
            start_from="beginning",
            poll_interval=0.05,
            commit_delay=0.05,
            late_arrival=0.1,
            where="note <> ':airflow' and id % 2 in (0, 1)",
            **arguments,
        )
    )


async def test_rows_and_their_later_versions_are_delivered_page_by_page(execute):
    for number in range(8):
        execute(INSERT, number, f"{number}%", NOON + number // 3 * SECOND)
    async with watching(payload="rows", primary_key="id", columns=["note"], null_cursor="error") as found:
        await found.until(*range(8))
        assert {change["key"]["id"]: change["row"]["note"] for change in found.changes} == {
            number: f"{number}%" for number in range(8)
        }
        execute(UPDATE, "new", datetime.now(UTC), 5)
        await found.until(*range(8), 5)
        assert found.changes[-1]["row"]["note"] == "new"


async def test_windows_have_the_rows_between_their_bounds(execute):
    for number in range(8):
        execute(INSERT, number, "old", NOON + number // 3 * SECOND)
    async with watching(max_rows_per_event=4) as found:
        await found.until_events(2)
        execute(UPDATE, "new", NOON + 9 * SECOND, 5)
        await found.until_events(3)
    assert [event["count"] for event in found.events] == [6, 2, 1]
    bounds = [(event["watermark"]["low"], event["watermark"]["high"]) for event in found.events]
    assert bounds[0][1] == bounds[1][0]
    assert bounds[1][1] == bounds[2][0]
