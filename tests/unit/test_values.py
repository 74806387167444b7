"""Values of rows in events: through JSON and back, each as it was."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import EventError
from airflow.providers.watermark.values import (
    Interval,
    Range,
    decode_value,
    encode_column,
    encode_value,
    write_column,
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.timedeltas(timedelta(hours=-14), timedelta(hours=14)).map(
    lambda offset: timezone(timedelta(minutes=offset // timedelta(minutes=1)))
)


def unfolded(moment):
    """No database knows which of two equal hours is meant."""
    return moment.replace(fold=0)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    texts,
    st.floats(),
    st.decimals(),
    st.binary(),
    st.uuids(),
    st.dates(),
    st.datetimes().map(unfolded),
    st.datetimes(timezones=st.just(UTC)).map(unfolded),
    st.times().map(unfolded),
    st.times(timezones=offsets).map(unfolded),
    st.timedeltas(),
    st.builds(Interval, st.integers(), st.integers(), st.integers()),
)
ranges = st.builds(Range, scalars, scalars, st.sampled_from(["[)", "[]", "()", "(]", "empty"]))
values = st.recursive(
    st.one_of(scalars, ranges),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def through_json(value):
    return decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))


@given(values)
def test_every_value_comes_back_as_it_was(value):
    assert repr(through_json(value)) == repr(value)


@given(values)
def test_every_value_is_strict_json(value):
    json.dumps(encode_value(value), allow_nan=False, ensure_ascii=False).encode()


@given(values, values)
def test_different_values_have_different_forms(one, other):
    """So that a digest of the forms tells versions of a row apart."""
    same = json.dumps(encode_value(one)) == json.dumps(encode_value(other))
    assert same == (repr(one) == repr(other))


@given(st.datetimes(timezones=offsets, min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001
def test_an_instant_in_another_zone_comes_back_in_utc(moment):
    assert through_json(moment) == moment
    assert through_json(moment).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (1, 1),
        (True, True),
        ("a", "a"),
        (None, None),
        (0.5, {"$type": "float", "value": "0.5"}),
        (-math.inf, {"$type": "float", "value": "-inf"}),
        (Decimal("1.10"), {"$type": "decimal", "value": "1.10"}),
        (b"\x00", {"$type": "bytes", "value": "AA=="}),
        (date(2026, 1, 2), {"$type": "date", "value": "2026-01-02"}),
        (datetime(2026, 1, 2, tzinfo=UTC), {"$type": "timestamp", "value": "2026-01-02T00:00:00Z"}),
        (time(1, 2), {"$type": "time", "value": "01:02:00"}),
        (timedelta(days=-1, seconds=3), {"$type": "interval", "value": [-1, 3, 0]}),
        (Interval(14, -1, 2), {"$type": "months", "value": [14, -1, 2]}),
        (UUID(int=1), {"$type": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        ([1, None], {"$type": "array", "value": [1, None]}),
        ({"$type": "array"}, {"$type": "object", "value": {"$type": "array"}}),
        (Range(1, None, "[)"), {"$type": "range", "value": [1, None, "[)"]}),
    ],
    ids=repr,
)
def test_the_published_form_of_a_value(value, wire):
    assert encode_value(value) == wire


class TestOtherTypes:
    def test_of_bytes_become_bytes(self):
        assert through_json(bytearray(b"ab")) == through_json(memoryview(b"ab")) == b"ab"

    def test_of_sequences_become_lists(self):
        assert through_json((1, 2)) == [1, 2]

    @pytest.mark.parametrize(
        ("lower_inc", "upper_inc", "bounds"),
        [(True, False, "[)"), (True, True, "[]"), (False, False, "()"), (False, True, "(]")],
    )
    def test_of_ranges_become_ours(self, lower_inc, upper_inc, bounds):
        ends = {"lower": 1, "upper": Decimal(2), "lower_inc": lower_inc, "upper_inc": upper_inc}
        assert through_json(SimpleNamespace(**ends, isempty=False)) == Range(1, Decimal(2), bounds)

    def test_of_empty_ranges_become_ours(self):
        empty = {"lower": None, "upper": None, "lower_inc": False, "upper_inc": False, "isempty": True}
        assert through_json(SimpleNamespace(**empty)) == Range(None, None, "empty")

    def test_that_nobody_knows_become_their_text(self):
        assert through_json(SimpleNamespace(a=1)) == "namespace(a=1)"

    def test_a_text_that_no_json_can_hold_is_escaped(self):
        assert through_json("a\ud800") == "a\\ud800"


@pytest.mark.parametrize(
    "wire",
    [
        1.5,
        [1],
        {},
        {"$type": "float"},
        {"$type": "float", "value": "x"},
        {"$type": "decimal", "value": "x"},
        {"$type": "time", "value": "25:00"},
        {"$type": "interval", "value": [1, 2]},
        {"$type": "interval", "value": [10**12, 0, 0]},
        {"$type": "months", "value": [1, 2]},
        {"$type": "range", "value": [1, 2]},
        {"$type": "array", "value": "x"},
        {"$type": "array", "value": [1.5]},
        {"$type": "object", "value": {"a": {"$type": "date", "value": "x"}}},
        {"$type": "date", "value": "x"},
        {"$type": "nosuch", "value": "x"},
        {"$type": "bytes", "value": "?"},
        {"value": "x"},
    ],
    ids=repr,
)
def test_what_is_no_value_is_an_error_that_shows_it(wire):
    with pytest.raises(EventError, match="is no value"):
        decode_value(wire)


@given(st.lists(values, min_size=1, max_size=4), st.lists(scalars.filter(lambda value: value is not None)))
def test_a_column_is_encoded_and_written_as_each_of_its_values(mixed, column):
    for many in (mixed, column, [value for value in column if isinstance(value, type(column[0]))]):
        wires = encode_column(many)
        assert repr(wires) == repr([encode_value(value) for value in many])
        assert write_column(wires) == [json.dumps(wire) for wire in wires]
