"""Reach Postgres through asyncpg, as the Airflow connection says."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.watermark.exceptions import ConfigurationError, SourceError
from airflow.providers.watermark.position import Position
from airflow.providers.watermark.sql.links import STATEMENT_TIMEOUT, PostgresLink
from airflow.providers.watermark.sql.query import BOUND
from airflow.providers.watermark.sql.settling import Barrier, BarrierPoint, History

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.engine import Dialect

    from airflow.providers.watermark.sql.query import Question, WatchedQuery

__all__ = ["PostgresDatabase"]

_SLOW_BARRIER: Final = 5.0
"""Seconds after which it is said who holds the barrier up."""

# One statement, for the sake of idle polls. It is received, which is its timestamp, before it looks at locks.
_CLOCK_AND_LOCKS: Final = """
SELECT pg_catalog.statement_timestamp(), EXISTS (
  SELECT FROM pg_catalog.pg_locks AS l WHERE l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid())
"""

# The sessions of other databases cannot write to this one's tables. Background workers of the server, such
# as autovacuum, have no role and stamp no rows. Whoever is not to be found in pg_stat_activity counts: it has
# just begun, is just ending, or is a prepared transaction, which has no session.
_OPEN_TRANSACTIONS: Final = """
WITH elsewhere AS (
  SELECT l.virtualtransaction
  FROM pg_catalog.pg_locks AS l
  JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = l.transactionid
  WHERE l.pid IS NULL AND p.database <> pg_catalog.current_database())
SELECT DISTINCT l.virtualtransaction
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.virtualtransaction IS NOT NULL
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND (a.pid IS NULL OR (
       a.datname = pg_catalog.current_database() AND a.usename IS NOT NULL AND a.usename <> ALL ($1::text[])))
  AND l.virtualtransaction NOT IN (SELECT virtualtransaction FROM elsewhere)
"""

_HOLDERS: Final = """
SELECT DISTINCT coalesce(
    'session ' || l.pid || ' of role ' || coalesce(a.usename, '?'),
    'prepared transaction ' || p.gid || ' of role ' || p.owner,
    'transaction ' || l.virtualtransaction)
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON l.pid IS NULL AND p.transaction = l.transactionid
WHERE l.virtualtransaction = ANY ($1::text[])
LIMIT 5
"""


# A query locks all that it reads, also through views and partitions. What is refreshed, replicated or read
# from another server was committed there, and appears here whenever that is over. A subscription may name the
# root of partitions.
_COMMITTED_ELSEWHERE: Final = """
SELECT pg_catalog.string_agg(DISTINCT c.oid::pg_catalog.regclass::text, ', ')
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_database AS d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.pid = pg_catalog.pg_backend_pid() AND (c.relkind IN ('m', 'f')
  OR EXISTS (SELECT FROM pg_catalog.pg_subscription_rel AS s WHERE s.srrelid = c.oid
    OR s.srrelid IN (SELECT a FROM pg_catalog.pg_partition_ancestors(c.oid) AS a)))
