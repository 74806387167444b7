"""What is watched (names, views, queries, predicates), what rows carry, how much fits into an event."""

# ruff: noqa: S608 (the names of tables are our own)

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from airflow.providers.watermark.values import Interval, Range
from tests.databases.running import Running, make_trigger, running

HARD_NAMES = {
    "mixed case": ("Orders", "updatedAt", "Id"),
    "reserved words": ("select", "order", "user"),
    "spaces": ("my orders", "updated at", "order no"),
    "quotes": ('"my ""orders"""', 'at "the" time', 'it"s'),
    "dots": ('"a.b"', "c.d", "e.f"),
    "percent and colon": ("100%", "a%s:b", "%(id)s"),
    "not ASCII": ("Aufträge", "geändert", "schlüssel"),
}


def quoted(name):
    inner = name[1:-1] if name.startswith('"') else name.replace('"', '""')
    return f'"{inner}"'


class TestNames:
    @pytest.mark.parametrize("names", HARD_NAMES.values(), ids=HARD_NAMES.keys())
    @pytest.mark.parametrize("payload", ["window", "rows"])
    async def test_may_be_anything(self, server, conn_id, names, payload):
        table, cursor, key = names
        with server.connect() as connection:
            connection.execute(
                f"create table {quoted(table)} ({quoted(key)} int primary key, {quoted(cursor)} timestamptz)"
            )
            connection.execute(f"insert into {quoted(table)} values (1, now()), (2, now())")
        arguments = {"table": table, "cursor_column": cursor, "primary_key": key, "payload": payload}
        if payload == "rows":
            arguments["columns"] = [key]
        async with running(conn_id, **arguments) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 2)
            if payload == "rows":
                assert [dict(change.key) for change in watcher.changes] == [{key: 1}, {key: 2}]
                assert [dict(change.row) for change in watcher.changes] == [{key: 1}, {key: 2}]

    async def test_may_name_a_schema(self, server, conn_id):
        server.execute('create schema "Sales Dept"')
        server.execute('create table "Sales Dept".events (id int primary key, updated_at timestamptz)')
        try:
            server.execute('insert into "Sales Dept".events values (1, now())')
            async with running(conn_id, table="Sales Dept.events", payload="keys") as watcher:
                await watcher.until(lambda watcher: watcher.keys == [1])
        finally:
            server.execute('drop schema "Sales Dept" cascade')


class TestWhatIsWatched:
    @pytest.fixture(autouse=True)
    def table(self, server):
        server.execute("create table events (id int primary key, kind text, updated_at timestamptz)")
        for id_, kind in enumerate(("100%:a", "b", "100%:c"), start=1):
            server.execute("insert into events values (%s, %s, now())", [id_, kind])

    async def test_may_be_a_view(self, server, conn_id):
        server.execute("create view seen as select id as number, updated_at as at from events where id > 1")
        arguments = {"table": "seen", "cursor_column": "at", "primary_key": "number"}
        for payload in ("window", "keys"):
            async with running(conn_id, payload=payload, **arguments) as watcher:
                await watcher.until(lambda watcher: watcher.rows == 2)

    @pytest.mark.parametrize(
        "query",
        [
            "select * from events",
            "SELECT * FROM events;\n",
            "select * from events -- all of them; :really",
            "select id, kind::text, updated_at from events /* 100%s :x */ where kind <> ':nobody'",
            "with e as (select * from events) select * from e where kind not like '%:z%' and 7 % 2 = 1",
            "select e.* from events e join events f using (id) order by e.id",
            "select * from events where kind = any ('{100%:a,b,100%:c}') and not '[]'::jsonb ? 'a'",
        ],
    )
    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_may_be_a_query(self, conn_id, query, payload):
        async with running(conn_id, query=query, primary_key="id", payload=payload) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 3)

    @pytest.mark.parametrize(
        "where",
        [
            "kind like '100%'",
            "kind like '%:%' -- not b",
            "kind::text <> 'b' or false",
            "id % 2 = 1",
            r"kind ~ '^\d+%:'",
        ],
    )
    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_may_be_narrowed(self, conn_id, where, payload):
        async with running(conn_id, where=where, payload=payload) as watcher:
            await watcher.until(lambda watcher: watcher.rows >= 2)
            await watcher.sweeps(2)
            assert watcher.rows == 2


