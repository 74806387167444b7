"""Every type that a cursor column of Postgres may have, and every value of it."""

# ruff: noqa: S608 (the names of tables are our own)

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from airflow.providers.watermark.position import BEGINNING
from tests.databases.running import Running, eventually, make_trigger, running


class Case(NamedTuple):
    """A type with values in rising order, the first three equal; and one that is above all of them."""

    type: str
    values: tuple[Any, ...]
    next: Any
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    @property
    def has_clock(self) -> bool:
        return isinstance(self.next, date)


MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = MIDNIGHT.replace(tzinfo=None)

CASES = {
    "timestamptz": Case(
        "timestamptz",
        (*[MIDNIGHT] * 3, MIDNIGHT + timedelta(microseconds=1), MIDNIGHT + timedelta(days=1)),
        MIDNIGHT + timedelta(days=2),
    ),
    "timestamp": Case(
        "timestamp",
        (*[NAIVE] * 3, NAIVE + timedelta(microseconds=1), NAIVE + timedelta(days=1)),
        NAIVE + timedelta(days=2),
        {"cursor_timezone": "Europe/Berlin"},
    ),
    "date": Case(
        "date",
        (*[date(2026, 1, 1)] * 3, date(2026, 1, 2), date(2026, 1, 3)),
        date(2026, 1, 4),
        {"cursor_timezone": "UTC"},
    ),
    "smallint": Case("smallint", (*[-7] * 3, 0, 32766), 32767),
    "bigint": Case("bigint", (*[-(2**63)] * 3, 0, 2**63 - 2), 2**63 - 1),
    "numeric": Case(
        "numeric",
        (*[Decimal("-1.10")] * 3, Decimal(0), Decimal("123456789012345678901234567890.123456789")),
        Decimal("1e40"),
    ),
    "double precision": Case("double precision", (*[-0.5] * 3, 0.1, 1e300), 1.5e300),
    "text": Case("text", (*[""] * 3, "B", "a"), "é"),
    "varchar": Case("varchar(20)", (*["10"] * 3, "9", "z'; --"), "Ω\U0001f600"),
    "uuid": Case("uuid", (*[UUID(int=1)] * 3, UUID(int=2**64), UUID(int=2**127)), UUID(int=2**128 - 1)),
    "bytea": Case("bytea", (*[b""] * 3, b"\x00", b"\xff"), b"\xff\x00"),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request, server):
    case = request.param
    server.execute(f"create table events (id bigint primary key, updated_at {case.type})")
    server.execute("create index on events (updated_at, id)")
    for id_, value in enumerate(case.values, start=1):
        server.execute("insert into events values (%s, %s)", [id_, value])
    return case


