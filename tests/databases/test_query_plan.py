"""With the index that the documentation asks for, a poll of a large table reads a few pages of it."""

# ruff: noqa: S608 (the names of tables are our own)

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.sql.query import WatchedQuery
from devtools.databases import postgres

ROWS = 1_000_000
NEWEST = datetime(2026, 1, 1, tzinfo=UTC)
TABLE = f"""
create table events (id bigint, updated_at timestamptz, payload text);
insert into events
    select n, '{NEWEST}'::timestamptz - ({ROWS} - n) * interval '1 second', repeat('x', 50)
    from generate_series(1, {ROWS}) n;
create index on events (updated_at, id);
vacuum (analyze) events;
"""
QUERY = WatchedQuery(
    table="events", query=None, cursor_column="updated_at", primary_key=("id",), columns=("payload",)
)
TOMORROW = NEWEST + timedelta(days=1)


@pytest.fixture(scope="module")
def large():
    with postgres() as database:
        for statement in TABLE.split(";")[:-1]:
            database.execute(statement)
        yield database


def buffers(database, question):
    """Explain a question as the watcher sends it, and count the pages that it touches."""
    from sqlalchemy.dialects.postgresql import psycopg

    compiled = question.statement.compile(
        dialect=psycopg.dialect(), compile_kwargs={"render_postcompile": True}
    )
    values = {name: question.values.get(name, value) for name, value in compiled.params.items()}
    with database.connect() as connection:
        connection.execute("set max_parallel_workers_per_gather = 0")
        explain = f"explain (analyze, buffers, format json) {compiled}"
        (plan,) = connection.execute(explain, values).fetchone()
    root = plan[0]["Plan"]
    return root["Shared Hit Blocks"] + root["Shared Read Blocks"]


QUESTIONS = {
    "an empty window": QUERY.window(NEWEST, TOMORROW, 500),
    "an empty page": QUERY.page(NEWEST, after=None, before=TOMORROW, limit=1000),
    "an empty page behind a key": QUERY.page(NEWEST, after=(NEWEST, ROWS), before=TOMORROW, limit=1000),
    "the count of an empty window": QUERY.count(NEWEST, TOMORROW),
    "rows without a cursor": QUERY.nulls(1000),
    "rows of the future": QUERY.ahead(TOMORROW, 1000),
    "the highest position": QUERY.highest(),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_reads_a_few_pages_where_there_is_nothing_new(large, question):
    assert buffers(large, question) <= 8


MIDDLE = NEWEST - timedelta(seconds=ROWS // 2)
BACKLOG = {
    "a window": (QUERY.window(MIDDLE, TOMORROW, 500), 20),
    "the first window": (QUERY.window(datetime.min.replace(tzinfo=UTC), TOMORROW, 500), 20),
    "a page": (QUERY.page(MIDDLE, after=None, before=TOMORROW, limit=1000), 60),
    "a page behind a key": (QUERY.page(MIDDLE, after=(MIDDLE, ROWS // 2), before=TOMORROW, limit=1000), 60),
}


@pytest.mark.parametrize(("question", "most"), BACKLOG.values(), ids=BACKLOG.keys())
def test_reads_no_more_of_a_backlog_than_it_delivers(large, question, most):
    assert buffers(large, question) <= most