class TestTies:
    """A bulk update stamps all of its rows alike."""

    @pytest.fixture(autouse=True)
    def table(self, server):
        server.execute("create table events (id int primary key, updated_at timestamptz, payload text)")
        server.execute("insert into events select n, now(), repeat('x', 100) from generate_series(1, 2500) n")

    async def test_are_never_cut_by_a_window(self, server, conn_id):
        server.execute("insert into events select n, now() from generate_series(3001, 3010) n")
        async with running(conn_id, max_rows_per_event=100) as watcher:
            await watcher.until(lambda watcher: watcher.rows >= 2510)
            assert [window.count for window in watcher.windows] == [2500, 10]

    @pytest.mark.parametrize("payload", ["keys", "rows"])
    @pytest.mark.parametrize("limit", [7, 1000, 1001])
    async def test_are_cut_by_key_when_rows_are_delivered(self, conn_id, payload, limit):
        arguments = {"columns": ["payload"]} if payload == "rows" else {}
        arguments |= {"max_rows_per_event": limit, "max_event_bytes": 8192 if limit == 7 else 10**6}
        async with running(conn_id, payload=payload, **arguments) as watcher:
            await watcher.until(lambda watcher: watcher.rows >= 2500)
            await watcher.sweeps(2)
            assert watcher.keys == list(range(1, 2501))
            assert max(payload["count"] for payload in watcher.payloads) == limit

    async def test_of_a_row_that_is_cut_off_between_two_events_go_on_after_a_restart(self, conn_id):
        trigger = make_trigger(conn_id, payload="keys", max_rows_per_event=50, late_arrival=60)
        async with Running(trigger) as watcher:
            await watcher.until(lambda watcher: watcher.rows >= 1000)
        async with Running(trigger, watcher.store) as again:
            await again.until(lambda again: again.keys[-1:] == [2500])
            keys = [*watcher.keys, *again.keys]
            assert sorted(set(keys)) == list(range(1, 2501))
            await again.stored(lambda state: len(state.seen) == 2500)
        async with Running(trigger, watcher.store) as third:
            await third.sweeps(2)
            assert third.keys == []


class TestALargeRow:
    async def test_comes_with_its_key_only_and_is_marked(self, server, conn_id):
        server.execute("create table events (id int primary key, updated_at timestamptz, payload text)")
        # Six bytes each, the last ones, as JSON.
        for id_, text in enumerate(("a", "x" * 100_000, "c", "\u2603" * 2000), start=1):
            server.execute("insert into events values (%s, now(), %s)", [id_, text])
        arguments = {"payload": "rows", "columns": ["id", "payload"], "max_event_bytes": 8192}
        # What is settled is not looked at again, however it is changed.
        async with running(conn_id, late_arrival=60.0, **arguments) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 4)
            assert [change.truncated for change in watcher.changes] == [False, True, False, True]
            rows = [change.row for change in watcher.changes]
            assert rows == [{"id": 1, "payload": "a"}, None, {"id": 3, "payload": "c"}, None]
            assert max(len(json.dumps(payload)) for payload in watcher.payloads) <= 8192
            server.execute("update events set payload = repeat('y', 100000) where id = 2")  # the stamp stays
            await watcher.until(lambda watcher: watcher.rows == 5)
            assert watcher.changes[-1].id != watcher.changes[1].id