class TestEveryType:
    async def test_is_delivered_once_in_order_and_comes_back_typed(self, server, conn_id, case):
        arguments = {"payload": "rows", "columns": ["updated_at"], "max_rows_per_event": 2, **case.arguments}
        trigger = make_trigger(conn_id, **arguments)
        async with Running(trigger) as watcher:
            await watcher.until(lambda watcher: len(watcher.keys) >= 5)
            await watcher.sweeps(3)
            assert watcher.keys == [1, 2, 3, 4, 5]
            assert [change.cursor for change in watcher.changes] == list(case.values)
            assert [change.row["updated_at"] for change in watcher.changes] == list(case.values)
            assert {type(change.cursor) for change in watcher.changes} == {type(case.next)}
            await asyncio.sleep(0.3)  # what was delivered is committed
        async with Running(trigger, watcher.store) as again:
            await again.sweeps(3)
            assert again.keys == []
            # By a clock all of the past is settled meanwhile.
            news = datetime.now(ZoneInfo("Europe/Berlin")) if case.has_clock else case.next
            news = news.replace(tzinfo=None) if case.type == "timestamp" else news
            server.execute("insert into events values (6, %s)", [news])
            await again.until(lambda again: again.keys)
            assert again.keys == [6]
            assert again.errors == []

    async def test_is_cut_into_windows_that_never_end_within_a_tie(self, server, conn_id, case):
        trigger = make_trigger(conn_id, max_rows_per_event=2, **case.arguments)
        async with Running(trigger) as watcher:
            await watcher.until(lambda watcher: watcher.rows >= 5)
            windows = watcher.windows
            assert [window.count for window in windows] == [3, 2]
            assert windows[0].low is BEGINNING
            assert [window.high for window in windows] == [case.values[2], case.values[4]]
            await asyncio.sleep(0.3)
        async with Running(trigger, watcher.store) as again:
            server.execute("insert into events values (6, %s)", [case.next])
            await again.until(lambda again: again.windows)
            assert again.windows == [(case.values[4], case.next, 1)]
            assert again.errors == []

    async def test_from_now_delivers_only_what_comes_after(self, server, conn_id, case):
        if case.has_clock:
            pytest.skip("of a clock, later means by the clock")
        async with running(conn_id, payload="keys", start_from="now") as watcher:
            await watcher.sweeps(3)
            server.execute("insert into events values (6, %s)", [case.next])
            await watcher.until(lambda watcher: watcher.keys)
            assert watcher.keys == [6]

    async def test_from_a_position_delivers_what_comes_at_or_after_it(self, conn_id, case):
        if isinstance(case.next, str | bytes):
            pytest.skip("no text and no bytes come right before others")
        start = case.values[3]
        text = start.isoformat() if isinstance(start, date) else str(start)
        arguments = {"payload": "keys", "start_from": text, **case.arguments}
        async with running(conn_id, **arguments) as watcher:
            await watcher.until(lambda watcher: len(watcher.keys) >= 2)
            assert watcher.keys == [4, 5]


