"""Typed positions: their order, and their way to JSON text and back."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from uuid import UUID
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import PositionTypeError, StateError
from airflow.providers.watermark.position import (
    BEGINNING,
    decode_position,
    encode_position,
    floor_timestamp,
    format_timestamp,
    format_timestamps,
    is_after,
    parse_timestamp,
    position_type,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAIVE = datetime(2026, 3, 1, 12)  # noqa: DTZ001
MICROSECOND = timedelta(microseconds=1)

offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
kinds = {
    "timestamp": st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=offsets),  # noqa: DTZ001
    "naive-timestamp": st.datetimes(),
    "date": st.dates(),
    "integer": st.integers(),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "bytes": st.binary(),
    "uuid": st.uuids(),
}
scalars = st.one_of(*kinds.values())
every_kind = pytest.mark.parametrize("kind", kinds)

# One of each type, with its wire value: stored by users, so these are the same for ever.
GOLDEN = {
    "beginning": (BEGINNING, None),
    "timestamp": (NOON, "2026-03-01T12:00:00Z"),
    "timestamp with microseconds": (NOON + MICROSECOND, "2026-03-01T12:00:00.000001Z"),
    "timestamp with an offset": (
        NOON.astimezone(timezone(timedelta(hours=5, minutes=45))),
        "2026-03-01T12:00:00Z",
    ),
    "naive-timestamp": (NAIVE, "2026-03-01T12:00:00"),
    "naive-timestamp with microseconds": (NAIVE + MICROSECOND, "2026-03-01T12:00:00.000001"),
    "date": (date(2026, 3, 1), "2026-03-01"),
    "integer": (-(2**70), "-1180591620717411303424"),
    "decimal": (Decimal("1.500"), "1.500"),
    "decimal with an exponent": (Decimal("-1E+30"), "-1E+30"),
    "float": (0.1, "0.1"),
    "float that is large": (1e300, "1e+300"),
    "string": ("日本\n\0", "日本\n\0"),
    "bytes": (b"\0\xff", "AP8="),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
}


@pytest.mark.parametrize(
    ("name", "position", "text"), [(name, *rest) for name, rest in GOLDEN.items()], ids=GOLDEN
)
def test_each_type_is_written_as_ever(name, position, text):
    assert encode_position(position) == {"type": name.partition(" ")[0], "value": text}


# --- round trips --------------------------------------------------------------------------------------------


@every_kind
@given(data=st.data())
def test_each_type_comes_back_from_json_text_exactly(kind, data):
    position = data.draw(kinds[kind])
    text = json.dumps(encode_position(position), allow_nan=False)
    again = decode_position(json.loads(text))
    assert again == position
    assert type(again) is type(position)
    assert position_type(again) == position_type(position) == kind
    assert json.dumps(encode_position(again)) == text


@given(kinds["decimal"])
def test_a_decimal_keeps_its_scale_and_its_sign(position):
    again = decode_position(encode_position(position))
    assert again.as_tuple() == position.as_tuple()


@given(kinds["float"])
def test_a_float_keeps_its_bits(position):
    assert decode_position(encode_position(position)).hex() == position.hex()


ZONES = [UTC, timezone(timedelta(hours=2)), ZoneInfo("UTC"), None]


@given(st.lists(st.datetimes(timezones=st.just(UTC)) | st.datetimes(timezones=st.sampled_from(ZONES))))
def test_many_instants_are_written_as_each_is(values):
    assert format_timestamps(values) == list(map(format_timestamp, values))


@given(kinds["timestamp"])
def test_an_instant_is_written_in_utc_whatever_its_offset(position):
    wire = encode_position(position)
    assert wire["value"].endswith("Z")
    assert wire == encode_position(position.astimezone(UTC))


@given(st.lists(scalars, min_size=1, max_size=4).map(tuple))
def test_a_tuple_comes_back_from_json_text_exactly(position):
    again = decode_position(json.loads(json.dumps(encode_position(position))))
    assert again == position
    assert position_type(again) == "tuple"


def test_the_beginning_is_one_object_wherever_it_comes_from():
    for again in (
        decode_position({"type": "beginning", "value": None}),
        copy.copy(BEGINNING),
        copy.deepcopy(BEGINNING),
        pickle.loads(pickle.dumps(BEGINNING)),  # noqa: S301 - our own
    ):
        assert again is BEGINNING
    assert repr(BEGINNING) == "BEGINNING"


@pytest.mark.parametrize(
    ("position", "kind"),
    [
        (pendulum.datetime(2026, 3, 1, 12), "timestamp"),
        (pendulum.datetime(2026, 3, 1, 13, tz="Europe/Berlin"), "timestamp"),
        (pendulum.datetime(2026, 3, 1, 12, 0, 0, 1), "timestamp"),
        (pendulum.naive(2026, 3, 1, 12), "naive-timestamp"),
        (pendulum.date(2026, 3, 1), "date"),
        (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), "timestamp"),
        (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), "timestamp"),
    ],
    ids=str,
)
def test_what_drivers_and_airflow_give_comes_back_equal(position, kind):
    wire = encode_position(position)
    assert wire["type"] == kind
    again = decode_position(wire)
    assert again == (position.astimezone(UTC) if kind == "timestamp" else position)


def test_the_hour_that_comes_twice_keeps_its_two_instants():
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert encode_position(first)["value"] == "2026-10-25T00:30:00Z"
    assert encode_position(second)["value"] == "2026-10-25T01:30:00Z"


# --- order --------------------------------------------------------------------------------------------------


@every_kind
@given(data=st.data())
def test_each_type_is_totally_ordered_and_the_wire_keeps_the_order(kind, data):
    one, two = data.draw(kinds[kind]), data.draw(kinds[kind])
    assert is_after(one, two) + is_after(two, one) + (one == two) == 1
    stored_one, stored_two = (decode_position(encode_position(position)) for position in (one, two))
    assert is_after(stored_one, stored_two) == is_after(one, two)


@every_kind
@given(data=st.data())
def test_the_beginning_is_before_everything(kind, data):
    position = data.draw(kinds[kind])
    assert is_after(position, BEGINNING)
    assert not is_after(BEGINNING, position)
    assert not is_after(BEGINNING, BEGINNING)


@pytest.mark.parametrize(
    ("lesser", "greater"),
    [
        (NOON, NOON + MICROSECOND),
        (NOON.astimezone(timezone(timedelta(hours=9))), NOON + MICROSECOND),
        (NOON, pendulum.instance(NOON + MICROSECOND)),
        (pendulum.instance(NOON), NOON + MICROSECOND),
        (date(2026, 3, 1), date(2026, 3, 2)),
        (9, 10),
        (2**64, 2**64 + 1),
        (Decimal("9.99"), Decimal(10)),
        ("10", "9"),
        ("Z", "a"),
        ("\uffee", "\U0001f600"),
        ("e\u0301", "\u00e9"),
        (b"\x7f", b"\x80"),
        (UUID(int=1), UUID(int=2**127)),
        ((NOON, 1), (NOON, 2)),
        ((NOON, 9), (NOON + MICROSECOND, 1)),
    ],
    ids=repr,
)
def test_the_order_is_the_sources(lesser, greater):
    assert is_after(greater, lesser)
    assert not is_after(lesser, greater)
    assert not is_after(lesser, lesser)


def test_strings_are_ordered_as_their_utf_8_bytes_are():
    texts = ["", "a", "\u00e9", "\uffee", "\U0001f600", "Z", "~", "/"]
    for one in texts:
        for two in texts:
            assert is_after(one, two) == (one.encode() > two.encode())


PAIRS = [
    (NOON, NAIVE),
    (NOON, date(2026, 3, 1)),
    (NAIVE, date(2026, 3, 1)),
    (pendulum.naive(2026, 3, 1), pendulum.datetime(2026, 3, 1)),
    (1, 1.0),
    (1, Decimal(1)),
    (1.5, Decimal("1.5")),
    (1, "1"),
    ("a", b"a"),
    (UUID(int=1), str(UUID(int=1))),
    (NOON, "2026-03-01T12:00:00Z"),
    (NOON, 5),
    ((1, 2), 1),
    ((1, "a"), (1, 2)),
]


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=repr)
def test_positions_of_two_types_have_no_order_and_the_error_names_both(one, two):
    for left, right in ((one, two), (two, one)):
        with pytest.raises(PositionTypeError) as caught:
            is_after(left, right)
        assert position_type(left) in str(caught.value)
        assert position_type(right) in str(caught.value)
        assert "reset the stored watermark" in str(caught.value)


def test_a_position_type_error_is_an_error_of_the_state_and_of_the_type():
    assert issubclass(PositionTypeError, StateError)
    assert issubclass(PositionTypeError, TypeError)


# --- what is no position ------------------------------------------------------------------------------------


class Number(IntEnum):
    ONE = 1


NO_POSITIONS = [
    None,
    True,
    False,
    float("nan"),
    float("inf"),
    -float("inf"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    "\ud800",
    "a\udfff",
    [1],
    {},
    (),
    (1, None),
    (True,),
    ((1,),),
    (BEGINNING, 1),
    timedelta(1),
    time(12),
    1j,
    object,
    bytearray(b"x"),
]


@pytest.mark.parametrize("value", NO_POSITIONS, ids=ascii)
def test_what_has_no_place_in_a_total_order_is_refused_and_named(value):
    with pytest.raises(PositionTypeError, match="is no position"):
        position_type(value)
    with pytest.raises(PositionTypeError):
        encode_position(value)


@pytest.mark.parametrize("value", [float("nan"), "\ud800", None, True], ids=ascii)
def test_what_is_no_position_is_not_compared_with_one_of_another_type(value):
    with pytest.raises(PositionTypeError):
        is_after(NOON, value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", "string"),
        (b"", "bytes"),
        (0, "integer"),
        (-0.0, "float"),
        (Decimal("-0"), "decimal"),
        ("\U0010ffff", "string"),
        (datetime.max.replace(tzinfo=UTC), "timestamp"),
        (datetime(1, 1, 1), "naive-timestamp"),  # noqa: DTZ001
        (date.max, "date"),
    ],
    ids=repr,
)
def test_the_ends_of_each_type_are_positions(value, kind):
    assert position_type(value) == kind
    assert decode_position(encode_position(value)) == value


DAMAGED = [
    *(None, 1, "x", [], {}, {"type": "integer"}, {"value": "1"}, {"type": None, "value": "1"}),
    *({"type": "integer", "value": value} for value in (1, None, "", "x", "1.5", "0x1", "--1", "9" * 5000)),
    *({"type": "float", "value": value} for value in (1.5, "nan", "inf", "-inf", "1e999", "x", "")),
    *({"type": "decimal", "value": value} for value in (1, "NaN", "sNaN", "Infinity", "x", "", "1,5")),
    *({"type": "date", "value": value} for value in ("2026-02-30", "x", "", "2026-03-01T00:00:00", 5)),
    *(
        {"type": "timestamp", "value": value}
        for value in (
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-03-01T25:00:00Z",
            "yesterday",
            "",
            1772366400,
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
        )
    ),
    *({"type": "naive-timestamp", "value": value} for value in ("2026-03-01T12:00:00Z", "x", "", 1)),
    *({"type": "string", "value": value} for value in (None, 1, [], "\ud800")),
    *({"type": "bytes", "value": value} for value in ("AP8", "AP8=!", "é", 1, None)),
    *({"type": "uuid", "value": value} for value in ("x", "", 1, "00000000-0000-0000-0000-00000000000")),
    *(
        {"type": "beginning ", "value": None},
        {"type": "unheard of", "value": "1"},
        {"type": ["x"], "value": "1"},
    ),
    *({"type": "tuple", "value": value} for value in (None, "x", [], [1], [{}])),
    {"type": "tuple", "value": [{"type": "tuple", "value": [{"type": "integer", "value": "1"}]}]},
    {"type": "tuple", "value": [{"type": "beginning", "value": None}]},
]


@pytest.mark.parametrize("wire", DAMAGED, ids=lambda wire: ascii(wire)[:60])
def test_a_damaged_position_is_an_error_of_the_state(wire):
    with pytest.raises(StateError):
        decode_position(wire)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.one_of(
        json_values, st.fixed_dictionaries({"type": st.sampled_from(list(kinds)), "value": json_values})
    )
)
def test_whatever_is_stored_is_a_position_or_an_error_of_the_state(wire):
    try:
        position = decode_position(wire)
    except StateError:
        return
    assert decode_position(encode_position(position)) == position


# --- timestamps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00:00+00:00",
        "2026-03-01 13:00:00+01:00",
        "20260301T120000Z",
        "2026-03-01T12:00:00.000000Z",
    ],
)
def test_a_timestamp_is_read_in_utc(text):
    assert parse_timestamp(text) == NOON
    assert parse_timestamp(text).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text", ["", "now", "2026-03-01", "2026-03-01T12:00:00", "0001-01-01T00:00:00+14:00"]
)
def test_what_is_no_timestamp_with_an_offset_is_refused_rather_than_guessed(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_timestamp(text)


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [
        (NOON + timedelta(milliseconds=999), timedelta(seconds=1), NOON),
        (NOON, timedelta(seconds=1), NOON),
        (NOON - MICROSECOND, timedelta(seconds=1), NOON - timedelta(seconds=1)),
        (NOON + timedelta(minutes=59), timedelta(hours=1), NOON),
        (
            datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC),
            timedelta(seconds=1),
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        ),
        (
            NOON.astimezone(timezone(timedelta(hours=5, minutes=30))),
            timedelta(days=1),
            NOON - timedelta(hours=12),
        ),
    ],
    ids=str,
)
def test_a_timestamp_is_rounded_down_since_the_epoch(value, step, expected):
    assert floor_timestamp(value, step) == expected
    assert floor_timestamp(value, step).utcoffset() == timedelta(0)


@given(kinds["timestamp"], st.timedeltas(MICROSECOND, timedelta(days=1)))
def test_rounding_down_goes_back_less_than_a_step(value, step):
    floor = floor_timestamp(value, step)
    assert floor <= value < floor + step
    assert floor_timestamp(floor, step) == floor
