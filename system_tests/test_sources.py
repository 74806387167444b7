"""Sources are down, slow, cut off in the middle of an answer, or refuse who asks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from system_tests.system import ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from devtools.tcp_proxy import TcpProxy
    from system_tests.system import System

HARM: dict[str, Callable[[TcpProxy], None]] = {
    "down": lambda network: network.refuse(),
    "slow": lambda network: network.slow(0.2),
    "cut off in the middle of answers": lambda network: network.cut(after=200),
}
ALL = ("s3", "gcs", "postgres", "mariadb")
WATCHERS = {
    "s3": ["s3_objects"],
    "gcs": ["gcs_objects"],
    "postgres": ["rows", "windows"],
    "mariadb": ["mariadb_rows"],
}
TITLES = {"s3": "S3", "gcs": "GCS", "postgres": "Postgres", "mariadb": "MariaDB"}


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
    _do_harm(system, harm, (name,), seconds=30)


def _do_harm(system: System, harm: str, names: tuple[str, ...], seconds: float) -> None:
    networks = [getattr(system.networks, name) for name in names]
    cut_off = sum(network.cut_off for network in networks)
    logged = system.airflow.log_size()
    title = "all sources" if names == ALL else TITLES[names[0]]
    with system.fault(f"{title}: {harm} for {seconds:.0f} s") as fault:
        with fault.interruption(harm, ends_watchers=False), _healing(*networks):
            for network in networks:
                HARM[harm](network)
            time.sleep(seconds)
            if harm == "down":
                _wait_for_errors(system, logged, [asset for name in names for asset in WATCHERS[name]])
        system.wait_for_news(timeout=240)
    if harm.startswith("cut"):
        assert sum(network.cut_off for network in networks) > cut_off


@contextlib.contextmanager
def _healing(*networks: TcpProxy) -> Iterator[None]:
    """Heal networks in the end, whatever happens: the next test needs them."""
    try:
        yield
    finally:
        for network in networks:
            network.heal()


def _wait_for_errors(system: System, logged: int, assets: list[str]) -> None:
    """Wait until each of these watchers has told what is wrong."""
    system.airflow.wait_until(
        f"error in the log of each of {', '.join(assets)}",
        lambda: set(assets) <= system.airflow.errors_of_watchers(after=logged).keys(),
    )


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n"
ANSWER = ANSWER % len(EXPIRED) + b"Connection: close\r\n\r\n" + EXPIRED


@pytest.mark.timeout(600)
def test_expired_credentials_that_are_replaced(system: System) -> None:
    """The log names the connection; once it is changed in Airflow, watchers go on by themselves."""
    metadata, postgres = system.airflow.metadata, system.services.postgres
    logged = system.airflow.log_size()
    with (
        system.fault("S3 and Postgres: credentials expired, replaced after 20 s") as fault,
        _healing(system.networks.s3),
    ):
        with fault.interruption("expired", ends_watchers=False):
            # LocalStack takes any credentials: what a real S3 says is said in its place.
            system.networks.s3.deny(ANSWER, unless=b"Credential=NEWACCESSKEY/")
            postgres.execute(f"alter role {ROLE} password 'another'")
            sessions = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
            assert postgres.execute(sessions, (ROLE,))
            time.sleep(20)
            _wait_for_errors(system, logged, ["s3_objects", "rows", "windows"])
            metadata.change_login("pg_source", ROLE, "another")
            metadata.change_login("s3_source", "NEWACCESSKEY", "new-secret")
        told = system.airflow.errors_of_watchers(after=logged)
        assert any("'s3_source'" in line and "ExpiredToken" in line for line in told["s3_objects"])
        assert any("'pg_source'" in line and "password" in line for line in told["rows"])
        system.wait_for_news(timeout=300)