"""


class PostgresDatabase:
    """
    A Postgres database, as one watcher sees it.

    :param conn_id: The Airflow connection.
    :param user: What the server is told of who watches: the name of an asset.
    :param ignore_roles: Login roles that never write the watched table.
    :param max_bound_wait: Seconds after which open transactions are no longer waited for.
    """

    collation: Final = "C"
    """Texts must have one order here and there: that of code points."""

    oldest: Final = "'0001-01-02 00:00:00+00'"
    """Times before the year 1 exist here and not in Python; asyncpg sends the first of all as -infinity."""

    def __init__(
        self,
        conn_id: str,
        *,
        user: str,
        ignore_roles: Sequence[str] = (),
        max_bound_wait: float | None = None,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._conn_id = conn_id
        self._user = user
        self._ignore_roles = list(ignore_roles)
        self._max_bound_wait = max_bound_wait
        self._log = log
        self._link: PostgresLink | None = None
        self._generation = 0
        self._history = History()
        self._told = False
        self._elsewhere: str | None = None
        self.barrier = Barrier()

    async def open(self) -> None:
        """
        Connect, and find out whether the barrier holds.

        :raises ConfigurationError: The connection is missing or wrong.
        :raises SourceError: The server cannot be reached just now.
        """
        self._link = PostgresLink.take(self._conn_id, self._user)
        try:
            await self._link.ensure_open()
        except ConfigurationError:
            raise
        except Exception as error:
            raise self._error("connecting", error) from error
        self._generation = self._link.generation

    async def close(self) -> None:
        """Give the connection back; must not raise."""
        link, self._link = self._link, None
        if link is not None:
            await link.give_back(self._user)

    # -- Questions ------------------------------------------------------------------------------------

    async def fetch(self, question: Question) -> list[Sequence[Any]]:
        """Send a question, and give all its rows."""
        sql, names = _compile(question.statement)
        return await self._fetch(sql, *(question.values[name] for name in names))

    async def _fetch(self, sql: str, *values: object) -> list[Sequence[Any]]:
        link = self._open_link
        try:
            async with link.ask() as connection:
                rows: list[Sequence[Any]] = await connection.fetch(sql, *values)
        except Exception as error:
            raise self._error("a query", error) from error
        return rows

    @property
    def _open_link(self) -> PostgresLink:
        if self._link is None:
            msg = f"Postgres, connection {self._conn_id!r}: the connection is closed"
            raise SourceError(msg)
        return self._link

    async def kind(self, query: WatchedQuery) -> str:
        """
        Give the position type of the cursor column, and check that all columns are there.

        :raises ConfigurationError: There is no such table or column, or it has no order.
        """
        sql, _ = _compile(query.shape().statement)
        try:
            async with self._open_link.ask() as connection:
                # Without a name: a pooler may have another session for the next question.
                prepared = await connection.prepare(sql, name="")
                name: str = prepared.get_attributes()[0].type.name
        except Exception as error:
            raise self._error("a query", error) from error
        return _KINDS.get(name, name)

    async def find_origin(self, query: WatchedQuery) -> None:
        """Find out whether all rows are committed here; that may change, by a partition that is attached."""
        sql, _ = _compile(query.shape().statement)
        try:
            async with self._open_link.ask() as connection, connection.transaction():
                await connection.execute(sql)
                self._elsewhere = await connection.fetchval(_COMMITTED_ELSEWHERE)
        except Exception as error:
            raise self._error("a query", error) from error

    async def clock(self) -> datetime:
        """Read the server's clock."""
        rows = await self._fetch("SELECT pg_catalog.clock_timestamp()")
        now: datetime = rows[0][0]
        return now

    async def clock_and_locks(self) -> tuple[datetime, bool]:
        """Read the clock, and then see whether another session holds a lock, as each transaction does."""
        now, busy = (await self._fetch(_CLOCK_AND_LOCKS))[0]
        return now, busy

    async def settled_clock(self) -> tuple[datetime, datetime | None]:
        """
        Read the clock, and see up to when all is settled by it.

        :return: The clock now; and the instant before which nothing is stamped that can still appear, or
            ``None`` if that is not known yet.
        """
        if not self._has_barrier:
            now = await self.clock()
            return now, now
        now, settled = await self._settle(None)
        return now, None if settled is None else settled.clock

    async def settled_position(self, query: WatchedQuery, lateness: float) -> Position | None:
        """
        See up to which position all is settled, where positions have no clock.

        :param query: Asked for its highest position.
        :param lateness: Seconds to be added to it, all the same.
        """
        if self._has_barrier:
            now, settled = await self._settle(query)
            if settled is not None:
                self._history.add(settled.clock, settled.highest)
        else:
            highest = (await self.fetch(query.highest()))[0][0]
            now = await self.clock()  # after it: it was visible by then
            self._history.add(now, highest)
        return self._history.before(now - timedelta(seconds=lateness))

    async def _settle(self, query: WatchedQuery | None) -> tuple[datetime, BarrierPoint | None]:
        # In this order: whatever is stamped before the clock was read, or visible then, belongs to a
        # transaction that is in the list, or has ended.
        earlier: datetime | None = None
        highest: Position | None = None
        if query is not None:
            earlier = await self.clock()
            highest = (await self.fetch(query.highest()))[0][0]
        now, busy = await self.clock_and_locks()
        clock = now if earlier is None else earlier
        rows: Sequence[Sequence[Any]] = ()
        if busy:  # which of them count
            rows = await self._fetch(_OPEN_TRANSACTIONS, self._ignore_roles)
        if self._generation != self._open_link.generation:
            # Another connection: transactions that were prepared may have other names now.
            self._generation = self._open_link.generation
            self.barrier.drop()
            return clock, self.barrier.settled
        names = frozenset(row[0] for row in rows)
        self.barrier.advance(BarrierPoint(clock=clock, highest=highest, open_transactions=names))
        await self._look_at_barrier(clock)
        return clock, self.barrier.settled

    async def _look_at_barrier(self, now: datetime) -> None:
        """Say who holds the barrier up, and give up on it if that was asked for."""
        pending = self.barrier.pending
        waited = (now - pending.clock).total_seconds() if pending is not None else 0.0
        if pending is not None and self._max_bound_wait is not None and waited >= self._max_bound_wait:
            self._log.warning(
                "Open transactions have held the settled bound back for max_bound_wait=%g s; it goes on "
                "without them, and what they commit may be lost: %s",
                self._max_bound_wait,
                "; ".join(await self.holders()),
            )
            self.barrier.settled, self.barrier.pending = pending, None
        elif pending is None or waited < _SLOW_BARRIER:
            self._told = False
        elif not self._told:
            self._told = True
            self._log.warning(
                "Open transactions have held the settled bound back for %.0f s: %s. End them, or name roles "
                "that never write in ignore_roles",
                waited,
                "; ".join(await self.holders()),
            )

    async def holders(self) -> list[str]:
        """Say who keeps the barrier up."""
        rows = await self._fetch(_HOLDERS, list(self.barrier.holding()))
        return [str(row[0]) for row in rows]

    @property
    def _has_barrier(self) -> bool:
        """Whether this server tells which transactions are open on it."""
        return not (self._open_link.in_recovery or self._open_link.pooled)

    @property
    def exact(self) -> bool:
        """Whether the barrier is over all that is watched."""
        return self._has_barrier and not self._elsewhere

    @property
    def is_copy(self) -> bool:
        """Whether rows may get here long after they were committed."""
        return self._open_link.in_recovery or bool(self._elsewhere)

    @property
    def waits(self) -> bool:
        """Whether open transactions hold the settled bound back."""
        return self._has_barrier and self.barrier.pending is not None

    def describe(self) -> str:
        """Say where the settled bound comes from."""
        if self.exact:
            return "exact: the barrier over open transactions"
        if self._open_link.in_recovery:
            why = "a standby"
        elif self._open_link.pooled:
            why = "a connection pooler"
        else:
            why = f"a copy, or another server's: {self._elsewhere}"
        return f"the server's clock less late_arrival, since this is {why}"

    @property
    def dialect(self) -> Dialect:
        """The dialect that quotes and binds."""
        return _dialect()

    def _error(self, action: str, error: Exception) -> ConfigurationError | SourceError:
        """Wrap an error of the driver's: what happened, where, and what to do."""
        state = str(getattr(error, "sqlstate", None) or type(error).__name__)
        where = f"Postgres, connection {self._conn_id!r}: {action} failed ({state})"
        if state == "08P01" and action == "connecting":
            advice: str | None = _NO_SETTING
        else:
            advice = _ADVICE.get(state) or _ADVICE.get(state[:2])
        if advice:
            # The server's own sentence names tables, columns and roles, never values; but for data errors.
            told = str(getattr(error, "message", None) or error).partition("\n")[0]
            return ConfigurationError(f"{where}{'' if state.startswith('22') else f': {told}'}; {advice}")
        if state == _TIMED_OUT:
            return SourceError(
                f"{where}: it took more than the {STATEMENT_TIMEOUT:.0f} s that a query may; an index that "
                "begins with the cursor column makes it quick. It is tried again, and nothing is lost"
            )
        return SourceError(f"{where}; it is tried again, and nothing is lost")


