"""The stores keep the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.stores.variable import VariableStore, variable_name
from airflow.providers.watermark.testing import StoreBackend, StoreContract
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
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    def make_store(self) -> VariableStore:
        return VariableStore()

    async def break_down(self) -> None:
        self.supervisor.execute("ALTER TABLE variable RENAME TO elsewhere")

    async def mend(self) -> None:
        self.supervisor.execute("ALTER TABLE elsewhere RENAME TO variable")

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self.supervisor.execute("UPDATE variable SET val = ? WHERE key = ?", text, variable_name(key))


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
