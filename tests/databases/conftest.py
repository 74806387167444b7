"""The servers that the tests of the databases share, and a quicker return after errors."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.triggers import watching
from devtools.databases import mariadb, postgres
from tests.databases.running import connection


@pytest.fixture(scope="session")
def running_postgres():
    with postgres() as database:
        yield database


@pytest.fixture(scope="session")
def running_mariadb(mariadb_or_skip):
    with mariadb() as database:  # says what to install, if MariaDB is missing
        yield database


@pytest.fixture
def server(running_postgres):
    """Postgres, with no table in it."""
    running_postgres.execute("drop schema public cascade; create schema public")
    return running_postgres


@pytest.fixture
def conn_id(server):
    with connection(server) as conn_id:
        yield conn_id


@pytest.fixture(autouse=True)
def _quick_return(monkeypatch):
    """Come back from an error within a fraction of a second, however many there were."""
    monkeypatch.setattr(watching, "MAX_BACKOFF", 0.2)
