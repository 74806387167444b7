"""The ``sql`` store keeps the contract, in every database that it supports."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.stores.sql import SqlStore
from airflow.providers.watermark.testing import StoreContract
from tests.stores.sql_databases import sql_database


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    with sql_database("sqlite", tmp_path_factory.mktemp("sqlite")) as database:
        yield database


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    with sql_database("postgres", tmp_path_factory.mktemp("postgres")) as database:
        yield database


@pytest.fixture(scope="module")
def mariadb(mariadb_or_skip, tmp_path_factory):
    with sql_database("mariadb", tmp_path_factory.mktemp("mariadb")) as database:
        yield database


async def emptied(database):
    database.execute("DELETE FROM asset_watermarks")
    yield database
    await SqlStore().close()


class TestSqlite(StoreContract):
    @pytest.fixture
    async def backend(self, sqlite):
        async for database in emptied(sqlite):
            yield database


class TestPostgres(StoreContract):
    @pytest.fixture
    async def backend(self, postgres):
        async for database in emptied(postgres):
            yield database


class TestMariaDB(StoreContract):
    @pytest.fixture
    async def backend(self, mariadb):
        async for database in emptied(mariadb):
            yield database
