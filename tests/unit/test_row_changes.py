"""From rows to changes: what is counted and named there is what would be counted and named of the change."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.change import Change, HighWatermark, digest
from airflow.providers.watermark.position import BEGINNING, encode_position
from airflow.providers.watermark.sql.query import WatchedQuery
from airflow.providers.watermark.sql.rows import RowChanges, read_position
from airflow.providers.watermark.values import encode_value
from airflow.providers.watermark.watermark import Sweep, WatermarkState

NOON = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(st.none(), st.booleans(), st.integers(), texts, st.decimals(), st.dates(), st.binary())
cursors = st.one_of(
    st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=5),
    st.lists(st.integers(), min_size=1, max_size=5),
    st.lists(texts, min_size=1, max_size=5),
)


def sweep(low=BEGINNING, *, seen=(), due=None, high=BEGINNING):
    state = WatermarkState(source={}, low=low, seen=dict(seen))
    return Sweep(state, HighWatermark(bound=high, due=due), 100)


def changes(rows, *, keys=("id",), columns=(), with_rows=False, kind=None, max_bytes=10**6, **arguments):
    query = WatchedQuery(
        table="t", query=None, cursor_column="at", primary_key=tuple(keys), columns=tuple(columns)
    )
    made = RowChanges(query, kind=kind, with_rows=with_rows, source="sql://db/t", max_bytes=max_bytes)
    return made.news(rows, sweep(**arguments))


@given(cursors, st.data(), st.lists(texts, min_size=3, max_size=3, unique=True), st.booleans())
def test_a_change_is_named_and_counted_as_it_would_be_by_itself(positions, data, names, with_rows):
    positions = sorted(positions)
    rows = [(position, *data.draw(st.tuples(values, values, values))) for position in positions]
    columns = names[2:] if with_rows else []
    found = changes(
        [row if with_rows else row[:3] for row in rows], keys=names[:2], columns=columns, with_rows=with_rows
    )
    assert len(found) == len(rows)
    for change, (position, first, second, value) in zip(found, rows, strict=True):
        key = {names[0]: encode_value(first), names[1]: encode_value(second)}
        row = {"row": {names[2]: encode_value(value)}} if with_rows else {}
        assert change.detail == {"cursor": encode_position(position), "key": key, **row}
        assert change.identity == json.dumps(key)
        assert change.version == (digest(json.dumps([encode_value(value)])) if with_rows else "")
        alone = Change(identity=change.identity, version=change.version, position=position)
        assert change.id == alone.id
        assert change.size == len(json.dumps({"id": change.id, **change.detail}))
        assert repr(change.cursor) == repr((position, first, second))


def test_the_id_of_a_row_is_the_same_for_ever():
    (row,) = changes([(NOON, 7, "a", Decimal("1.10"))], columns=["name", "price"], with_rows=True)
    (key,) = changes([(NOON, UUID(int=7))])
    assert (row.id, key.id) == (IDS["row"], IDS["key"])


IDS = {"row": "L5d9Mu0DWKY", "key": "HPN8nRt3XQg"}


class TestOldNews:
    ROWS = ((NOON, 1), (NOON + SECOND, 2), (NOON + 2 * SECOND, 3))

    def test_is_left_out(self):
        first, second, third = changes(self.ROWS)
        assert [change.id for change in changes(self.ROWS, low=NOON)] == [second.id, third.id]
        assert [change.id for change in changes(self.ROWS, seen={second.id: second.position})] == [
            first.id,
            third.id,
        ]

    def test_of_another_version_is_news(self):
        (old,) = changes([(NOON, 1, "a")], columns=["x"], with_rows=True)
        seen = {old.id: NOON}
        assert changes([(NOON, 1, "a")], columns=["x"], with_rows=True, seen=seen) == []
        assert len(changes([(NOON, 1, "b")], columns=["x"], with_rows=True, seen=seen)) == 1


class TestAWholeSecond:
    AT = NOON.replace(microsecond=0)

    @pytest.mark.parametrize(
        ("due", "high", "count"),
        [(0.5, -9, 0), (1, -9, 1), (1.5, -9, 1), (0.5, 0, 1), (0.5, -1, 0)],
        ids=["not over", "just over", "over", "settled", "not settled"],
    )
    def test_waits_until_it_is_over_unless_it_is_settled(self, due, high, count):
        bounds = {"due": self.AT + due * SECOND, "high": self.AT + high * SECOND}
        assert len(changes([(self.AT, 1)], **bounds)) == count
        assert len(changes([(self.AT.replace(microsecond=1), 1)], **bounds)) == 1

    def test_is_nothing_to_a_date(self):
        assert len(changes([(date(2026, 1, 1), 1)], due=date(2026, 1, 2))) == 1


@pytest.mark.parametrize("size", [10, 100, 1000, 7000, 7500, 8000, 10_000])
def test_a_row_that_has_no_room_comes_with_its_key_only(size):
    (change,) = changes([(NOON, 1, "x" * size)], columns=["x"], with_rows=True, max_bytes=8192)
    assert change.detail.get("truncated", False) == ("row" not in change.detail) == (size > 7000)
    assert change.size == len(json.dumps({"id": change.id, **change.detail}))


def test_infinite_times_get_the_zone_of_the_others():
    ends = (datetime.min, datetime.max)  # noqa: DTZ901
    assert [read_position(end, "timestamp") for end in ends] == [end.replace(tzinfo=UTC) for end in ends]
    assert [read_position(end, "naive-timestamp") for end in ends] == list(ends)
    found = changes([(ends[0], 1), (NOON, 2)], kind="timestamp")
    assert [change.position for change in found] == [ends[0].replace(tzinfo=UTC), NOON]
