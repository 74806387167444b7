"""Watch a table, a view or a query with a column that grows when a row is inserted or changed."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, ClassVar, Final
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from airflow.providers.watermark.change import HighWatermark, Page, Window, digest
from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    PositionTypeError,
    SourceError,
    StateError,
)
from airflow.providers.watermark.position import (
    BEGINNING,
    Position,
    decode_position,
    floor_timestamp,
    is_after,
    position_type,
)
from airflow.providers.watermark.sql.query import Question, WatchedQuery, split_name
from airflow.providers.watermark.sql.rows import RowChanges, read_position
from airflow.providers.watermark.sql.settling import History, local_floor
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.watermark import Sweep, WatermarkState

__all__ = ["SQLUpdatedAtTrigger"]

PAGE_SIZE: Final = 1000
"""Rows that are read, and held in memory, at a time."""

FIRST_PAGE_SIZE: Final = 50
"""The same where rows may be long, until it is known how long they are."""

PAGE_BYTES: Final = 4_194_304
"""Bytes of texts and the like that a page should not have more of."""

SLICE_SIZE: Final = 100
"""Rows that are made ready at a time, before the event loop has its turn."""

LOOK_AGAIN: Final = 1.0
"""Seconds after which open transactions are looked at once more, where windows wait for them."""

LOOK_EVERY: Final = 10
"""Polls from one look for rows without a cursor, in the future or committed elsewhere to the next."""

MICROSECOND: Final = timedelta(microseconds=1)

_START_KINDS: Final = ("timestamp", "naive-timestamp", "date", "integer", "decimal", "uuid")
_KINDS: Final = frozenset((*_START_KINDS, "float", "string", "bytes"))
_CLOCKED: Final = frozenset({"timestamp", "naive-timestamp", "date"})
_MAX_COUNTED: Final = 1000


class SQLUpdatedAtTrigger(BaseWatermarkTrigger):
    """
    Deliver what is new in a table, a view or a query, by a column that grows with each insert or change.

    ``payload="window"``: an event says that the rows with ``low < cursor <= high`` are complete, and how many
    they are; the rows stay in the database. Windows are final, contiguous and disjoint: query exactly them
    (:func:`~airflow.providers.watermark.events.read_window`). ``payload="keys"`` and ``payload="rows"``: an
    event carries the changed keys, or rows, each version once, as soon as it is visible.

    On a Postgres primary the settled bound is exact, with no privilege needed: see
    :mod:`airflow.providers.watermark.sql.settling`. Elsewhere (a standby, a connection pooler, another
    database) it is the server's clock less ``late_arrival``: a row that is committed later than that after
    its stamp is lost, so set ``late_arrival`` above your longest transaction.

    A copy (a standby, a replica, a materialized view, a foreign or a subscribed table) may be behind by any
    time. So one is settled up to ``late_arrival`` before the last row that is there: however far it is
    behind, what comes in the order of commits is not lost, if ``late_arrival`` is above your longest
    transaction. What is final (windows, settled delivery), and what ``max_seen`` has no room for, waits for
    that time after the last row became visible, and no longer.

    Deletions are not delivered. A row that changes again before it settles is in a later window. Keys tell
    versions apart by the cursor alone: with a date, one a day. A cursor without a clock (a number, a text)
    must grow with each change: what comes later with a position that is settled is not news.

    Rows dated before the year 1, which Python has not, come first of all; those after 9999 wait for ever.
    Such a date in another column of ``payload="rows"`` stops reading, with an error, until it is corrected or
    the column is left out.

    :param conn_id: The Airflow connection. It needs ``SELECT`` on what is watched, and no more.
    :param table: The table or view: ``name`` or ``schema.name``; parts with dots or quotes in double quotes.
    :param query: A SELECT instead, without a semicolon or a parameter; it is wrapped as a derived table.
    :param cursor_column: The growing column. An index that begins with it keeps polls cheap.
    :param primary_key: The column, or columns, that tell rows apart; needed for keys and rows.
    :param where: A further predicate, in the database's SQL.
    :param payload: ``"window"``, ``"keys"`` or ``"rows"``.
    :param columns: The columns of ``payload="rows"`` beside the key and the cursor.
    :param max_rows_per_event: The most rows in one event, 1 to 1,000,000; a window has about that many, and
        never ends between rows with the same cursor. ``None`` means 500, and 100,000 for windows, which carry
        no rows: windows follow one another ``commit_delay`` and a little more apart.
    :param null_cursor: What to do about rows without a cursor, which cannot be delivered: ``"warn"``,
        ``"ignore"``, or ``"error"``, which delivers nothing until there are none.
    :param delivery: ``None`` means ``"settled"`` for windows, which take no other, and ``"eager"`` for keys
        and rows.
    :param start_from: ``"now"``, ``"beginning"``, or a position of the column's type, inclusive: an instant
        as ISO 8601 with a UTC offset, a date, a number, a uuid.
    :param cursor_timezone: The time zone of a cursor column without one, a date's as well, such as ``"UTC"``;
        needed for it: it tells which day or hour is over.
    :param ignore_roles: Login roles of Postgres that never write what is watched: their long transactions do
        not hold the settled bound back.
    :param max_bound_wait: Seconds after which the exact bound gives up waiting for open transactions, which
        may lose what they commit; ``None``: it never does.
    :param late_arrival: Seconds, above 0; ``None`` means 5 with the exact bound, for stamps that are made
        outside the database, and 60 without.

    See :class:`~airflow.providers.watermark.triggers.base.BaseWatermarkTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "sql"
    source_fields: ClassVar[tuple[str, ...]] = ("conn_id", "table", "query", "cursor_column", "where")

    conn_id: str = ""
    table: str | None = None
    query: str | None = None
    cursor_column: str = "updated_at"
    primary_key: str | list[str] | None = None
    where: str | None = None
    payload: str = "window"
    columns: list[str] = dataclasses.field(default_factory=list)
    max_rows_per_event: int | None = None
    null_cursor: str = "warn"
    cursor_timezone: str | None = None
    ignore_roles: list[str] = dataclasses.field(default_factory=list)
    max_bound_wait: float | None = None
    late_arrival: float | None = None  # type: ignore[assignment]
    delivery: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
        self._database: Any = None
        self._kind: str | None = None
        self._asked: WatchedQuery | None = None
        self._asked_kind: str | None = None
        self._polls = 0
        self._said_bound: str | None = None
        self._page_size = FIRST_PAGE_SIZE if self.payload == "rows" else PAGE_SIZE
        self._looks = True
        self._shown = History()

    # -- Arguments ------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The table, or what tells the query apart, as a URI."""
        if self.table is not None:
            return f"sql://{self.conn_id}/{self.table}"
        return f"sql://{self.conn_id}/query-{digest(str(self.query), str(self.where))}"

    @property
    def max_changes_per_event(self) -> int:
        """The most rows in one event."""
        if self.max_rows_per_event is not None:
            return self.max_rows_per_event
        return 100_000 if self.delivers_windows else 500

    @property
    def delivers_windows(self) -> bool:
        """Whether an event carries bounds rather than changes."""
        return self.payload == "window"

    @property
    def eager(self) -> bool:
        """Whether what is visible is delivered before it is settled."""
        return self.delivery == "eager" or (self.delivery is None and not self.delivers_windows)

    @property
    def window_column(self) -> str | None:
        """The cursor column, quoted for its database."""
        return self._query.quoted_cursor(self._database.dialect)

    @property
    def lateness(self) -> float:
        """``late_arrival``, or what stands for it."""
        if self.late_arrival is not None:
            return self.late_arrival
        return 5.0 if self._database is not None and self._database.exact else 60.0

    @property
    def key_columns(self) -> list[str]:
        """The primary key's columns."""
        if self.primary_key is None:
            return []
        return [self.primary_key] if isinstance(self.primary_key, str) else list(self.primary_key)

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from arguments.text("conn_id", self.conn_id)
        yield from self._source_problems()
        yield from arguments.text("cursor_column", self.cursor_column)
        yield from arguments.sql("where", self.where)
        yield from self._payload_problems()
        yield from arguments.choice("null_cursor", self.null_cursor, ("warn", "ignore", "error"))
        yield from arguments.flat_list("ignore_roles", self.ignore_roles)
        if self.max_rows_per_event is not None:
            yield from arguments.whole(
                "max_rows_per_event", self.max_rows_per_event, at_least=1, at_most=1_000_000
            )
        if self.max_bound_wait is not None:
            yield from arguments.number("max_bound_wait", self.max_bound_wait, above=0)
        if self.cursor_timezone is not None:
            problems = list(arguments.text("cursor_timezone", self.cursor_timezone))
            if not problems and self.cursor_timezone not in available_timezones():
                problems = [f"cursor_timezone={self.cursor_timezone!r}: must be a time zone such as 'UTC'"]
            yield from problems

    def _source_problems(self) -> Iterator[str]:
        if (self.table is None) == (self.query is None):
            yield f"table={self.table!r}, query={self.query!r}: exactly one of the two must be given"
        yield from arguments.sql("query", self.query)
        problems = list(arguments.text("table", self.table, optional=True))
        yield from problems
        if self.table is None or problems:
            return
        try:
            is_name = all(map(str.strip, split_name(self.table)))
        except ValueError:
            is_name = False
        if not is_name:
            has_database = len(list(filter(str.strip, self.table.split(".")))) > 2
            hint = "; the database is the connection's" if has_database else ""
            yield f"table={self.table!r}: must be a table's name, or schema.name{hint}"

    def _payload_problems(self) -> Iterator[str]:
        yield from arguments.choice("payload", self.payload, ("window", "keys", "rows"))
        yield from arguments.flat_list("columns", self.columns)
        if self.primary_key is not None:
            yield from arguments.flat_list("primary_key", self.primary_key, single=True)
        if self.payload in ("keys", "rows") and self.primary_key in (None, []):
            yield f"primary_key={self.primary_key!r}: must name the key for payload={self.payload!r}"
        if self.payload == "rows" and self.columns == []:
            yield f"columns={self.columns!r}: must name the columns to deliver for payload='rows'"
        if self.payload in ("window", "keys") and self.columns and isinstance(self.columns, list):
            yield f"columns={self.columns!r}: means nothing without payload='rows'"
        if self.delivers_windows and self.delivery == "eager":
            yield "delivery='eager': must be 'settled' for payload='window', whose windows are final"

    # -- The database ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and learn the types of the columns."""
        from airflow.providers.watermark.sql import open_database

        self._database = await open_database(
            self.conn_id,
            user=self.asset_name,
            ignore_roles=self.ignore_roles,
            max_bound_wait=self.max_bound_wait,
            log=self.log,
        )
        self._polls, self._shown = 0, History()
        await self._learn_kind()

    async def _learn_kind(self) -> None:
        try:
            kind = await self._database.kind(self._query)
        except PositionTypeError as error:
            raise self._no_cursor(str(error)) from error
        if kind is not None and kind not in _KINDS:
            raise self._no_cursor(f"its type is {kind}")
        self._kind = kind
        if self._kind == "string" and self._database.collation is None:
            msg = (
                f"{self.source}: the texts of {self.cursor_column!r} have another order in the database than "
                "that of code points; watch a column of another type"
            )
            raise ConfigurationError(msg)
        if self._kind in ("naive-timestamp", "date") and self.cursor_timezone is None:
            msg = (
                f"{self.source}: the column {self.cursor_column!r} has no time zone; set cursor_timezone to "
                "the one in which it is written, such as 'UTC'"
            )
            raise ConfigurationError(msg)

    def _no_cursor(self, why: str) -> ConfigurationError:
        msg = (
            f"{self.source}: the column {self.cursor_column!r} cannot be a cursor: {why}; name one of "
            "timestamps, dates, numbers, texts, uuids or bytes"
        )
        return ConfigurationError(msg)

    async def close(self) -> None:
        """Give the connection back."""
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    @property
    def _query(self) -> WatchedQuery:
        if self._asked is None or self._asked_kind != self._kind:
            self._asked, self._asked_kind = self._make_query(), self._kind
        return self._asked

    @property
    def _rows(self) -> RowChanges:
        return RowChanges(
            self._query,
            kind=self._kind,
            with_rows=self.payload == "rows",
            source=self.source,
            max_bytes=self.max_event_bytes,
        )

    def _make_query(self) -> WatchedQuery:
        return WatchedQuery(
            table=self.table,
            query=self.query,
            cursor_column=self.cursor_column,
            primary_key=tuple(self.key_columns),
            columns=tuple(self.columns) if self.payload == "rows" else (),
            where=self.where,
            collation=self._database.collation if self._kind == "string" else None,
            oldest=self._database.oldest if self._kind in _CLOCKED else None,
        )

    @property
    def facts(self) -> Mapping[str, str]:
        """Say where the settled bound comes from."""
        return {} if self._database is None else {"bound": self._database.describe()}

    # -- The two questions ----------------------------------------------------------------------------

    async def get_high_watermark(self) -> HighWatermark:
        """Ask how far the table is settled."""
        self._looks = self._polls % LOOK_EVERY == 0
        if self._looks:
            await self._database.find_origin(self._query)
        self._polls += 1
        await self._look_at_nulls()
        if self._kind is None:  # there was no row to tell it by
            await self._learn_kind()
        if self._kind is None:
            return HighWatermark(bound=BEGINNING)
        self._look_at_type()
        if self._kind not in _CLOCKED:
            highest = await self._database.settled_position(self._query, self.lateness)
            self._say_bound()
            return HighWatermark(bound=BEGINNING if highest is None else highest)
        now, settled = await self._settled_clock()
        bound = None if settled is None else self._local(_settled(settled, self.lateness))
        due = self._local(now)
        future = self._local(now + timedelta(seconds=self.lateness))
        if self._kind == "date":  # a day is over when it is over, and news until then
            day = timedelta(days=1)
            bound = None if bound is None else bound - day
            due, future = due + day, future + day
        if bound is not None and self._database.is_copy:
            bound = await self._shown_bound(bound, due, now)
        await self._look_at_future(future)
        self._say_bound()
        return HighWatermark(bound=BEGINNING if bound is None else bound, due=due, future=future, clock=now)

    async def _shown_bound(self, bound: Position, due: Position, now: datetime) -> Position | None:
        """
        Take a settled bound back to ``late_arrival`` before the last row that is visible.

        A copy that is behind looks like one of a table in which nothing happens. What is final, and what
        ``seen`` has no room for, waits for that time after the last row became visible, and not longer.
        """
        state = self._committer.committed if self._committer is not None else None
        low = BEGINNING if state is None else state.low
        highest = (await self._database.fetch(self._query.highest(before=due, low=low)))[0][0]
        if highest is None:
            return None if low is BEGINNING else low
        last = read_position(highest, self._kind)
        self._shown.add(now, last)
        has_rested = self._shown.before(now - timedelta(seconds=self.lateness)) == last
        is_full = state is not None and len(state.seen) >= self.max_seen
        if has_rested and (is_full or not self.eager):
            limit = last
        elif isinstance(last, datetime):
            limit = _minus(last, timedelta(seconds=self.lateness))
        else:  # what was written before midnight may come right after what was written then
            limit = _minus(last, timedelta(days=1 if has_rested else 2))
        return limit if is_after(bound, limit) else bound

    def _say_bound(self) -> None:
        """Say where the settled bound comes from, now that it is known, and again if that changes."""
        if (bound := self._database.describe()) != self._said_bound:
            self._said_bound = bound
            self.log.info("The settled bound is %s", bound)

    async def _settled_clock(self) -> tuple[datetime, datetime | None]:
        found: tuple[datetime, datetime | None] = await self._database.settled_clock()
        if self.delivers_windows and self._database.waits:
            # On a busy server some transaction is always open. Most are over soon, so that a window need not
            # wait for the next poll.
            await asyncio.sleep(min(LOOK_AGAIN, self.poll_interval))
            found = await self._database.settled_clock()
        return found

    async def first_position(self, bounds: HighWatermark) -> Position:
        """Give the low watermark that ``start_from`` asks for."""
        if self.start_from != "now":
            if self._kind is None:
                msg = (
                    f"{self.source}: there is no row yet to tell the type of {self.cursor_column!r} by, so "
                    f"start_from={self.start_from!r} cannot be read; watching begins with the first row"
                )
                raise SourceError(msg)
            return _before(self.start_position(self.start_from))
        if isinstance(bounds.due, datetime):
            return await super().first_position(bounds)
        if isinstance(bounds.due, date):
            return _before(_before(bounds.due))  # today is delivered: it is not over yet
        if self._kind is None:  # there was no row yet: all is news
            return BEGINNING
        highest = (await self._database.fetch(self._query.highest()))[0][0]
        if highest is None:
            return BEGINNING
        if not self.eager:
            return highest  # type: ignore[no-any-return]
        # Another row may still come with the very same position: those that are there now are told apart.
        before = (await self._database.fetch(self._query.highest(before=highest)))[0][0]
        return BEGINNING if before is None else before

    async def first_seen(self, low: Position) -> Mapping[str, Position]:
        """Name the rows that have the highest position, where positions have no clock."""
        if self.start_from != "now" or not self.eager or self._kind is None or self._kind in _CLOCKED:
            return {}
        rows = await self._database.fetch(self._query.page(low, after=None, before=None, limit=self.max_seen))
        sweep = Sweep(WatermarkState(source={}, low=low), HighWatermark(bound=BEGINNING), 0)
        return {change.id: change.position for change in self._rows.news(rows, sweep)} if rows else {}

    def start_position(self, start: str) -> Position:
        """Read a ``start_from``: by the column's type, or while that is not known by any that it may have."""
        kinds = _START_KINDS if self._kind is None else (self._kind,)
        for kind in kinds:
            try:
                if kind == "naive-timestamp":
                    moment = datetime.fromisoformat(start)
                    return moment if moment.tzinfo is None else self._local(moment)
                return decode_position({"type": kind, "value": start})
            except (ValueError, StateError):
                continue
        if self._kind is None:
            raise ValueError(start)
        msg = (
            f"{self.source}: start_from={start!r} is no position of {self.cursor_column!r}, whose type is "
            f"{self._kind}{'; write it like 2026-03-01T12:00:00Z' if self._kind == 'timestamp' else ''}"
        )
        raise ConfigurationError(msg)

    def _local(self, instant: datetime) -> Any:
        """Give an instant as the column would have it."""
        if self._kind == "timestamp":
            return instant
        local = local_floor(instant, ZoneInfo(self.cursor_timezone or "UTC"))
        return local if self._kind == "naive-timestamp" else local.date()

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        """Find the next rows that are final, or count those of an intended window."""
        query, database, limit = self._query, self._database, self.max_changes_per_event
        if high is not None:
            return Window(high=high, count=(await database.fetch(query.count(low, high)))[0][0])
        if not is_after(bound, low):
            return None
        found = await database.fetch(query.window(low, bound, limit))
        if not found:
            return None
        count, last = found[0][0], read_position(found[0][1], self._kind)
        if not is_after(last, low) and isinstance(last, datetime):
            last = last + MICROSECOND  # the column is finer than a datetime
        if count == limit:  # the last row may have ties behind the limit
            count = (await database.fetch(query.count(low, last)))[0][0]
        return Window(high=last, count=count)

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """Read rows in the order of (cursor, primary key), page by page."""
        if self._kind is None:
            return  # what has come since the bound was asked for waits for the next, which knows the type
        query, database = self._query, self._database
        after: Any = sweep.cursor
        limit = self._page_size
        before = self._upper_bound(sweep)
        if query.oldest is not None and sweep.low is BEGINNING and (after is None or _is_first(after[0])):
            async for page in self._read_ancient(sweep):
                yield page
            after = None
        while True:
            if after is not None:
                await self._require_keys(query.keyless(after[0]))
            rows = await database.fetch(query.page(sweep.low, after=after, before=before, limit=limit))
            is_last, limit = len(rows) < limit, self._next_page_size(rows, limit)
            for start in range(0, len(rows), SLICE_SIZE):
                part = rows[start : start + SLICE_SIZE]
                after = self._place(read_position(part[-1][0], self._kind), part)
                yield Page(changes=self._rows.news(part, sweep), cursor=after)
                await asyncio.sleep(0)
            if is_last:
                return

    def _next_page_size(self, rows: Sequence[Sequence[Any]], limit: int) -> int:
        """Choose how many rows to read next, by the bytes that the last ones had: memory is bounded."""
        size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        if size > PAGE_BYTES:
            self._page_size = max(1, limit * PAGE_BYTES // size)
        elif len(rows) == limit:
            self._page_size = min(PAGE_SIZE, 4 * limit)
        return self._page_size

    async def _require_keys(self, question: Question) -> None:
        """
        Check that no row is hidden by a key that is NULL: such a one comes neither before nor after others.

        :raises ConfigurationError: There is one.
        """
        if await self._database.fetch(question):
            raise self._no_key("is NULL in some rows")

    def _place(self, position: Any, rows: Sequence[Sequence[Any]]) -> Any:
        """
        Give the place behind some rows, as a position.

        :raises ConfigurationError: A key can be none.
        """
        width = 1 + len(self._query.primary_key)
        if any(None in row[1:width] for row in rows):
            raise self._no_key("is NULL in some rows")
        place = (position, *rows[-1][1:width])
        try:
            position_type(place)
        except PositionTypeError as error:
            raise self._no_key(f"cannot tell rows apart: {error}") from error
        return place

    def _no_key(self, why: str) -> ConfigurationError:
        msg = (
            f"{self.source}: primary_key={self.primary_key!r} {why}; name columns of numbers, texts, uuids, "
            "bytes or times that are never NULL, or leave those rows out by where"
        )
        return ConfigurationError(msg)

    async def _read_ancient(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """
        Read rows that are dated before the year 1, which Python has not.

        They all have the first position of all, and so are read in the order of their keys.
        """
        first: Any = date.min if self._kind == "date" else read_position(datetime.min, self._kind)  # noqa: DTZ901
        key = None if sweep.cursor is None else sweep.cursor[1:]  # type: ignore[index]
        count = 0
        while True:
            if key is not None:
                await self._require_keys(self._query.keyless(None))
            found = await self._database.fetch(self._query.ancient(after=key, limit=SLICE_SIZE))
            rows = [(first, *row) for row in found]
            if rows:
                place = self._place(first, rows)
                count, key = count + len(rows), place[1:]
                yield Page(changes=self._rows.news(rows, sweep), cursor=place)
            if len(rows) < SLICE_SIZE:
                break
        text = f"{count} rows are dated before the year 1; in events they have the cursor {first}"
        self.say_once("ancient", count > 0 and text)

    @staticmethod
    def _upper_bound(sweep: Sweep) -> Any:
        """Give the position before which rows are read: those dated after 9999 could not be."""
        high: Any = sweep.high
        if sweep.due is None or is_after(sweep.due, high):
            return sweep.due
        # What is settled never waits, whatever the clock says now: the next sweep would not look for it.
        return high + (MICROSECOND if isinstance(high, datetime) else timedelta(days=1))

    def _look_at_type(self) -> None:
        state = self._committer.committed if self._committer is not None else None
        if state is None:
            return
        known = (state.low, state.high, *list(state.seen.values())[:1])
        stored = {position_type(each) for each in known if each is not None} - {"beginning", self._kind}
        if stored:
            msg = (
                f"{self.source}: the stored watermark has the type {stored.pop()}, but the column "
                f"{self.cursor_column!r} has the type {self._kind}; reset the watermark, or change the "
                "column back"
            )
            raise PositionTypeError(msg)

    async def _look_at_future(self, future: Position) -> None:
        if not self._looks:
            return
        count = (await self._database.fetch(self._query.ahead(future, _MAX_COUNTED)))[0][0]
        many = f"{count} rows" if count < _MAX_COUNTED else f"{_MAX_COUNTED} rows or more"
        self.say_once("ahead", count > 0 and f"{many} are dated in the future and wait until then")

    async def _look_at_nulls(self) -> None:
        if self.null_cursor == "ignore" or not (self._looks or self.null_cursor == "error"):
            return
        count = (await self._database.fetch(self._query.nulls(_MAX_COUNTED)))[0][0]
        many = f"{count} rows" if count < _MAX_COUNTED else f"{_MAX_COUNTED} rows or more"
        text = (
            f"{self.source}: {many} have no {self.cursor_column!r} and cannot be delivered; fill it in, or "
            "set null_cursor='ignore'"
        )
        if count and self.null_cursor == "error":
            raise ConfigurationError(text)
        self.say_once("nulls", count > 0 and text)


def _is_first(position: Position) -> bool:
    """Tell whether a position is the first of all times."""
    return position == date.min or position in (datetime.min, datetime.min.replace(tzinfo=UTC))  # noqa: DTZ901


def _minus(position: Any, span: timedelta) -> Position:
    try:
        return position - span  # type: ignore[no-any-return]
    except OverflowError:
        return BEGINNING


def _settled(clock: datetime, lateness: float) -> datetime:
    """Give the settled bound: no second that is not over is in it, since the column may have whole ones."""
    over = floor_timestamp(clock, timedelta(seconds=1)) - MICROSECOND
    return min(clock - timedelta(seconds=lateness), over)


def _before(position: Position) -> Position:
    """Give the position before, where there is one; else what is at it counts as old."""
    try:
        match position:
            case datetime():
                return position - MICROSECOND
            case date():
                return position - timedelta(days=1)
            case int():
                return position - 1
            case float():
                return math.nextafter(position, -math.inf)
            case Decimal() if position.is_finite():
                # A column may have any number of digits: what lies between is delivered, too.
                _, digits, exponent = position.as_tuple()
                step = Decimal(1).scaleb(min(int(exponent), 0) - 10)
                return Context(prec=len(digits) + abs(int(exponent)) + 12).subtract(position, step)
            case UUID() if position.int:
                return UUID(int=position.int - 1)
    except OverflowError:
        return BEGINNING
    return position
