"""The stores keep the contract."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow.providers.watermark.stores import WatermarkKey, asset_state
from airflow.providers.watermark.stores.asset_state import AssetStateStore
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.stores.variable import VariableStore, variable_name
from airflow.providers.watermark.testing import StoreBackend, StoreContract
from airflow.providers.watermark.testing.backend import COLLIDING, KEY, ODD_PARTS
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from tests.contract.supervisor import Supervisor, supervisor


class Memory(StoreBackend):
    lacks: ClassVar[Mapping[str, str]] = {
        "errors": "a dictionary does not fail",
        "raw": "nobody else gets at it",
    }

    def __init__(self) -> None:
        self.store = MemoryStore()

    def make_store(self) -> MemoryStore:
        return self.store


class MetadataDatabase(StoreBackend):
    def __init__(self, supervisor: Supervisor | OwnDatabase) -> None:
        self.supervisor = supervisor

    def make_store(self) -> VariableStore:
        return VariableStore()

    async def break_down(self) -> None:
        self.supervisor.execute("ALTER TABLE variable RENAME TO elsewhere")

    async def mend(self) -> None:
        self.supervisor.execute("ALTER TABLE elsewhere RENAME TO variable")

    async def plant(self, key: WatermarkKey, text: str) -> None:
        # In the clear, as where no Fernet key is set.
        update = "UPDATE variable SET val = ?, is_encrypted = 0 WHERE key = ?"
        self.supervisor.execute(update, text, variable_name(key))


ASSETS = sorted({KEY.asset_name, *ODD_PARTS, *(key.asset_name for key in COLLIDING)})


class AssetState(StoreBackend):
    """The state of all these assets, by one trigger that watches them or, without it, on the command line."""

    def __init__(self, database: Supervisor | OwnDatabase, trigger: Any = None) -> None:
        self.database, self.trigger = database, trigger
        if trigger is not None:
            self.lacks = {"keys": "the task SDK cannot list an asset's state"}
        database.execute("DELETE FROM asset_state_store")
        rows = [(number, name, name) for number, name in enumerate(ASSETS)]
        values = ", ".join(f"({number}, ?, ?, '', '{{}}', '2026-01-01', '2026-01-01')" for number, *_ in rows)
        database.execute(
            'INSERT OR IGNORE INTO asset (id, name, uri, "group", extra, created_at, updated_at) '  # noqa: S608
            f"VALUES {values}",
            *(text for _, *texts in rows for text in texts),
        )
        database.execute("INSERT OR IGNORE INTO asset_active (name, uri) SELECT name, uri FROM asset")

    def make_store(self) -> AssetStateStore:
        asset_state._known.clear()  # as in another process
        store = AssetStateStore()
        if self.trigger is not None:
            store.bind(self.trigger)
        return store

    async def break_down(self) -> None:
        self.database.execute("ALTER TABLE asset_state_store RENAME TO elsewhere")

    async def mend(self) -> None:
        self.database.execute("ALTER TABLE elsewhere RENAME TO asset_state_store")

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self.database.execute(
            "UPDATE asset_state_store SET value = ? WHERE asset_id = ?", text, ASSETS.index(key.asset_name)
        )


class OwnDatabase:
    """The metadata database of this very process, as on the command line."""

    def __init__(self, path: str) -> None:
        self._path = path

    def execute(self, statement: str, *parameters: Any) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            database.execute(statement, parameters)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def backend(self):
        return Memory()


@pytest.fixture(scope="module")
def metadata_database(tmp_path_factory):
    with supervisor(tmp_path_factory.mktemp("supervisor")) as running:
        yield running


class TestVariableStore(StoreContract):
    @pytest.fixture
    async def backend(self, metadata_database):
        metadata_database.execute("DELETE FROM variable")
        async with metadata_database.attached():
            yield MetadataDatabase(metadata_database)


@pytest.fixture(scope="module")
def own_database():
    import airflow.models
    from airflow import settings
    from airflow.models.base import Base

    airflow.models.import_all_models()
    engine = settings.get_engine()
    Base.metadata.create_all(engine)
    yield OwnDatabase(engine.url.database)
    Base.metadata.drop_all(engine)
    engine.dispose()


class TestVariableStoreOnTheCommandLine(StoreContract):
    @pytest.fixture
    def backend(self, own_database):
        own_database.execute("DELETE FROM variable")
        return MetadataDatabase(own_database)


class TestAssetStateStore(StoreContract):
    @pytest.fixture
    async def backend(self, metadata_database):
        accessors = AssetStateStoreAccessors(
            inlets=[Asset(name=name, uri=f"x://{n}") for n, name in enumerate(ASSETS)]
        )
        backend = AssetState(
            metadata_database, SimpleNamespace(asset_state_store=accessors, start_from="now")
        )
        async with metadata_database.attached():
            yield backend


class TestAssetStateStoreOnTheCommandLine(StoreContract):
    @pytest.fixture
    def backend(self, own_database):
        return AssetState(own_database)
