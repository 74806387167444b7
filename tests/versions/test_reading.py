"""A consumer reads its events as Airflow gives them: in 3.0 an asset is no key of a dictionary."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow.providers.watermark.change import Change
from airflow.providers.watermark.events import Batch, read_changes
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.version_compat import HAS_ACK_MODE
from airflow.sdk import Asset
from airflow.sdk.api.datamodels._generated import AssetReferenceAssetEventDagRun
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

if HAS_ACK_MODE:
    pytest.skip("for Airflow below 3.3; tests/unit has the others", allow_module_level=True)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS, OTHER = Asset("orders"), Asset("other")


def event(asset, *keys):
    batch = Batch(
        watcher="s3", source="s3://lake/", low=BEGINNING, high=NOON, epoch=1, max_changes=9, max_bytes=9999
    )
    for key in keys:
        batch.add(
            Change(
                identity=key,
                version="e",
                position=NOON,
                detail={"key": key, "size": 1, "etag": "e", "last_modified": "2026-03-01T12:00:00Z"},
            )
        )
    return AssetEventDagRunReferenceResult(
        asset=AssetReferenceAssetEventDagRun(name=asset.name, uri=asset.uri, extra={}),
        extra={"from_trigger": True, "payload": batch.close()},
        source_task_id=None,
        source_dag_id=None,
        source_run_id=None,
        source_map_index=None,
        source_aliases=[],
        timestamp=NOON,
    )


def test_the_changes_of_one_asset_are_read():
    events = TriggeringAssetEventsAccessor.build(
        [event(ORDERS, "b"), event(OTHER, "x"), event(ORDERS, "a", "b")]
    )
    assert sorted(change.key for change in read_changes(events, ORDERS)) == ["a", "b"]
    assert read_changes(events, Asset("a third")) == []


def test_a_run_without_events_has_no_changes():
    assert read_changes(TriggeringAssetEventsAccessor.build([]), ORDERS) == []
