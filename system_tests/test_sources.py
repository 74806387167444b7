"""Sources are down, slow, cut off in the middle of an answer, or refuse who asks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from system_tests.starting import ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from devtools.tcp_proxy import TcpProxy
    from system_tests.system import System


class Marks(NamedTuple):
    """What tells on the wire how far an answer has come.

    :ivar start: in the headers, or in the greeting of a server that wants a login; among the first 10 bytes
    :ivar row: in the midst of what watchers are after
    """

    start: bytes
    row: bytes

    def is_cut_everywhere(self, network: TcpProxy) -> bool:
        """Tell whether answers were cut off both before what watchers are after, and within."""
        before = (passed for passed in network.cut_off if self.row not in passed)
        return any(self.start in passed for passed in before) and any(
            self.row in passed for passed in network.cut_off
        )


MARKS = {
    "s3": Marks(b"HTTP/1.1 ", b"<Key>in"),
    "gcs": Marks(b"HTTP/1.1 ", b'"name":"in/'),
    # A message about the login; and a row's version 1 before a text of 16 bytes.
    "postgres": Marks(b"R\0\0\0", b"\0\0\0\1\0\0\0\x10"),
    # A packet that is the first, of protocol 10; and a text of 3 bytes.
    "mariadb": Marks(b"\0\0\0\x0a", b"\x03new"),
}

HARM: dict[str, Callable[[TcpProxy, Marks], None]] = {
    "down": lambda network, _: network.refuse(),
    "hangs": lambda network, _: network.hang(),
    "slow": lambda network, _: network.slow(1),
    # Rows at times twice running: a watcher of Postgres logs in twice before it gets to them.
    "cut off in the middle of answers": lambda network, marks: network.cut(
        marks.row, 10, marks.row, marks.row, 200, marks.row
    ),
}
HAS_HARMED: dict[str, Callable[[TcpProxy, Marks], bool]] = {
    "hangs": lambda network, _: network.held > 0,
    "slow": lambda network, _: network.delayed > 1,
    "cut off in the middle of answers": lambda network, marks: marks.is_cut_everywhere(network),
}
ALL = ("s3", "gcs", "postgres", "mariadb")
WATCHERS = {
    "s3": ["s3_objects"],
    "gcs": ["gcs_objects"],
    "postgres": ["rows", "windows"],
    "mariadb": ["mariadb_rows"],
}
TITLES = {"s3": "S3", "gcs": "GCS", "postgres": "Postgres", "mariadb": "MariaDB"}
SECONDS = {("gcs", "hangs"): 75}
"""For how long one source is in trouble, if not for 20: longer than the minute that a client of GCS waits."""


@pytest.mark.quick
@pytest.mark.timeout(400)
@pytest.mark.parametrize("harm", HARM)
def test_all_sources_in_trouble_for_a_few_seconds(system: System, harm: str) -> None:
    """Each watcher says so once, waits, and goes on by itself; nothing comes again."""
    _do_harm(system, harm, ALL, seconds=8)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", ALL)
def test_one_source_in_trouble_for_longer(system: System, name: str, harm: str) -> None:
    """The other watchers do not notice."""
    logged = system.airflow.log_size()
    _do_harm(system, harm, (name,), seconds=SECONDS.get((name, harm), 20))
    others = {asset for other in ALL if other != name for asset in WATCHERS[other]}
    assert not _failed(system, logged) & others


def _failed(system: System, logged: int) -> set[str]:
    """Return the assets of which the log has told an error since it had a size."""
    told = system.airflow.errors_of_watchers(after=logged)
    return {asset for asset, lines in told.items() if any("[error" in line for line in lines)}


def _do_harm(system: System, harm: str, names: tuple[str, ...], seconds: float) -> None:
    networks = {name: getattr(system.networks, name) for name in names}
    assets = [asset for name in names for asset in WATCHERS[name]]
    logged = system.airflow.log_size()
    title = "all sources" if names == ALL else TITLES[names[0]]
    with system.fault(f"{title}: {harm} for {seconds:.0f} s") as fault:
        with fault.interruption(harm, of=assets, ends_watchers=False), _healing(*networks.values()):
            for name, network in networks.items():
                network.forget()
                HARM[harm](network, MARKS[name])
            time.sleep(seconds)
            # S3's client tries again by itself, for minutes; those of databases wait for minutes, and longer.
            if harm == "down" or (harm, names) == ("hangs", ("gcs",)):
                _wait_for_errors(system, logged, assets)
            if harm != "down":
                _wait_for_harm(system, harm, networks)
        system.wait_for_news(timeout=240)


@contextlib.contextmanager
def _healing(*networks: TcpProxy) -> Iterator[None]:
    """Heal all networks in the end, whatever happens, to one of them, too: the next test needs them."""
    with contextlib.ExitStack() as stack:
        for network in networks:
            stack.callback(network.heal)
        yield


def _wait_for_harm(system: System, harm: str, networks: dict[str, TcpProxy]) -> None:
    """Wait until each of these networks has done it to somebody."""
    system.airflow.wait_until(
        f"harm by each of {', '.join(networks)}: {harm}",
        lambda: all(HAS_HARMED[harm](network, MARKS[name]) for name, network in networks.items()),
    )


def _wait_for_errors(system: System, logged: int, assets: list[str]) -> None:
    """Wait until each of these watchers has told what is wrong."""
    system.airflow.wait_until(
        f"error in the log of each of {', '.join(assets)}",
        lambda: set(assets) <= _failed(system, logged),
    )


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n"
ANSWER = ANSWER % len(EXPIRED) + b"Connection: close\r\n\r\n" + EXPIRED


@pytest.mark.timeout(600)
def test_expired_credentials_that_are_replaced(system: System) -> None:
    """The log names the connection; once it is changed in Airflow, watchers go on by themselves."""
    metadata = system.airflow.metadata
    logged = system.airflow.log_size()
    assets = [asset for name in ALL if name != "gcs" for asset in WATCHERS[name]]
    with (
        system.fault("S3 and databases: credentials expired, replaced after 20 s") as fault,
        _restoring_credentials(system),
    ):
        with fault.interruption("expired", of=assets, ends_watchers=False):
            _let_expire(system)
            time.sleep(20)
            _wait_for_errors(system, logged, assets)
            metadata.change_login("s3_source", "NEWACCESSKEY", "new-secret")
            for name in ("pg_source", "mariadb_source"):
                metadata.change_login(name, ROLE, "another")
        told = system.airflow.errors_of_watchers(after=logged)
        assert any("'s3_source'" in line and "ExpiredToken" in line for line in told["s3_objects"])
        assert any("'pg_source'" in line and "password" in line for line in told["rows"])
        assert any("'mariadb_source'" in line and "Access denied" in line for line in told["mariadb_rows"])
        system.wait_for_news(timeout=300)


def _let_expire(system: System) -> None:
    # LocalStack takes any credentials: what a real S3 says is said in its place.
    system.networks.s3.deny(ANSWER, unless=b"Credential=NEWACCESSKEY/")
    postgres = system.services.postgres
    postgres.execute(f"alter role {ROLE} password 'another'")
    sessions = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
    assert postgres.execute(sessions, (ROLE,))
    system.services.mariadb.execute(f"alter user {ROLE} identified by 'another'")
    system.services.mariadb.execute(f"kill user {ROLE}")


@contextlib.contextmanager
def _restoring_credentials(system: System) -> Iterator[None]:
    """Let the old credentials be the right ones in the end, whatever happens: the next test needs them."""
    metadata = system.airflow.metadata
    query = "SELECT login, password FROM connection WHERE conn_id = ?"
    with contextlib.ExitStack() as stack:
        for name in ("s3_source", "pg_source", "mariadb_source"):
            ((login, password),) = metadata.rows(query, name)
            stack.callback(metadata.change_login, name, login, password)
        services = system.services
        stack.callback(services.postgres.execute, f"alter role {ROLE} password '{password}'")
        stack.callback(services.mariadb.execute, f"alter user {ROLE} identified by '{password}'")
        stack.callback(system.networks.s3.heal)
        yield
