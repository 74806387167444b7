"""Reach any other database through its Airflow hook's SQLAlchemy engine, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asgiref.sync import sync_to_async

from airflow.providers.watermark.exceptions import ConfigurationError, SourceError
from airflow.providers.watermark.position import Position, position_type
from airflow.providers.watermark.sql.settling import Activity, History, Look, Server
from airflow.providers.watermark.version_compat import get_connection, unbroken

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Dialect

    from airflow.providers.watermark.sql.query import Question, WatchedQuery

__all__ = ["DbApiDatabase"]

_T = TypeVar("_T")

_CLOCKS: Final = {
    "mysql": "SELECT UTC_TIMESTAMP(6)",
    "mariadb": "SELECT UTC_TIMESTAMP(6)",
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "mssql": "SELECT SYSUTCDATETIME()",
    "oracle": "SELECT SYS_EXTRACT_UTC(SYSTIMESTAMP) FROM dual",
}
"""How databases tell the time in UTC; others are asked for CURRENT_TIMESTAMP, which must have an offset."""


_MYSQL: Final = frozenset({"mysql", "mariadb"})
_MYSQL_TIMESTAMP: Final = 7
"""The DB-API type code of ``TIMESTAMP`` columns, which are instants; ``DATETIME`` columns are not."""

_MYSQL_SETTINGS: Final = (
    "SET time_zone = '+00:00'",
    # Of the isolation levels, the one in which a transaction may begin before its first query.
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)

# A statement has the time of its begin, and waits for the locks of tables before its transaction begins. What
# a replica applies was stamped elsewhere.
_STATEMENTS: Final = """
SELECT ID, UTC_TIMESTAMP(), COALESCE(TIME, 0), LEFT(STATE, 12) = BINARY 'Waiting for '
FROM information_schema.PROCESSLIST
WHERE ID <> CONNECTION_ID() AND INFO IS NOT NULL AND COMMAND NOT IN ('Sleep', 'Daemon')
  AND USER <> 'system user'