class TestTimes:
    @pytest.fixture(autouse=True)
    def table(self, server):
        server.execute("create table events (id bigint primary key, updated_at timestamptz)")

    @pytest.mark.parametrize("value", ["infinity", "9999-12-31 23:59:59.999999+00", "294276-01-01"])
    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_of_the_far_future_wait_are_told_and_freeze_nothing(self, server, conn_id, payload, value):
        server.execute("insert into events values (1, %s)", [value])
        async with running(conn_id, payload=payload) as watcher:
            for id_ in (2, 3):
                server.execute("insert into events values (%s, now())", [id_])
                await watcher.until(lambda watcher, rows=id_ - 1: watcher.rows >= rows)
            await watcher.sweeps(3)
            assert watcher.rows == 2
            assert watcher.errors == []
            assert [text for text in watcher.warnings if "future" in text][1:] == []
            assert "future" in watcher.warnings[0]

    async def test_of_minus_infinity_are_delivered(self, server, conn_id):
        server.execute("insert into events values (1, '-infinity'), (2, now())")
        async with running(conn_id, payload="keys") as watcher, running(conn_id) as windows:
            await watcher.until(lambda watcher: len(watcher.keys) == 2)
            await windows.until(lambda watcher: watcher.rows == 2)
            await watcher.sweeps(3)
            assert watcher.keys == [1, 2]

    async def test_before_christ_are_in_windows(self, server, conn_id):
        server.execute("insert into events values (1, '0044-03-15 BC'), (2, now())")
        async with running(conn_id) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 2)

    async def test_before_christ_alone_are_in_a_window_that_holds_them_all(self, server, conn_id):
        server.execute("insert into events values (1, '0044-03-15 BC'), (2, '-infinity')")
        async with running(conn_id, max_rows_per_event=2) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 2)
            server.execute("insert into events values (3, now())")
            await watcher.until(lambda watcher: watcher.rows == 3)
            first, second = watcher.windows
            assert server.execute("select count(*) from events where updated_at <= %s", [first.high]) == [
                (2,)
            ]
            assert (first.low, first.high) == (BEGINNING, second.low)
            assert watcher.errors == []

    @pytest.mark.parametrize("column", ["timestamptz", "timestamp", "date"])
    async def test_before_christ_come_as_the_first_of_all_which_is_said(self, server, conn_id, column):
        """Python has no such time. There are more of them than are read, or delivered, at a time."""
        server.execute(f"alter table events alter updated_at type {column}")
        before = f"('0044-03-15 BC'::date - n)::{column}"
        server.execute(f"insert into events select n, {before} from generate_series(1, 250) n")
        server.execute("insert into events values (251, '-infinity'), (252, '0001-01-01'), (253, now())")
        arguments = {"payload": "keys", "cursor_timezone": "UTC", "max_rows_per_event": 30}
        trigger = make_trigger(conn_id, **arguments)

        async def four(payload):
            if len(watcher.events) == 4:
                await asyncio.Event().wait()

        async with Running(trigger, on_event=four) as watcher:
            await watcher.until(lambda watcher: len(watcher.keys) == 120)
            await asyncio.sleep(0.3)  # they are committed, and no more
        async with Running(trigger, watcher.store) as again:
            await again.until(lambda again: again.keys and again.keys[-1] == 253)
            await again.sweeps(2)
            assert [*watcher.keys, *again.keys] == list(range(1, 254))
            assert {change.cursor.year for change in [*watcher.changes, *again.changes[:-1]]} == {1}
            (warning,) = [text for text in again.warnings if "before the year 1" in text]
            assert "132 rows are dated before the year 1" in warning
            assert again.errors == []

    async def test_after_9999_hide_nothing_that_is_settled(self, server, conn_id):
        server.execute("insert into events values (1, '10000-01-01'), (2, now()), (3, '294276-12-31')")
        async with running(conn_id, payload="keys", delivery="settled") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [2])
            await watcher.sweeps(2)
            assert watcher.errors == []
            assert ["2 rows are dated in the future" in text for text in watcher.warnings] == [True]

    @pytest.mark.parametrize("column", ["timestamp", "date"])
    async def test_without_a_zone_may_be_infinite_too(self, server, conn_id, column):
        server.execute(f"alter table events alter updated_at type {column}")
        server.execute("insert into events values (1, '-infinity'), (2, 'infinity'), (3, '2026-01-01')")
        arguments = {"payload": "keys", "cursor_timezone": "UTC"}
        window = {"cursor_timezone": "UTC"}
        async with running(conn_id, **arguments) as watcher, running(conn_id, **window) as windows:
            await watcher.until(lambda watcher: len(watcher.keys) == 2)
            await windows.until(lambda watcher: watcher.rows == 2)
            await watcher.sweeps(3)
            assert watcher.keys == [1, 3]
            assert watcher.errors == []

    @pytest.mark.parametrize("value", ["NaN", "Infinity"])
    async def test_numbers_that_are_none_are_a_clear_error(self, server, conn_id, value):
        server.execute("alter table events alter updated_at type numeric using null")
        server.execute("insert into events values (1, 1), (2, %s)", [value])
        async with running(conn_id, payload="keys") as watcher:
            error = await watcher.error("position")
            assert value.lower() in error.lower()
            server.execute("delete from events where id = 2")
            await watcher.until(lambda watcher: watcher.keys == [1])


