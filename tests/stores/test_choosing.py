"""Which store a watcher uses: the configured one, or its own; and AIP-93's names for its watermark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from airflow.providers.watermark import watch
from airflow.providers.watermark.asset_watermark import AssetWatermark
from airflow.providers.watermark.change import Change, HighWatermark, Page
from airflow.providers.watermark.exceptions import InvalidArgumentError
from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.stores.asset_state import AssetStateStore
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.variable import VariableStore
from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.watermark import Sweep
from tests.stores.object_folders import object_folder
from tests.stores.sql_databases import sql_database

STORES = "airflow.providers.watermark.stores"


def trigger(**arguments):
    return S3PrefixTrigger(asset_name="orders", bucket_name="lake", **arguments)


# --- a store of its own -------------------------------------------------------------------------------------


def test_a_watcher_has_the_configured_store():
    assert type(trigger().make_store()) is VariableStore


def test_a_watcher_can_have_a_store_of_its_own(tmp_path):
    with object_folder("disk", tmp_path):
        its_own = trigger(store=f"{STORES}.object_storage.ObjectStorageStore")
        its_own.serialize()
        assert type(its_own.make_store()) is ObjectStorageStore


def test_the_store_is_tuning_and_no_part_of_the_watermarks_name():
    path = f"{STORES}.asset_state.AssetStateStore"
    assert trigger(store=path).key == trigger().key
    assert trigger(store=path).fingerprint == trigger().fingerprint


def test_a_store_is_given_the_trigger_that_it_is_for():
    its_own = trigger(store=f"{STORES}.asset_state.AssetStateStore")
    store = its_own.make_store()
    assert type(store) is AssetStateStore
    assert store._trigger is its_own


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("sql", "cannot be imported"),
        ("no.such.Store", "cannot be imported"),
        ("builtins.dict", "is no BaseWatermarkStore"),
        (f"{STORES}.memory.MemoryStore", "name a durable store"),
        (f"{STORES}.sql.SqlStore", "sql_conn_id is not set"),
        ("", "name the class path of a store"),
        (5, "cannot be imported"),
    ],
)
def test_a_store_that_cannot_be_is_an_import_error_of_the_dag(path, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        trigger(store=path).serialize()
    assert f"store={path!r}: " in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("sql", "store = 'sql' cannot be imported"),
        ("no.such.Store", "store = 'no.such.Store' cannot be imported"),
        ("builtins.dict", "store = 'builtins.dict' is no BaseWatermarkStore"),
        (f"{STORES}.memory.MemoryStore", f"store = '{STORES}.memory.MemoryStore' forgets watermarks"),
        (f"{STORES}.sql.SqlStore", "sql_conn_id is not set"),
        (f"{STORES}.object_storage.ObjectStorageStore", "object_storage_path is not set"),
    ],
)
def test_a_configured_store_that_cannot_be_is_an_import_error_of_the_dag(path, message, monkeypatch):
    monkeypatch.setenv("AIRFLOW__WATERMARK__STORE", path)
    with pytest.raises(InvalidArgumentError) as caught:
        trigger().serialize()
    assert f"S3PrefixTrigger: [watermark] {message}" in str(caught.value)
    trigger(store=f"{STORES}.variable.VariableStore").serialize()  # which does not use it


# --- AIP-93 -------------------------------------------------------------------------------------------------

ROWS: dict[str, datetime] = {}
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class NewRowsTrigger(BaseWatermarkTrigger):
    """AIP-93's example: new records of a table, between the low watermark and a high one fixed first."""

    watcher_name: ClassVar[str] = "rows"
    source_fields: ClassVar[tuple[str, ...]] = ("table",)

    table: str = ""

    @property
    def source(self) -> str:
        return f"rows://{self.table}"

    async def get_high_watermark(self) -> HighWatermark:
        return HighWatermark(bound=NOW, due=NOW)

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        rows = sorted(ROWS.items(), key=lambda row: row[1])
        yield Page(
            changes=[
                Change(identity=name, version="1", position=stamp, detail={"row": name}, place=stamp)
                for name, stamp in rows
                if is_after(stamp, sweep.low)
            ]
        )


@pytest.fixture(params=["sqlite", "disk"])
def store_path(request, tmp_path):
    if request.param == "sqlite":
        with sql_database("sqlite", tmp_path):
            yield f"{STORES}.sql.SqlStore"
    else:
        with object_folder("disk", tmp_path):
            yield f"{STORES}.object_storage.ObjectStorageStore"


def test_aip_93s_example_delivers_what_is_new_and_its_watermark_can_be_read_and_set_in_a_task(store_path):
    ROWS.clear()
    ROWS["a"] = datetime(2026, 2, 27, tzinfo=UTC)
    written = NewRowsTrigger(table="orders", start_from="beginning", store=store_path)
    asset = watch("orders", written)

    async def in_the_triggerer(*more: str) -> list[str]:
        ROWS.update(dict.fromkeys(more, datetime(2026, 2, 28, tzinfo=UTC)))
        running = asset.watchers[0].trigger
        store = running.make_store()
        async with Harness(running, store) as watcher:
            deliveries = await watcher.deliver()
            assert await watcher.trigger.asset_watermark.aget_value() == NOW or not deliveries
        await store.close()
        return [change["row"] for delivery in deliveries for change in delivery.payload["changes"]]

    watermark = AssetWatermark.of(asset)  # as a task does
    assert watermark.get_value() is None
    assert asyncio.run(in_the_triggerer()) == ["a"]
    assert watermark.get_value() == NOW
    watermark.set_value(datetime(2026, 2, 27, 12, tzinfo=UTC))
    assert asyncio.run(in_the_triggerer("b")) == ["b"]
    assert watermark.get_value() == NOW


async def test_a_watermark_is_read_and_set_in_asynchronous_code(store_path):
    mine = NewRowsTrigger(asset_name="orders", table="orders", start_from="beginning", store=store_path)
    ROWS.clear()
    ROWS["a"] = datetime(2026, 2, 27, tzinfo=UTC)
    store = mine.make_store()
    async with Harness(mine, store) as watcher:
        await watcher.deliver()
        assert watcher.trigger.low_watermark == NOW
        await watcher.trigger.persist_watermark(datetime(2026, 2, 26, tzinfo=UTC))
        assert await mine.asset_watermark.aget_value() == datetime(2026, 2, 26, tzinfo=UTC)
        again = await watcher.deliver()
    assert [change["row"] for delivery in again for change in delivery.payload["changes"]] == ["a"]
    assert [delivery.payload["watermark"]["epoch"] for delivery in again] == [2]
    await store.close()
