"""
Connections to Postgres, shared: many watchers of one database get by with a few.

A watcher keeps the connection that it was given for as long as it runs, since the barrier that it follows is
void when the connection is lost; :attr:`PostgresLink.generation` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from airflow.providers.watermark.exceptions import ConfigurationError
from airflow.providers.watermark.values import Interval
from airflow.providers.watermark.version_compat import call_supervised

__all__ = ["PostgresLink", "connect_options"]

MAX_LINKS: Final = 4
"""Connections of one process to one database."""

STATEMENT_TIMEOUT: Final = 300.0
"""Seconds after which the server ends a query; a sweep goes on behind the last page."""

ANSWER_TIMEOUT: Final = STATEMENT_TIMEOUT + 30.0
"""Seconds after which a question without a whole answer is given up: who drops packets does not say so."""

_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "statement_timeout": str(int(STATEMENT_TIMEOUT * 1000)),
}
_CONNECT_TIMEOUT: Final = 60.0
_MAX_TITLE: Final = 63
"""Bytes of an application_name; the server cuts off the rest."""

_TLS_OPTIONS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword")


_DAY: Final = 86_400_000_000


# A role or a database may end sessions that rest between polls; the server has had that since its release 14.
# Firewalls forget connections that rest, some after four minutes, and drop what follows: the server speaks.
_STAY_OPEN: Final = """
SELECT pg_catalog.set_config(name, wanted, false)
FROM (VALUES ('idle_session_timeout', '0'), ('tcp_keepalives_idle', '60')) AS settings (name, wanted)
JOIN pg_catalog.pg_settings USING (name)
"""


def _read_interval(parts: tuple[int, int, int]) -> timedelta | Interval:
    """
    Take the parts of an interval as a timedelta, if it gives the same parts back.

    asyncpg would take 30 days for a month, and 24 hours for a day.
    """
    months, days, microseconds = parts
    if months or abs(microseconds) >= _DAY or days * microseconds < 0:
        return Interval(months, days, microseconds)
    return timedelta(days=days, microseconds=microseconds)


class PostgresLink:
    """
    A connection that is opened again when it was lost.

    :param conn_id: The Airflow connection.
    :ivar lock: Held by whoever sends a query, which :meth:`ask` does: a connection answers one at a time.
    :ivar generation: Raised by each new connection.
    :ivar in_recovery: Whether the server is a standby.
    :ivar pooled: Whether a pooler stands between us and the server.
    """

    _links: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[PostgresLink]]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._users: list[str] = []
        self._told = ""
        self.connection: Any = None
        self.lock = asyncio.Lock()
        self.generation = 0
        self.in_recovery = False
        self.pooled = False

    @classmethod
    def take(cls, conn_id: str, user: str) -> PostgresLink:
        """
        Give the least used link to a database, or a new one while there are few.

        :param user: What the server is told of who uses it: the name of an asset.
        """
        links = cls._links.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, [])
        if len(links) < MAX_LINKS:
            links.append(cls(conn_id))
        link = min(links, key=lambda each: len(each._users))  # noqa: SLF001 - it is one of us
        link._users.append(user)  # noqa: SLF001
        return link

    async def give_back(self, user: str) -> None:
        """Take one user less into account; without any, the connection is closed."""
        self._users.remove(user)
        if self._users:
            return  # not waiting for what another one asks just now
        self._links[asyncio.get_running_loop()][self._conn_id].remove(self)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()

    @property
    def title(self) -> str:
        """What the server calls this connection: who uses it, in no more bytes than the server keeps."""
        others = f" (+{len(self._users) - 1})" if len(self._users) > 1 else ""
        name = f"airflow-watermark: {self._users[0]}".encode()[: _MAX_TITLE - len(others)]
        return name.decode(errors="ignore") + others

    async def _introduce(self) -> None:
        """Tell the server who uses the connection now; behind a pooler, others would get that name."""
        if self._told != (title := self.title):
            await self.connection.execute(
                "SELECT pg_catalog.set_config('application_name', $1, false)", title
            )
            self._told = title

    async def ensure_open(self) -> None:
        """
        Connect, unless the connection stands.

        :raises ConfigurationError: The Airflow connection is missing or wrong, or asyncpg is.
        :raises Exception: Whatever asyncpg raises.
        """
        async with self.lock:
            if self.connection is not None and not self.connection.is_closed():
                return
            try:
                asyncpg, hook_class = await asyncio.to_thread(_import_driver)  # takes a second
            except ImportError as error:
                msg = f"{error}; pip install 'airflow-provider-watermark[postgres]' where the triggerer runs"
                raise ConfigurationError(msg) from error
            options = await self._options(hook_class)
            self._told = options["server_settings"]["application_name"]
            self.generation += 1
            # As a pooler needs it: prepared statements do not outlive its transactions, and PgBouncer refuses
            # connections that come with settings it does not know.
            connection = await asyncpg.connect(**options, timeout=_CONNECT_TIMEOUT, statement_cache_size=0)
            try:
                with _answering(connection):
                    self.in_recovery, self.pooled = await _look(connection)
                if not self.pooled:
                    await connection.close(timeout=_CONNECT_TIMEOUT)
            except BaseException:  # a cancellation, too, must leave no connection behind
                connection.terminate()
                raise
            if not self.pooled:
                options["server_settings"] |= _SETTINGS
                connection = await asyncpg.connect(**options, timeout=_CONNECT_TIMEOUT)
            try:
                with _answering(connection):
                    if not self.pooled:
                        # One address may lead to several servers, or another one since.
                        self.in_recovery, is_pooled = await _look(connection)
                        self._refuse(is_pooled)
                        await connection.execute(_STAY_OPEN)  # through a pooler, others would get it
                    await connection.set_type_codec(
                        "interval", schema="pg_catalog", format="tuple", encoder=tuple, decoder=_read_interval
                    )
            except BaseException:
                connection.terminate()
                raise
            self.connection = connection

    def _refuse(self, is_pooled: bool) -> None:  # noqa: FBT001
        if is_pooled:
            msg = (
                f"Postgres, connection {self._conn_id!r}: its address leads to a server, and then to a "
                "pooler; name one of the two"
            )
            raise ConfigurationError(msg)

    @contextlib.asynccontextmanager
    async def ask(self) -> AsyncGenerator[Any, None]:
        """
        Lend the connection for a question: read only, and for no longer than :data:`STATEMENT_TIMEOUT`.

        Behind a pooler these are settings of a transaction, since a session is not ours alone there. A
        connection that has not answered after :data:`ANSWER_TIMEOUT` is ended, and so is the question.
        """
        async with self.lock:
            with _answering(self.connection):
                if not self.pooled:
                    await self._introduce()
                    yield self.connection
                    return
                async with self.connection.transaction(readonly=True):
                    await self.connection.execute(
                        f"SET LOCAL statement_timeout = {_SETTINGS['statement_timeout']}"
                    )
                    yield self.connection

    async def _options(self, hook_class: Any) -> dict[str, Any]:
        """Read the Airflow connection, with all that the Postgres hook makes of it."""
        hook = hook_class(postgres_conn_id=self._conn_id)

        def read() -> dict[str, Any]:
            connection = hook.get_connection(self._conn_id)
            options = connect_options(connection, application_name=self.title)
            if connection.extra_dejson.get("iam"):
                login, password, port = hook.get_iam_token(connection)
                options |= {"user": login, "password": password, "port": int(port) if port else None}
            return options

        try:
            return await call_supervised(read)
        except Exception as error:
            msg = (
                f"the connection {self._conn_id!r} cannot be read ({type(error).__name__}); create it, or "
                "correct it"
            )
            raise ConfigurationError(msg) from error


@contextlib.contextmanager
def _answering(connection: Any) -> Generator[None]:
    """
    End a connection that does not answer in time.

    Not by a time limit of asyncpg's: it would ask the server to cancel the query, and wait for its answer.
    """
    timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, connection.terminate)
    try:
        yield
    finally:
        timer.cancel()


async def _look(connection: Any) -> tuple[bool, bool]:
    """See whether the server is a standby, and whether a pooler stands before it."""
    in_recovery, pid = await connection.fetchrow(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.pg_backend_pid()"
    )
    # A pooler makes up the key that it hands to its clients.
    return in_recovery, pid != connection.get_server_pid()


def _import_driver() -> tuple[Any, Any]:
    import asyncpg  # type: ignore[import-untyped, unused-ignore]
    import sqlalchemy.dialects.postgresql.base  # noqa: F401 - the first query imports it on the loop

    from airflow.providers.postgres.hooks.postgres import PostgresHook

    return asyncpg, PostgresHook


def connect_options(connection: Any, **settings: str) -> dict[str, Any]:
    """
    Say to asyncpg what an Airflow connection to Postgres says.

    :param connection: The Airflow connection.
    :param settings: Settings of the session.
    :return: Arguments for ``asyncpg.connect``.
    """
    extra = connection.extra_dejson
    if extra.get("options"):
        settings["options"] = extra["options"]
    # asyncpg reads the TLS files from a DSN only; the other arguments win over it.
    tls = {name: extra[name] for name in _TLS_OPTIONS if extra.get(name)}
    return {
        "dsn": f"postgresql://?{urlencode(tls)}",
        "host": connection.host,
        "port": int(connection.port) if connection.port else None,
        "user": connection.login,
        "password": connection.password,
        "database": connection.schema,
        "server_settings": settings,
    }