class TestATimestampWithoutAZone:
    @pytest.mark.parametrize("column", ["timestamp", "date"])
    async def test_needs_cursor_timezone_and_says_so(self, server, conn_id, column):
        server.execute(f"create table events (id bigint primary key, updated_at {column})")
        async with running(conn_id) as watcher:
            error = await watcher.error("cursor_timezone")
            assert "'updated_at'" in error

    async def test_is_settled_by_the_time_of_its_zone(self, server, conn_id):
        server.execute("create table events (id bigint primary key, updated_at timestamp)")
        zone = "Pacific/Kiritimati"  # fourteen hours ahead
        async with running(conn_id, cursor_timezone=zone) as watcher:
            server.execute(f"insert into events values (1, now() at time zone '{zone}')")
            await watcher.until(lambda watcher: watcher.rows == 1)
            server.execute(f"insert into events values (2, now() at time zone '{zone}' + interval '1 hour')")
            server.execute(f"insert into events values (3, now() at time zone '{zone}')")
            await watcher.until(lambda watcher: watcher.rows == 2)
            await watcher.sweeps(3)
            assert watcher.rows == 2

    async def test_goes_through_the_hour_that_comes_twice(self, server, conn_id, monkeypatch):
        """The server's clock is moved to the night in which Berlin's clocks are put back."""
        from airflow.providers.watermark.sql.postgres import PostgresDatabase

        began = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)  # 02:30 in Berlin, for the first time
        shift = began - datetime.now(UTC)
        real = PostgresDatabase.clock_and_locks

        async def moved(database):
            now, busy = await real(database)
            return now + shift, busy

        monkeypatch.setattr(PostgresDatabase, "clock_and_locks", moved)

        def insert(id_):
            server.execute(
                "insert into events values (%s, (now() + %s) at time zone 'Europe/Berlin')", [id_, shift]
            )

        server.execute("create table events (id bigint primary key, updated_at timestamp)")
        zone = {"cursor_timezone": "Europe/Berlin"}
        async with running(conn_id, payload="keys", **zone) as eager, running(conn_id, **zone) as watcher:
            insert(1)
            await eager.sweeps(3)
            await watcher.sweeps(3)
            assert watcher.rows == 0  # what is stamped half an hour later may have an earlier stamp
            shift += timedelta(hours=1)  # 02:30 again
            insert(2)
            await watcher.until(lambda watcher: watcher.rows == 2)
            assert sorted(eager.keys) == [1, 2]
            shift += timedelta(minutes=45)  # 03:15
            insert(3)
            await eager.until(lambda watcher: len(watcher.keys) >= 3)
            await watcher.until(lambda watcher: watcher.rows >= 3)
            await eager.sweeps(3)
            assert sorted(eager.keys) == [1, 2, 3]
            assert watcher.rows == 3
            assert all(earlier.high == later.low for earlier, later in pairwise(watcher.windows))


class TestWholeSeconds:
    @pytest.mark.parametrize(
        "arguments", [{}, {"payload": "keys"}, {"payload": "keys", "delivery": "settled"}]
    )
    async def test_are_not_final_before_they_are_over(self, server, conn_id, arguments):
        """However short late_arrival is: a row may come with the same stamp until then."""
        server.execute("create table events (id bigint primary key, updated_at timestamptz)")
        async with running(conn_id, late_arrival=0.001, **arguments) as watcher:
            for id_ in range(1, 31):
                server.execute(
                    "insert into events values (%s, date_trunc('second', clock_timestamp()))", [id_]
                )
                await asyncio.sleep(0.1)
            await watcher.until(lambda watcher: watcher.rows >= 30)
            await watcher.sweeps(2)
            assert watcher.rows == 30
            for window in watcher.windows if not arguments else []:
                low = datetime.min.replace(tzinfo=UTC) if window.low is BEGINNING else window.low
                between = "select count(*) from events where updated_at > %s and updated_at <= %s"
                assert server.execute(between, [low, window.high]) == [(window.count,)]


class TestTies:
    @pytest.mark.parametrize("column", ["bigint", "numeric", "text"])
    @pytest.mark.parametrize("payload", ["keys", "rows"])
    async def test_with_the_highest_position_of_the_start_are_news(self, server, conn_id, column, payload):
        server.execute(f"create table events (id bigint primary key, updated_at {column})")
        server.execute("insert into events values (1, '7'), (2, '8'), (3, '8')")
        columns = ["id"] if payload == "rows" else []
        arguments = {"payload": payload, "columns": columns, "start_from": "now", "late_arrival": 1.0}
        async with running(conn_id, **arguments) as watcher:
            await watcher.sweeps(2)
            server.execute("insert into events values (4, '8')")
            await watcher.until(lambda watcher: watcher.keys)
            server.execute("insert into events values (5, '9')")
            await watcher.until(lambda watcher: len(watcher.keys) >= 2)
            await asyncio.sleep(1.0)
            await watcher.sweeps(2)
            assert watcher.keys == [4, 5]

    async def test_within_a_day_are_versions_of_a_row_only_where_rows_are_delivered(self, server, conn_id):
        server.execute("create table events (id bigint primary key, updated_at date, note text)")
        server.execute("insert into events values (1, current_date, 'a')")
        async with (
            running(conn_id, payload="keys", cursor_timezone="UTC") as keys,
            running(conn_id, payload="rows", columns=["note"], cursor_timezone="UTC") as rows,
        ):
            await rows.until(lambda watcher: watcher.keys == [1])
            await keys.until(lambda watcher: watcher.keys == [1])
            server.execute("update events set note = 'b'")
            await rows.until(lambda watcher: watcher.keys == [1, 1])
            await keys.sweeps(2)
            assert keys.keys == [1]


