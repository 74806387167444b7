"""Events as Airflow hands them to a task, made by the package's own code for the assets of a Dag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from airflow.providers.watermark.change import Change
from airflow.providers.watermark.events import Batch, window_payload
from airflow.providers.watermark.objects.changes import object_changes
from airflow.providers.watermark.objects.listing import ListedObject
from airflow.providers.watermark.position import encode_position
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger

LOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HIGH = LOW + timedelta(minutes=1)


def watched_assets(schedule: Any) -> Iterator[Any]:
    """Find the assets that a schedule is made of."""
    schedule = getattr(schedule, "asset_condition", schedule)
    if hasattr(schedule, "watchers"):
        yield schedule
    for part in getattr(schedule, "objects", ()):
        yield from watched_assets(part)


def payload_for(trigger: BaseWatermarkTrigger) -> dict[str, Any]:
    """Build an event of two changes, or a window of two rows, such as the trigger would make it."""
    if isinstance(trigger, SQLUpdatedAtTrigger) and trigger.delivers_windows:
        return window_payload(
            watcher="sql", source=trigger.source, low=LOW, high=HIGH, epoch=1, count=2, column='"updated_at"'
        )
    batch = Batch(
        watcher=trigger.watcher_name,
        source=trigger.source,
        low=LOW,
        high=HIGH,
        epoch=1,
        max_changes=500,
        max_bytes=49152,
    )
    for change in _changes(trigger):
        assert batch.add(change)
    payload = batch.close()
    assert payload is not None
    return payload


def _changes(trigger: BaseWatermarkTrigger) -> list[Change]:
    if isinstance(trigger, ObjectStoreTrigger):
        listed = [ListedObject(f"{trigger.head}{number}.csv", HIGH, number, "7") for number in (1, 2)]
        return object_changes(listed, trigger.version_name)
    if isinstance(trigger, SQLUpdatedAtTrigger):
        return [_row(trigger, number) for number in (1, 2)]
    detail = {"name": "a.pdf", "size": 1, "modified": "2026-03-01T12:01:00Z"}
    return [Change(identity="a.pdf", version="1", position=HIGH, detail=detail)]


def _row(trigger: SQLUpdatedAtTrigger, number: int) -> Change:
    detail: dict[str, Any] = {
        "cursor": encode_position(HIGH),
        "key": dict.fromkeys(trigger.key_columns, number),
    }
    if trigger.payload == "rows":
        detail["row"] = dict.fromkeys(trigger.columns, number)
    return Change(identity=json.dumps(number), version="", position=HIGH, detail=detail)


def triggering_events(schedule: Any) -> dict[Any, list[Any]]:
    """Give what a run of a Dag with this schedule would be handed: an event for each watcher."""
    return {
        asset: [
            SimpleNamespace(extra={"from_trigger": True, "payload": payload_for(watcher.trigger)})
            for watcher in asset.watchers
        ]
        for asset in watched_assets(schedule)
    }
