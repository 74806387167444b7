"""From listed objects to changes: a page at once is as each change by itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow.providers.watermark.change import Change, change_id, change_ids
from airflow.providers.watermark.events import Batch
from airflow.providers.watermark.objects.changes import object_changes
from airflow.providers.watermark.objects.listing import ListedObject
from airflow.providers.watermark.position import encode_position, format_timestamp

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

odd = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters='"\\'))
times = st.datetimes(timezones=st.just(UTC)) | st.sampled_from([NOON, NOON + timedelta(microseconds=1)])


def listed(texts):
    objects = st.builds(ListedObject, texts, times, st.integers(min_value=0, max_value=10**18), texts)
    return st.lists(objects, max_size=5)


def batch(max_bytes=10**6):
    return Batch(
        watcher="s3", source="s3://lake/", low=NOON, high=NOON, epoch=1, max_changes=500, max_bytes=max_bytes
    )


@given(listed(plain) | listed(odd))
@example([ListedObject("a\x7fb", NOON, 0, "v"), ListedObject("", NOON, 1, "")])
@example([ListedObject('a"b', NOON, 0, "v"), ListedObject("ü/\U0001f600", NOON, 1, "")])
def test_a_change_is_named_and_counted_as_it_would_be_by_itself(found):
    made = object_changes(found, "etag")
    assert len(made) == len(found)
    for change, each in zip(made, found, strict=True):
        assert change.detail == {
            "key": each.key,
            "size": each.size,
            "etag": each.version,
            "last_modified": format_timestamp(each.modified),
        }
        alone = Change(identity=each.key, version=each.version, position=each.modified, detail=change.detail)
        assert change.id == alone.id == change_id(each.key, each.version, encode_position(each.modified))
        assert change.size in {None, len(json.dumps({"id": change.id, **change.detail}))}
        one, other = batch(), batch()
        assert one.add(change) is other.add(alone) is True
        assert one._bytes == other._bytes
        assert one.close() == other.close()


@given(listed(plain))
def test_plain_texts_are_counted_without_being_written(found):
    assert all(change.size is not None for change in object_changes(found, "generation"))


def test_the_id_of_an_object_is_the_same_for_ever():
    (change,) = object_changes(
        [ListedObject("in/a.csv", NOON, 10, "5d41402abc4b2a76b9719d911017c592")], "etag"
    )
    assert change.id == "ZDLCWeG-p-Y"


def test_a_text_that_is_no_unicode_has_no_name():
    with pytest.raises(UnicodeEncodeError):
        object_changes([ListedObject("a\ud800", NOON, 1, "v")], "etag")


def test_an_event_is_as_full_as_its_bytes_allow_and_no_fuller():
    found = [ListedObject(f"in/{number:04}", NOON, 10, "v") for number in range(50)]
    collected = batch(max_bytes=2000)
    for change in object_changes(found, "etag"):
        if not collected.add(change):
            break
    assert 1000 < len(json.dumps(collected.close())) <= 2000


def test_strays_are_told_by_key_and_time():
    found = [ListedObject("a", NOON, 1, "v"), ListedObject("b", NOON, 1, "v")]
    made = object_changes(found, "etag", lambda key, time: key == "b" and time == NOON)
    assert [change.stray for change in made] == [False, True]


def test_nothing_is_made_of_nothing():
    assert object_changes([], "etag") == []
    assert change_ids([], [], "timestamp", []) == []
