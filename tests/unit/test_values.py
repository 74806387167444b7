"""Values of rows in events: through JSON and back, each as it was."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Network
from types import MappingProxyType, SimpleNamespace
from uuid import UUID

import pytest
from asyncpg.types import Box, Circle, Line, LineSegment, Path, Point, Polygon
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


INFINITE = (datetime.min, datetime.max)  # noqa: DTZ901 - as asyncpg gives them


def unfolded(moment):
    """No database knows which of two equal hours is meant."""
    return moment.replace(fold=0)


def is_finite(moment):
    return moment.replace(tzinfo=None) not in INFINITE


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
    st.datetimes().map(unfolded).filter(is_finite),
    st.datetimes(timezones=st.just(UTC)).map(unfolded).filter(is_finite),
    st.times().map(unfolded),
    st.times(timezones=offsets).map(unfolded),
    st.timedeltas(),
    st.builds(Interval, st.integers(), st.integers(), st.integers()),
)
ranges = st.builds(Range, scalars, scalars, st.sampled_from(["[)", "[]", "()", "(]", "empty"]))
NOON = datetime(2026, 1, 2, 12)  # noqa: DTZ001


class Opaque:
    """As a driver's type of which nobody has thought."""


class Loose:
    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


class Composite:
    """As :class:`asyncpg.Record`, which only a connection can make: no mapping, and iterated by value."""

    def __init__(self, **fields):
        self._fields = fields

    def __iter__(self):
        return iter(self._fields.values())

    def keys(self):
        return iter(self._fields)

    def items(self):
        return iter(self._fields.items())


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

    @pytest.mark.parametrize(
        ("value", "form"),
        [
            (Point(1, 2), [1.0, 2.0]),
            (Box((3, 4), (1, 2)), [[3.0, 4.0], [1.0, 2.0]]),
            (Line(1.0, 2.0, 3.0), [1.0, 2.0, 3.0]),
            (LineSegment((1, 2), (3, 4)), [[1.0, 2.0], [3.0, 4.0]]),
            (Circle(Point(1, 2), 3.0), [[1.0, 2.0], 3.0]),
            (Path((1, 2), (3, 4)), {"closed": False, "points": [[1.0, 2.0], [3.0, 4.0]]}),
            (Path((1, 2), (3, 4), is_closed=True), {"closed": True, "points": [[1.0, 2.0], [3.0, 4.0]]}),
            (Polygon((1, 2), (3, 4)), {"closed": True, "points": [[1.0, 2.0], [3.0, 4.0]]}),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_of_geometry_become_their_coordinates(self, value, form):
        assert through_json(value) == form
        assert through_json([value, None]) == [form, None]
        assert [decode_value(wire) for wire in encode_column([value, value])] == [form, form]

    def test_with_named_fields_become_objects(self):
        assert through_json(Composite(a=1, b=Path((1, 2)))) == {
            "a": 1,
            "b": {"closed": False, "points": [[1.0, 2.0]]},
        }
        assert through_json(MappingProxyType({"a": 1})) == {"a": 1}

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (SimpleNamespace(a=1), "namespace(a=1)"),
            (IPv4Network("10.0.0.0/8"), "10.0.0.0/8"),
            (SimpleNamespace(a="\ud800"), "namespace(a='\\ud800')"),
            (Loose("\ud800"), "\\ud800"),
        ],
    )
    def test_that_nobody_knows_become_their_text(self, value, text):
        assert through_json(value) == text

    @pytest.mark.parametrize(
        "value", [Opaque(), SimpleNamespace(a=Opaque()), lambda: None], ids=["one", "within", "function"]
    )
    @pytest.mark.parametrize(
        "wrap", [lambda it: it, lambda it: [it], lambda it: {"a": it}, lambda it: (it, 1)]
    )
    def test_whose_text_is_another_each_time_are_refused_by_name(self, value, wrap):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        for encode in (encode_value, lambda it: encode_column([1, it])):
            with pytest.raises(
                EventError, match=f"a value of the type {re.escape(kind)} has no lasting text"
            ):
                encode(wrap(value))

    def test_a_text_that_no_json_can_hold_is_escaped(self):
        assert through_json("a\ud800") == "a\\ud800"
        assert through_json({"a\ud800": 1}) == {"a\\ud800": 1}


class TestInfiniteTimes:
    """asyncpg gives them without the zone that others of their column have."""

    @pytest.mark.parametrize("infinite", INFINITE, ids=str)
    @pytest.mark.parametrize("others", [[], [None], [NOON, None]], ids=repr)
    def test_have_no_zone_where_no_other_has_one(self, infinite, others):
        read = [decode_value(wire) for wire in encode_column([infinite, *others])]
        assert read == [infinite, *others]

    @pytest.mark.parametrize("infinite", INFINITE, ids=str)
    def test_have_the_zone_that_others_of_their_column_have(self, infinite):
        aware = NOON.replace(tzinfo=UTC)
        read = [decode_value(wire) for wire in encode_column([infinite, None, aware])]
        assert read == [infinite.replace(tzinfo=UTC), None, aware]
        assert (read[0] < aware) == (infinite < NOON), "they can be compared"

    @pytest.mark.parametrize("infinite", INFINITE, ids=str)
    @pytest.mark.parametrize("zone", [UTC, None])
    def test_have_the_zone_that_others_of_their_array_or_range_have(self, infinite, zone):
        pair = [infinite, NOON.replace(tzinfo=zone)]
        assert through_json(pair) == [infinite.replace(tzinfo=zone), pair[1]]
        for bounds in (pair, pair[::-1]):
            zoned = [bound.replace(tzinfo=zone) for bound in bounds]
            assert through_json(Range(*bounds, "[)")) == Range(*zoned, "[)")

    @pytest.mark.parametrize("infinite", INFINITE, ids=str)
    def test_are_written_alike_whatever_is_beside_them(self, infinite):
        """So that a row is the same version in another page."""
        texts = {
            write_column(encode_column([infinite, *others]))[0]
            for others in ([], [None], [NOON], [NOON.replace(tzinfo=UTC)], [NOON.replace(tzinfo=UTC), None])
        }
        assert texts == {json.dumps(encode_value(infinite))}


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