"""

# InnoDB looks at its transactions again only if nobody has asked for them for 0.1 s, and else repeats what it
# said, however long ago. It has looked if it tells of this very query. Its times are in the system's zone.
# Transactions without a session are prepared ones.
_TRANSACTIONS: Final = """
SELECT /* {nonce} */ trx_mysql_thread_id, UTC_TIMESTAMP(), {age}, COALESCE(INSTR(trx_query, '{nonce}'), 0) > 0
FROM information_schema.innodb_trx
"""
AGE: Final = """
TIMESTAMPDIFF(SECOND,
  CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') - INTERVAL IF(
    trx_started = CONVERT_TZ(
      CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') - INTERVAL 1 HOUR, '+00:00', 'SYSTEM'), 1, 0) HOUR,
  UTC_TIMESTAMP())
"""
"""The age of a transaction in seconds; of one that began in the hour that comes twice, the higher one."""
_TOLD_AFTER: Final = 5.0
"""Seconds for which something must hold the settled bound back to be told of."""

_SHARED: Final = 1.0
"""Seconds for which what one watcher has seen serves the others: InnoDB looks the less, the more they ask."""

_CACHED: Final = 0.11
"""Seconds after which InnoDB looks again."""

_LOOKS: Final = 3

ANSWER_TIMEOUT: Final = 3600.0
"""Seconds for which an answer is waited for: who drops packets does not say so."""

_CANNOT_BE_READ: Final = frozenset({1044, 1109, 1142, 1143, 1146, 1227})
"""Errors of MySQL and MariaDB: the user may not read a table, or there is none."""

# Rows of other servers appear on these. A replica may be one without saying so, other than in Postgres.
_ORIGINS: Final = {
    "read_only": ("OFF", "a replica"),
    "innodb_read_only": ("OFF", "a replica"),
    "wsrep_provider": ("NONE", "a node of a Galera cluster"),
    "group_replication_single_primary_mode": ("ON", "one of several primaries"),
}
"""Variables, each with its value where rows are committed here only, and what else it tells of."""

_SERVER: Final = "SELECT @@hostname, @@port, @@server_id, UTC_TIMESTAMP(6)"
_UPTIME: Final = "SHOW GLOBAL STATUS LIKE 'Uptime'"

_NO_ROW_VALUES: Final = frozenset({"mssql", "oracle"})
"""Databases that cannot go on behind a row by an index."""


class DbApiDatabase:
    """
    One connection, used from one thread.

    :param conn_id: The Airflow connection; its hook must be a ``DbApiHook``.
    """

    exact: Final = False
    waits: Final = False
    oldest: Final = None

    def __init__(self, conn_id: str, *, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._conn_id = conn_id
        self._log = log
        self._thread: ThreadPoolExecutor | None = None
        self._connection: Connection | None = None
        self._history = History()
        self._server: Server | None = None
        self._origin: str | None = None
        self._sees_transactions: bool | None = None
        self._held_since: float | None = None
        self._told = False

    async def open(self) -> None:
        """Connect."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watermark-sql")
        await unbroken(self._call("connecting", self._connect))

    def _connect(self) -> None:
        hook: Any = get_connection(self._conn_id).get_hook()
        if not hasattr(hook, "get_sqlalchemy_engine"):
            msg = f"the connection {self._conn_id!r} is no SQL database's"
            raise ConfigurationError(msg)
        self._connection = connection = hook.get_sqlalchemy_engine().connect()
        if connection.dialect.name in _NO_ROW_VALUES:
            msg = (
                f"the connection {self._conn_id!r} leads to {connection.dialect.name}, which has no row "
                "values such as (a, b) > (x, y); it cannot be watched yet"
            )
            raise ConfigurationError(msg)
        if self._is_mysql:
            with connection.begin():
                for setting in _MYSQL_SETTINGS:
                    connection.exec_driver_sql(setting)
                # One address may lead to several servers.
                *name, now = connection.exec_driver_sql(_SERVER).one()
                uptime = connection.exec_driver_sql(_UPTIME).one()[1]
                place = (connection.engine.url, *name)
                self._server = Server.find(place, now.replace(tzinfo=UTC), int(uptime))

    async def close(self) -> None:
        """Close the connection; must not raise."""
        server, self._server = self._server, None
        if server is not None and server.look is not None and server.look.by is self:
            server.look = None
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._disconnect)  # behind what it may still be at: connecting, even
            thread.shutdown(wait=False)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is gone anyway
                # Only closed, it would be kept by the pool, until the garbage collector finds the engine.
                connection.invalidate()
                connection.close()

    async def _call(self, action: str, function: Callable[..., _T], *args: object) -> _T:
        try:
            # The task SDK, which a hook may ask for its connection, finds its way back to this loop only so.
            call = sync_to_async(function, thread_sensitive=False, executor=self._thread)
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await call(*args)
        except ConfigurationError:
            raise
        except Exception as error:
            raise self._error(action, error) from error

    async def fetch(self, question: Question) -> list[Sequence[Any]]:
        """Send a question, and give all its rows."""
        return await self._call("a query", self._fetch, question.statement, question.values)

    def _fetch(self, statement: Any, values: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        assert self._connection is not None  # noqa: S101
        with self._connection.begin():  # a transaction of its own: each query sees what is committed by then
            if not self._is_mysql:
                return [tuple(row) for row in self._connection.execute(statement, values or {})]
            bound = {name: _in_utc(value) for name, value in (values or {}).items()}
            result: Any = self._connection.execute(statement, bound)
            instants = [column[1] == _MYSQL_TIMESTAMP for column in result.cursor.description]
            if not any(instants):
                return [tuple(row) for row in result]
            return [tuple(map(_as_instant, row, instants)) for row in result]

    @property
    def _is_mysql(self) -> bool:
        return self.dialect.name in _MYSQL

    async def kind(self, query: WatchedQuery) -> str | None:
        """
        Give the position type of the cursor column, or ``None`` if there is no row yet to tell it by.

        :raises ConfigurationError: There is no such table or column.
        """
        await self.fetch(query.shape())
        highest = (await self.fetch(query.highest()))[0][0]
        return None if highest is None else position_type(highest)

    async def find_origin(self, query: WatchedQuery) -> None:  # noqa: ARG002 - it is the server's
        """Find out whether all rows are committed on this server, where it tells."""
        if self._is_mysql:
            self._origin = await self._call("reading variables", self._read_origin)

    def _read_origin(self) -> str | None:
        assert self._connection is not None  # noqa: S101
        names = ", ".join(f"'{name}'" for name in _ORIGINS)
        with self._connection.begin():
            found = self._connection.exec_driver_sql(
                f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
            ).all()
        for name, value in found:
            usual, what = _ORIGINS[name.lower()]
            if (value.upper() or "NONE") != usual:
                return f"{what} ({name}={value})"
        return None

    @property
    def is_copy(self) -> bool:
        """Whether rows may get here long after they were committed."""
        return self._origin is not None

    async def clock(self) -> datetime:
        """Read the server's clock; aware."""
        import sqlalchemy as sa

        sql = _CLOCKS.get(self.dialect.name, "SELECT CURRENT_TIMESTAMP")
        now = (await self._call("reading the clock", self._fetch, sa.text(sql.replace(":", r"\:"))))[0][0]
        if isinstance(now, str):
            now = datetime.fromisoformat(now)
        if now.tzinfo is None:
            if self.dialect.name not in _CLOCKS:
                msg = (
                    f"the database of {self._conn_id!r} tells the time without an offset; it is not supported"
                )
                raise ConfigurationError(msg)
            now = now.replace(tzinfo=UTC)
        aware: datetime = now
        return aware

    async def settled_clock(self) -> tuple[datetime, datetime | None]:
        """
        Read the clock, and up to when all is settled by it, but for late arrivals.

        :return: The clock now; and that instant, or ``None`` if it cannot be known just now.
        """
        now = await self.clock()
        return now, await self._settled(now)

    async def _settled(self, now: datetime) -> datetime | None:
        """Give the time before which nothing is stamped that can still appear, but for late arrivals."""
        if self._server is None or self._sees_transactions is False:
            return now
        look = await self._look(self._server, now)
        self._tell(look.trouble)
        return look.settled

    async def _look(self, server: Server, now: datetime) -> Look:
        """
        See which transactions are open, or take what another watcher has seen just before.

        :param now: The server's clock, read before.
        """
        asked_at = time.monotonic()
        for number in range(_LOOKS):
            if number:
                await asyncio.sleep(_CACHED)
            if (look := self._shared(server.look, now)) is not None:
                self._sees_transactions = True
                return look
            try:
                found = await self._call("reading innodb_trx", self._read_transactions)
            except (ConfigurationError, SourceError) as error:
                if _number(error.__cause__) not in _CANNOT_BE_READ:
                    raise  # what cannot be asked just now may hold anything back
                self._sees_transactions = False
                self._log.info(
                    "innodb_trx cannot be read (%s): transactions that take longer than late_arrival may "
                    "lose rows. Grant PROCESS to the connection's user",
                    type(error.__cause__).__name__,
                )
                return Look(self, asked_at, now, None)
            self._sees_transactions = True
            if found is not None:
                server.look = look = Look(self, asked_at, *server.see(now, found))
                return look
        return Look(self, asked_at, None, "InnoDB is asked for its transactions too often to look at them")

    def _shared(self, look: Look | None, now: datetime) -> Look | None:
        """Give a look of another watcher's that serves as one's own: made just now, by the same clock."""
        if look is None or look.by is self or time.monotonic() - look.at >= _SHARED:
            return None
        return look if look.settled is None or look.settled <= now else None

    def _tell(self, trouble: str | None) -> None:
        """Say once, after a while, what holds the settled bound back."""
        if trouble is None:
            self._held_since, self._told = None, False
        elif self._held_since is None:
            self._held_since = time.monotonic()
        elif not self._told and time.monotonic() - self._held_since >= _TOLD_AFTER:
            self._told = True
            self._log.warning("The settled bound is held back: %s", trouble)

    def _read_transactions(self) -> Activity | None:
        """Read what goes on; ``None``: InnoDB did not look."""
        assert self._connection is not None  # noqa: S101
        ask = self._connection.exec_driver_sql
        with self._connection.begin():
            ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            statements = ask(_STATEMENTS).all()
            transactions = ask(_TRANSACTIONS.format(nonce=secrets.token_hex(8), age=AGE)).all()
        if not any(is_this for *_, is_this in transactions):
            return None
        seen = Activity([], [])
        for session, now, age, waits in statements:
            seen.statements.append((int(session), _begin(now, age), bool(waits)))
        for session, now, age, is_this in transactions:
            if not is_this:
                # What began after now was begun by another clock.
                is_known = age is not None and age >= -1
                seen.transactions.append((int(session), _begin(now, age) if is_known else None))
        return seen

    async def settled_position(self, query: WatchedQuery, lateness: float) -> Position | None:
        """Give the highest position that was visible so many seconds ago, and before any open transaction."""
        highest = (await self.fetch(query.highest()))[0][0]
        now = await self.clock()  # after it: it was visible by then
        self._history.add(now, highest)
        settled = await self._settled(now)
        return self._history.before(None if settled is None else settled - timedelta(seconds=lateness))

    @property
    def collation(self) -> str | None:
        """The collation that orders texts by code points, if that is known."""
        return {"sqlite": "BINARY"}.get(self.dialect.name)

    def describe(self) -> str:
        """Say where the settled bound comes from."""
        if self._origin is not None:
            return f"the server's clock less late_arrival, since this is {self._origin}"
        if self._sees_transactions:
            return "the server's clock, or the oldest open transaction in innodb_trx, less late_arrival"
        return "the server's clock less late_arrival; transactions that take longer may lose rows"

    @property
    def dialect(self) -> Dialect:
        """The dialect that quotes and binds."""
        assert self._connection is not None  # noqa: S101
        return self._connection.dialect

    def _error(self, action: str, error: Exception) -> ConfigurationError | SourceError:
        """Wrap an error of a driver's: what happened, where, and what to do."""
        original = getattr(error, "orig", None) or error
        where = f"database, connection {self._conn_id!r}: {action} failed"
        kind = type(original).__name__
        if type(error).__name__ in {"ProgrammingError", "NoSuchTableError", "NoSuchModuleError"} or (
            "no such" in str(original)
        ):
            # Of a statement that binds its values, the driver's sentence names only what stands in it.
            return ConfigurationError(
                f"{where} ({kind}): {original}; correct the trigger's arguments, or its grants"
            )
        if (number := _number(error)) is not None:
            kind += f" {number}"
        return SourceError(f"{where} ({kind}); it is tried again, and nothing is lost")


def _begin(now: datetime, age: Any) -> datetime:
    """Give the begin of what has an age in whole seconds, or up to a second before it."""
    return now.replace(tzinfo=UTC) - timedelta(seconds=max(0, int(age)) + 1)


def _number(error: BaseException | None) -> int | None:
    """Give the number of a server's or driver's error, by which drivers agree; their classes differ."""
    original = getattr(error, "orig", None)
    number = getattr(original, "errno", None) or next(iter(getattr(original, "args", ())), None)
    return number if isinstance(number, int) else None


def _in_utc(value: Any) -> Any:
    """Take the zone off an instant: drivers of MySQL leave it out, whatever it is."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _as_instant(value: Any, is_instant: bool) -> Any:  # noqa: FBT001
    return value.replace(tzinfo=UTC) if is_instant and isinstance(value, datetime) else value