class TestRowsWithoutACursor:
    @pytest.fixture(autouse=True)
    def table(self, server):
        server.execute("create table events (id bigint primary key, updated_at timestamptz)")
        server.execute("insert into events values (1, null), (2, null), (3, now())")

    @pytest.mark.parametrize("payload", ["window", "keys"])
    async def test_are_counted_and_told_once_and_the_others_are_delivered(self, conn_id, payload):
        async with running(conn_id, payload=payload) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 1)
            await watcher.sweeps(3)
            (warning,) = watcher.warnings
            assert "2 rows have no 'updated_at'" in warning
            assert "null_cursor='ignore'" in warning

    async def test_may_be_ignored(self, conn_id):
        async with running(conn_id, payload="keys", null_cursor="ignore") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [3])
            assert watcher.warnings == []

    async def test_may_be_an_error_until_there_are_none(self, server, conn_id):
        async with running(conn_id, payload="keys", null_cursor="error") as watcher:
            await watcher.error("2 rows have no 'updated_at'")
            assert watcher.keys == []
            server.execute("update events set updated_at = now() where updated_at is null")
            await watcher.until(lambda watcher: len(watcher.keys) == 3)

    async def test_are_delivered_once_they_have_one(self, server, conn_id):
        async with running(conn_id, payload="keys") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [3])
            server.execute("update events set updated_at = now() where id = 1")
            await watcher.until(lambda watcher: watcher.keys == [3, 1])


class TestAColumnWhoseTypeWasChanged:
    @pytest.mark.parametrize("payload", ["window", "keys"])
    @pytest.mark.parametrize("held", [False, True], ids=["alone", "beside an open transaction"])
    async def test_is_a_clear_and_steady_error_that_moves_nothing(self, server, conn_id, payload, held):
        server.execute("create table events (id bigint primary key, updated_at bigint)")
        server.execute("insert into events values (1, 1)")
        trigger = make_trigger(conn_id, payload=payload)
        async with Running(trigger) as watcher:
            await watcher.until(lambda watcher: watcher.rows == 1)
            await asyncio.sleep(0.3)
            before = await watcher.state()
        server.execute("alter table events alter updated_at type timestamptz using to_timestamp(updated_at)")
        server.execute("insert into events values (2, now() - interval '1 hour')")
        with server.connect() as other:
            if held:
                other.execute("begin")
                other.execute("select now()")
            async with Running(trigger, watcher.store) as again:
                error = await again.error("has the type integer")
                assert "'updated_at' has the type timestamp" in error
                await asyncio.sleep(0.5)
                assert again.errors == [error]
                assert again.events == []
                assert (await again.state()).low == before.low

    async def test_while_it_is_watched_is_met_without_a_restart(self, server, conn_id):
        server.execute("create table events (id bigint primary key, updated_at timestamp)")
        server.execute("insert into events values (1, '2026-01-01')")
        async with running(conn_id, payload="keys", cursor_timezone="UTC") as watcher:
            await watcher.until(lambda watcher: watcher.keys == [1])
            server.execute("alter table events alter updated_at type timestamptz")
            server.execute("insert into events values (2, now())")
            await eventually(
                lambda: any("has the type timestamp;" in error for error in watcher.errors),
                lambda: watcher.errors,
            )
            server.execute("alter table events alter updated_at type timestamp")
            await watcher.until(lambda watcher: len(watcher.keys) > 1)
            assert watcher.keys == [1, 2]
            assert "Recovered" in watcher.messages(logging.INFO)[-1]
