"""Changes, their ids, and the bounds that come from a clock."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.change import Change, HighWatermark, digest
from airflow.providers.watermark.exceptions import PositionTypeError
from airflow.providers.watermark.position import BEGINNING, is_after

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

# --- digests and ids: stored by users and by Airflow, so they must be the same for ever ---------------------

DIGESTS = {
    (): "5KagV3R5srQ",
    ("a",): "TZsikVJTRnw",
    ("a", "b"): "oy1G4KEr7V4",
    ("ab",): "7IO_jaF8-ac",
    ("ab", ""): "eCeWQi1MvCQ",
    ("\u00e9",): "bK3sW7rgTOk",
}


@pytest.mark.parametrize(("parts", "expected"), DIGESTS.items(), ids=repr)
def test_a_digest_is_the_same_for_ever(parts, expected):
    assert digest(*parts) == expected


@given(st.lists(st.text(), max_size=5))
def test_a_digest_is_eight_bytes_of_blake2b_over_parts_with_their_lengths(parts):
    encoded = [part.encode() for part in parts]
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in encoded)
    expected = hashlib.blake2b(framed, digest_size=8).digest()
    assert base64.urlsafe_b64decode(digest(*parts) + "=") == expected
    assert len(digest(*parts)) == 11


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_where_a_part_ends_makes_a_difference(one, two):
    assert (digest(*one) == digest(*two)) == (one == two)


IDS = {
    "beginning": (BEGINNING, "y1Vckm9TvHQ"),
    "timestamp": (NOON, "_lKAa_-KHDY"),
    "naive-timestamp": (datetime(2026, 3, 1, 12), "oLZZnnvBzRE"),  # noqa: DTZ001
    "date": (date(2026, 3, 1), "Fm5NL31ULrg"),
    "integer": (7, "XOcGMFG9L8U"),
    "decimal": (Decimal("7.50"), "jdKD3Lez4Dk"),
    "float": (7.5, "lvEy7f1qajU"),
    "string": ("s", "qsSmff8ZXEg"),
    "bytes": (b"\0\xff", "NxSsVRxpgo0"),
    "uuid": (UUID(int=7), "r4BKjZsVxlk"),
}


@pytest.mark.parametrize(("position", "expected"), IDS.values(), ids=IDS)
def test_an_id_is_the_same_for_ever(position, expected):
    assert Change(identity="k", version="v", position=position).id == expected


def test_an_id_says_which_version_of_which_thing_and_nothing_else():
    one = Change(identity="k", version="v", position=NOON)
    assert one.id == Change(identity="k", version="v", position=NOON, detail={"x": 1}, place=5).id
    for other in (
        Change(identity="K", version="v", position=NOON),
        Change(identity="k", version="V", position=NOON),
        Change(identity="k", version="v", position=NOON + timedelta(microseconds=1)),
        Change(identity="kv", version="", position=NOON),
    ):
        assert other.id != one.id


def test_an_id_does_not_depend_on_the_offset_in_which_a_time_is_written():
    local = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert Change(identity="k", version="v", position=local).id == IDS["timestamp"][1]


def test_a_change_without_a_valid_position_has_no_id():
    with pytest.raises(PositionTypeError):
        _ = Change(identity="k", version="v", position=float("nan")).id


@pytest.mark.parametrize(("place", "cursor"), [(None, "k"), (5, 5), (BEGINNING, BEGINNING)], ids=repr)
def test_the_reading_order_is_by_identity_unless_a_place_is_given(place, cursor):
    assert Change(identity="k", version="v", position=1, place=place).cursor == cursor


# --- bounds from a clock ------------------------------------------------------------------------------------

# (now, late_arrival, step, bound, due, future), in seconds after noon
CLOCKS = {
    "at an exact second": (100.0, 10, 1, 90, 100, 110),
    "within a second": (100.9, 10, 1, 90, 100, 110),
    "a fraction of late arrival": (100.2, 0.5, 1, 99, 100, 100),
    "late arrival within the current second": (100.9, 0.5, 1, 99, 100, 101),
    "late arrival of a whole second at an exact one": (100.0, 1, 1, 99, 100, 101),
    "hardly any late arrival": (100.5, 0.001, 1, 99, 100, 100),
    "a fine step": (100.25, 0.1, 0.001, 100.15, 100.25, 100.35),
    "a coarse step": (130.0, 10, 60, 60, 120, 120),
}


@pytest.mark.parametrize(
    ("now", "late_arrival", "step", "expected"), [(*row[:3], row[3:]) for row in CLOCKS.values()], ids=CLOCKS
)
def test_the_bounds_of_a_clock(now, late_arrival, step, expected):
    got = HighWatermark.from_clock(
        NOON + timedelta(seconds=now), late_arrival=late_arrival, step=timedelta(seconds=step)
    )
    assert [got.bound, got.due, got.future] == [NOON + timedelta(seconds=seconds) for seconds in expected]
    assert got.step == timedelta(seconds=step)
    assert got.late == {}


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.floats(0.001, 10**6),
    st.sampled_from([timedelta(microseconds=1), timedelta(milliseconds=1), SECOND, timedelta(minutes=1)]),
)
def test_what_waits_is_never_settled_and_all_bounds_are_whole_steps(now, late_arrival, step):
    got = HighWatermark.from_clock(now, late_arrival=late_arrival, step=step)
    assert got.bound < got.due <= got.future
    assert got.bound <= now - timedelta(seconds=late_arrival) or got.bound == got.due - step
    assert got.due <= now < got.due + step
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert not any((moment - epoch) % step for moment in (got.bound, got.due, got.future))
    assert is_after(got.due, got.bound)


def test_bounds_are_in_utc_whatever_the_clocks_offset():
    local = NOON.astimezone(timezone(timedelta(hours=-7)))
    got = HighWatermark.from_clock(local, late_arrival=10, step=SECOND)
    assert got.due == NOON
    assert got.due.utcoffset() == timedelta(0)


def test_what_is_late_is_passed_on_and_may_be_unknown():
    late = {"u": NOON}
    assert HighWatermark.from_clock(NOON, late_arrival=1, step=SECOND, late=late).late == late
    assert HighWatermark.from_clock(NOON, late_arrival=1, step=SECOND, late=None).late is None