_TIMED_OUT: Final = "57014"
_NO_SETTING: Final = (
    "a pooler takes no such setting: leave it out of the connection's extras, or have the pooler ignore it "
    "(PgBouncer's ignore_startup_parameters)"
)
_NO_DATE: Final = (
    "a date is before the year 1 or after 9999, or a time is 24:00, which Python has not; correct or leave "
    "out its row or column"
)
_ADVICE: Final = {
    "42P02": "where and query take no parameters: write values into them",
    "42P01": "create the table, or correct its name or the connection's search_path",
    "42703": "correct cursor_column, primary_key, columns or where",
    "42501": "grant SELECT to the connection's role",
    "42883": (
        "the cursor column, or one of primary_key, has a type without an order, or where calls what there is "
        "not; name another, or correct where"
    ),
    "25006": "let query and where only read",
    "28": "correct the connection's login or password",
    "3D000": "correct the connection's database",
    "42": "correct the trigger's arguments",
    "08P01": "correct where or query",
    "0A": "correct query: what it does is not supported in a derived table",
    "22": "a value in where, query or a column cannot be computed; correct it, or leave out its row",
    "55000": "make what is watched ready: a materialized view must have been refreshed",
    "OverflowError": _NO_DATE,
    "ValueError": _NO_DATE,
}
"""What to do about the SQL states that do not go away by waiting; two characters name a class."""

_KINDS: Final = {
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "timestamptz": "timestamp",
    "timestamp": "naive-timestamp",
    "date": "date",
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "oid": "integer",
    "xid8": "integer",
    "numeric": "decimal",
    "float4": "float",
    "float8": "float",
    "bytea": "bytes",
}


@lru_cache(maxsize=1)
def _dialect() -> Dialect:
    from sqlalchemy.dialects.postgresql.base import PGDialect

    # The style of SQLAlchemy that is nearest to the server's own, and is the same in its releases 1.4 and 2.
    return PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1024)
def _compile(statement: Select[Any]) -> tuple[str, list[str]]:
    """Give a statement's text and the names of its values, in their order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(rf":({BOUND}\w+)", number, str(statement.compile(dialect=_dialect()))), names
