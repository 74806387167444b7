"""Event payloads: how they are built within their limits, and how a consumer reads them."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.change import Change
from airflow.providers.watermark.events import Batch, DeliveredChange, ObjectChange, read_changes
from airflow.providers.watermark.exceptions import EventError
from airflow.providers.watermark.position import BEGINNING
from airflow.sdk import Asset
from airflow.sdk.api.datamodels._generated import AssetReferenceAssetEventDagRun
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS = Asset("orders")


def batch(**limits):
    return Batch(
        **{
            "watcher": "s3",
            "source": "s3://lake/orders/",
            "low": BEGINNING,
            "high": NOON,
            "epoch": 1,
            "max_changes": 500,
            "max_bytes": 49152,
            **limits,
        }
    )


def change(key, *, seconds=0, size=10, etag="e", **detail):
    at = NOON + timedelta(seconds=seconds)
    return Change(
        identity=key,
        version=etag,
        position=at,
        detail={
            "key": key,
            "size": size,
            "etag": etag,
            "last_modified": at.isoformat().replace("+00:00", "Z"),
            **detail,
        },
    )


def payload(*changes, **limits):
    one = batch(**limits)
    for entry in changes:
        assert one.add(entry)
    return one.close()


# --- building -----------------------------------------------------------------------------------------------


def test_a_payload_has_the_documented_shape():
    assert payload(change("orders/1.csv", etag="0a"), change("orders/2.csv", etag="0b")) == {
        "watermark": {
            "version": 1,
            "event_id": "qR7QZTgiChk",
            "epoch": 1,
            "watcher": "s3",
            "source": "s3://lake/orders/",
            "low": {"type": "beginning", "value": None},
            "high": {"type": "timestamp", "value": "2026-03-01T12:00:00Z"},
        },
        "count": 2,
        "changes": [
            {
                "id": "yvsXNpSt2c8",
                "key": "orders/1.csv",
                "size": 10,
                "etag": "0a",
                "last_modified": "2026-03-01T12:00:00Z",
            },
            {
                "id": "phksUFhz9k8",
                "key": "orders/2.csv",
                "size": 10,
                "etag": "0b",
                "last_modified": "2026-03-01T12:00:00Z",
            },
        ],
    }


def test_without_changes_there_is_no_event():
    assert batch().close() is None


def test_a_closed_batch_begins_anew():
    one = batch()
    one.add(change("a"))
    first = one.close()
    one.add(change("b"))
    second = one.close()
    assert [len(event["changes"]) for event in (first, second)] == [1, 1]
    assert first["changes"][0]["key"] == "a"
    assert one.close() is None


def test_the_event_id_is_made_from_the_change_ids_in_their_order():
    a, b = change("a"), change("b")
    ids = [
        event["watermark"]["event_id"] for event in (payload(a, b), payload(a, b), payload(b, a), payload(a))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_the_event_id_of_a_repeat_is_the_same_whatever_its_bounds():
    assert (
        payload(change("a"))["watermark"]["event_id"]
        == (payload(change("a"), high=NOON + timedelta(hours=1))["watermark"]["event_id"])
    )


def test_no_more_changes_than_allowed_are_added():
    one = batch(max_changes=2)
    assert [one.add(change(key)) for key in "abc"] == [True, True, False]
    assert one.close()["count"] == 2


def test_one_change_always_fits():
    one = batch(max_bytes=100)
    assert one.add(change("x" * 1000))
    assert not one.add(change("y"))
    assert one.close()["count"] == 1


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), min_size=1, max_size=60
    ),
    st.integers(400, 6000),
    st.sampled_from([1, 9, 10, 99, 100, 500]),
)
def test_events_are_as_large_as_allowed_and_no_larger(keys, max_bytes, max_changes):
    one = batch(max_bytes=max_bytes, max_changes=max_changes)
    events, delivered = [], []
    for key in keys:
        entry = change(key)
        if not one.add(entry):
            event = one.close()
            # The one that did not fit would have made it too large, but for a comma and digits.
            larger = {**event, "changes": [*event["changes"], {"id": entry.id, **entry.detail}]}
            full = len(event["changes"]) == max_changes
            assert full or len(json.dumps(larger)) > max_bytes - len(", ") - len(str(max_changes))
            events.append(event)
            assert one.add(entry)
        delivered.append(key)
    events.append(one.close())
    for event in events:
        assert event["count"] == len(event["changes"]) <= max_changes
        assert len(json.dumps(event)) <= max_bytes or event["count"] == 1
    assert [entry["key"] for event in events for entry in event["changes"]] == delivered == keys


@pytest.mark.parametrize("max_changes", [9, 500])
def test_no_limit_of_bytes_is_passed_by_a_single_byte(max_changes):
    entries = [change(f"orders/{number}") for number in range(9)]
    for max_bytes in range(500, 1200):
        one = batch(max_bytes=max_bytes, max_changes=max_changes)
        for entry in entries:
            if not one.add(entry):
                break
        assert len(json.dumps(one.close())) <= max_bytes


@pytest.mark.parametrize(
    "detail",
    [
        pytest.param({"x": NOON}, id="a datetime"),
        pytest.param({"x": b"bytes"}, id="bytes"),
        pytest.param({"x": float("nan")}, id="NaN"),
        pytest.param({"x": float("inf")}, id="infinity"),
        pytest.param({"x": [{"y": -float("inf")}]}, id="infinity deep inside"),
        pytest.param({"x": "\ud800"}, id="a lone surrogate"),
        pytest.param({"\udfff": 1}, id="a lone surrogate in a name"),
        pytest.param({"x": {1, 2}}, id="a set"),
        pytest.param({"x": object()}, id="an object"),
        pytest.param({"x": {("a", "b"): 1}}, id="a tuple as a name"),
        pytest.param({"id": 5}, id="an id of its own"),
    ],
)
def test_a_detail_that_is_not_strict_json_is_refused_and_the_change_is_named(detail):
    one = batch()
    with pytest.raises(EventError, match="change 'poison'"):
        one.add(change("poison", **detail))
    assert one.close() is None


def test_a_refused_change_leaves_the_batch_as_it_was():
    one = batch()
    one.add(change("a"))
    with pytest.raises(EventError):
        one.add(change("b", x=float("nan")))
    assert one.add(change("c"))
    assert [entry["key"] for entry in one.close()["changes"]] == ["a", "c"]


# --- reading ------------------------------------------------------------------------------------------------


@dataclass
class Event:
    """As much of an asset event as is read."""

    extra: Any


def event(payload_):
    return Event({"from_trigger": True, "payload": payload_})


def read(*payloads):
    return read_changes({ORDERS: [event(one) for one in payloads]}, ORDERS)


def keys(changes):
    return [one.key for one in changes]


def test_an_object_is_read_typed():
    (one,) = read(payload(change("orders/a b.csv", seconds=5, size=7, etag="0a", more=1), epoch=3))
    assert isinstance(one, ObjectChange)
    assert (one.bucket, one.key, one.uri) == ("lake", "orders/a b.csv", "s3://lake/orders/a b.csv")
    assert (one.size, one.etag, one.epoch) == (7, "0a", 3)
    assert one.last_modified == NOON + timedelta(seconds=5)
    assert one.last_modified.utcoffset() == timedelta(0)
    assert one.id == change("orders/a b.csv", seconds=5, etag="0a").id
    assert one.detail["more"] == 1
    assert "id" not in one.detail


def test_what_another_watcher_tells_is_read_as_it_is():
    (one,) = read(payload(change("a"), watcher="mine", source="x:y"))
    assert type(one) is DeliveredChange
    assert one.detail["key"] == "a"


def test_all_changes_of_all_events_are_read_oldest_first_whatever_the_order_of_the_events():
    events = [
        payload(change("b", seconds=3), change("c", seconds=1)),
        payload(change("a", seconds=2)),
        payload(change("d", seconds=1), change("e", seconds=0)),
    ]
    for order in itertools.permutations(events):
        assert keys(read(*order)) == ["e", "c", "d", "a", "b"]


def test_repeated_events_and_repeated_changes_are_read_once():
    a, b, c = change("a"), change("b"), change("c")
    assert keys(read(payload(a, b), payload(a, b), payload(b, c))) == ["a", "b", "c"]


def test_two_versions_of_a_thing_are_two_changes():
    found = read(payload(change("a", etag="1")), payload(change("a", etag="2", seconds=1)))
    assert [one.etag for one in found] == ["1", "2"]


def test_a_change_of_two_epochs_is_read_once_in_the_newest_one():
    a = change("a")
    for order in itertools.permutations([payload(a, epoch=epoch) for epoch in (1, 3, 2)]):
        assert [one.epoch for one in read(*order)] == [3]


def test_equal_objects_of_two_sources_are_two_changes():
    """One asset with two watchers made by hand, on a bucket and on its replica."""
    found = read(payload(change("a")), payload(change("a"), source="s3://replica/"))
    assert sorted(one.bucket for one in found) == ["lake", "replica"]


def test_objects_of_several_watchers_of_one_asset_are_read_together():
    found = read(payload(change("a")), payload(change("b"), watcher="mine"))
    assert len(found) == 2


@pytest.mark.parametrize("events", [None, {}, {Asset("other"): []}, {ORDERS: []}], ids=repr)
def test_without_events_there_are_no_changes(events):
    assert read_changes(events, ORDERS) == []


def test_events_of_other_assets_are_not_read():
    other = Asset("other")
    events = {other: [event(payload(change("x")))], ORDERS: [event(payload(change("a")))]}
    assert keys(read_changes(events, ORDERS)) == ["a"]


@pytest.mark.parametrize(
    "extra",
    [
        None,
        {},
        {"from_rest_api": True},
        {"from_trigger": True},
        {"from_trigger": True, "payload": None},
        {"from_trigger": True, "payload": "text"},
        {"from_trigger": True, "payload": [1]},
        {"from_trigger": True, "payload": {}},
        {"from_trigger": True, "payload": {"message": "of another trigger"}},
        {"from_rest_api": True, "payload": {"watermark": {"version": 1}}},
    ],
    ids=repr,
)
def test_an_event_that_is_not_ours_is_passed_over_and_logged(extra, caplog):
    caplog.set_level("INFO", logger="airflow.providers.watermark")
    events = {ORDERS: [Event(extra), event(payload(change("a")))]}
    assert keys(read_changes(events, ORDERS)) == ["a"]
    assert "An event of asset 'orders' is not from a watermark trigger; passed over" in caplog.messages


def test_an_event_of_a_newer_release_is_refused_with_what_to_do():
    newer = payload(change("a"))
    newer["watermark"]["version"] = 2
    with pytest.raises(EventError, match=r"'orders' has an event of version 2.*up to 1: upgrade"):
        read(payload(change("b")), newer)


def test_an_event_with_a_window_is_refused():
    window = payload(change("a"))
    del window["changes"]
    with pytest.raises(EventError, match="carries a window, not changes"):
        read(window)


GOOD = payload(change("a"), change("b"))
DAMAGED = {
    "no changes": ("changes", None),
    "changes are a text": ("changes", "ab"),
    "changes are a number": ("changes", 1),
    "a change is a text": ("changes.0", "a"),
    "a change is nothing": ("changes.0", None),
    "a change is a list": ("changes.0", []),
    "a change is empty": ("changes.0", {}),
    "a key is a number": ("changes.0.key", 5),
    "a key is nothing": ("changes.0.key", None),
    "an id is a number": ("changes.0.id", 5),
    "an id is a list": ("changes.0.id", []),
    "a size is a text": ("changes.0.size", "10"),
    "an etag is nothing": ("changes.0.etag", None),
    "a time is a number": ("changes.0.last_modified", 5),
    "a time is none": ("changes.0.last_modified", "yesterday"),
    "a time has no offset": ("changes.0.last_modified", "2026-03-01T12:00:00"),
    "a time is out of range": ("changes.0.last_modified", "0001-01-01T00:00:00+14:00"),
    "the source is a number": ("watermark.source", 5),
    "the source is nothing": ("watermark.source", None),
    "the version is a text": ("watermark.version", "1"),
    "the epoch is a text": ("watermark.epoch", "1"),
    "the event id is nothing": ("watermark.event_id", None),
    "the watcher is nothing": ("watermark.watcher", None),
    "the watermark is nothing": ("watermark", None),
    "the watermark is empty": ("watermark", {}),
}


def damaged(path, value):
    wire: Any = copy.deepcopy(GOOD)
    part = wire
    *names, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    for name in names:
        part = part[name]
    part[last] = value
    return wire


@pytest.mark.parametrize(("path", "value"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_event_is_an_error_that_names_the_asset(path, value):
    with pytest.raises(EventError, match="'orders'"):
        read(damaged(path, value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(value, path=()):
    if path:
        yield ".".join(map(str, path))
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in items:
        yield from paths(part, (*path, name))


@given(st.sampled_from(sorted(paths(GOOD))), json_values, st.sampled_from(["s3", "mine"]))
def test_whatever_is_damaged_the_error_is_ours(path, value, watcher):
    wire = damaged(path, value)
    if isinstance(wire["watermark"], dict) and path != "watermark.watcher":
        wire["watermark"]["watcher"] = watcher
    try:
        found = read(wire, payload(change("c")))
    except EventError:
        return
    assert all(isinstance(one.id, str) for one in found)


# --- with Airflow's own types -------------------------------------------------------------------------------


def airflow_event(payload_, asset=ORDERS, minute=0):
    return AssetEventDagRunReferenceResult(
        asset=AssetReferenceAssetEventDagRun(name=asset.name, uri=asset.uri, extra={}),
        extra={"from_trigger": True, "payload": json.loads(json.dumps(payload_))},
        source_task_id=None,
        source_dag_id=None,
        source_run_id=None,
        source_map_index=None,
        source_aliases=[],
        timestamp=NOON + timedelta(minutes=minute),
    )


def test_a_tasks_triggering_asset_events_are_read_as_they_are():
    other = Asset("other")
    events = TriggeringAssetEventsAccessor.build(
        [
            airflow_event(payload(change("b", seconds=1)), minute=2),
            airflow_event(payload(change("x")), asset=other),
            airflow_event(payload(change("a")), minute=1),
        ]
    )
    assert keys(read_changes(events, ORDERS)) == ["a", "b"]
    assert keys(read_changes(events, other)) == ["x"]
    assert read_changes(events, Asset("a third")) == []


def test_a_run_started_by_hand_has_no_changes():
    assert read_changes(TriggeringAssetEventsAccessor.build([]), ORDERS) == []


def test_the_watched_asset_itself_finds_its_events():
    from airflow.providers.watermark import watch
    from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger

    watched = watch("orders", S3PrefixTrigger(bucket_name="lake"))
    events = TriggeringAssetEventsAccessor.build([airflow_event(payload(change("a")), asset=watched)])
    assert keys(read_changes(events, watched)) == ["a"]