LONG = "123456789012345678901234567890.1234567890"
NOON = datetime(2026, 2, 28, 12, 34, 56, 789012, tzinfo=UTC)
HOUR = 3_600_000_000
BERLIN = timezone(timedelta(hours=1))
VALUES = {
    "boolean": ("true", True),
    "smallint": ("-32768", -32768),
    "bigint": ("9223372036854775807", 2**63 - 1),
    "numeric": (f"{LONG}::numeric", Decimal(LONG)),
    "numeric scale": ("1.10::numeric", Decimal("1.10")),
    "numeric NaN": ("'NaN'::numeric", Decimal("NaN")),
    "numeric infinity": ("'-Infinity'::numeric", Decimal("-Infinity")),
    "real": ("0.5::real", 0.5),
    "double": ("0.1::float8", 0.1),
    "double NaN": ("'NaN'::float8", math.nan),
    "double infinity": ("'Infinity'::float8", math.inf),
    "text": ("E'\u00e9\u2603\U0001f600\\n\\t\\\\'", "\u00e9\u2603\U0001f600\n\t\\"),
    "date": ("'2026-02-28'::date", date(2026, 2, 28)),
    "date infinity": ("'infinity'::date", date.max),
    "time": ("'12:34:56.789012'::time", time(12, 34, 56, 789012)),
    "timetz": ("'12:34:56+01'::timetz", time(12, 34, 56, tzinfo=BERLIN)),
    "timestamp": ("'2026-02-28 12:34:56.789012'::timestamp", NOON.replace(tzinfo=None)),
    "timestamptz": ("'2026-02-28 13:34:56.789012+01'::timestamptz", NOON),
    "interval": ("'400 days 1 hour 2.5 seconds'::interval", timedelta(days=400, hours=1, seconds=2.5)),
    "interval back": ("'-3 hours'::interval", timedelta(hours=-3)),
    "interval of months": ("'1 year 2 months 3 days 4 hours'::interval", Interval(14, 3, 4 * HOUR)),
    "interval of a month": ("'1 month'::interval", Interval(1, 0, 0)),
    "interval of 24 hours": ("'24:00:00'::interval", Interval(0, 0, 24 * HOUR)),
    "interval of two signs": ("'1 day -1 hour'::interval", Interval(0, 1, -HOUR)),
    "intervals": ("array['1 day', '1 month', null]::interval[]", [timedelta(1), Interval(1, 0, 0), None]),
    "uuid": ("'00000000-0000-0000-0000-00000000000a'::uuid", UUID(int=10)),
    "bytea": (r"'\x00ff10'::bytea", b"\x00\xff\x10"),
    "json": ("""'{"a": [1, null, "b"]}'::json""", '{"a": [1, null, "b"]}'),
    "jsonb": ("""'{"a": 1}'::jsonb""", '{"a": 1}'),
    "integers": ("array[1, null, 3]", [1, None, 3]),
    "matrix": ("array[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
    "numerics": ("array[1.5, 'NaN']::numeric[]", [Decimal("1.5"), Decimal("NaN")]),
    "range": ("'[1,5)'::int4range", Range(1, 5, "[)")),
    "open range": ("'(,2026-01-01]'::daterange", Range(None, date(2026, 1, 2), "()")),
    "empty range": ("'empty'::numrange", Range(None, None, "empty")),
    "polygon": ("'((1,2),(3,4))'::polygon", {"closed": True, "points": [[1.0, 2.0], [3.0, 4.0]]}),
    "paths": ("array['[(1,2)]'::path]", [{"closed": False, "points": [[1.0, 2.0]]}]),
    "circle": ("'<(1,2),3>'::circle", [[1.0, 2.0], 3.0]),
    "timestamp range": (
        "'[2026-01-01 00:00+00, infinity)'::tstzrange",
        Range(datetime(2026, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), "[)"),
    ),
    "inet": ("'10.0.0.1/8'::inet", "10.0.0.1/8"),
    "address": ("'10.0.0.1'::inet", "10.0.0.1"),
    "cidr": ("'10.0.0.0/8'::cidr", "10.0.0.0/8"),
    "mac address": ("'08:00:2b:01:02:03'::macaddr", "08:00:2b:01:02:03"),
    "bits": ("b'101'::bit(3)", "101"),
    "null": ("null::text", None),
    "oid": ("'4294967295'::oid", 2**32 - 1),
    "xml": ("'<a/>'::xml", "<a/>"),
    "full text": ("'a b'::tsvector", "'a' 'b'"),
}


@pytest.mark.parametrize(("literal", "value"), VALUES.values(), ids=VALUES.keys())
async def test_a_value_comes_back_as_it_was(server, conn_id, literal, value):
    server.execute("create table source (id int primary key, updated_at timestamptz)")
    server.execute("insert into source values (1, now())")
    query = f"select *, {literal} as value from source"
    arguments = {"query": query, "primary_key": "id", "payload": "rows", "columns": ["value"]}
    async with running(conn_id, **arguments) as watcher:
        await watcher.until(lambda watcher: watcher.rows)
        (change,) = watcher.changes
        assert repr(change.row["value"]) == repr(value)
