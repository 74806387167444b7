"""Prefixes with dates in them: which partitions are listed, and which changes are strays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.objects.templates import AHEAD, PrefixTemplate

DAY = timedelta(days=1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEMPLATES = (
    "a/{%Y}/",
    "a/{%Y-%m}/x-",
    "a/{%Y/%m/%d}/",
    "{%Y%j}",
    "y={%Y}/d={%Y-%m-%d}/h={%H}/",
    "{%d.%m.%Y}/",
)


@pytest.mark.parametrize(
    ("text", "dated", "head"),
    [
        ("", False, ""),
        ("a/b/", False, "a/b/"),
        ("a/{b}/", False, "a/{b}/"),
        ("100%/{b}", False, "100%/{b}"),
        ("a/{%Y}/", True, "a/"),
        ("{%Y}/{%m}", True, ""),
        ("a{b/{%Y}/", True, "a{b/"),
    ],
)
def test_a_date_is_what_stands_in_braces_with_a_percent_sign(text, dated, head):
    template = PrefixTemplate(text)
    assert (template.is_dated, template.head) == (dated, head)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a/{%Y/%m/%d}/", None),
        ("a/{%Y}/b/{%m}/", None),
        ("{%Y%j%H}", None),
        ("plain", None),
        ("{%m}/", "make no date"),
        ("{%Y/%d}/", "make no date"),
        ("{%Y/%H}/", "make no date"),
        ("{%Y/%b}/", "%b is not known"),
        ("{%Y-%-m}/", "%- is not known"),
        ("{%Y%%}/", "%% is not known"),
        ("{%Y%}/", "% is not known"),
        ("a/%Y/%m/%d/", "stand in braces"),
        ("a/{%Y/%m/%d", "stand in braces"),
        ("a/{%Y}/%m/", "stand in braces"),
        ("a/%Y%j", "stand in braces"),
        ("100%/a%2Fb/%dir/{%Y}/", None),
        ("%Y/%d%m", "stand in braces"),
        ("%d/%m/", None),
    ],
)
def test_what_is_wrong_is_said(text, problem):
    found = PrefixTemplate(text).problem()
    assert (found is None) if problem is None else (found is not None and problem in found)


@pytest.mark.parametrize(
    ("text", "first", "last", "partitions"),
    [
        ("a/{%Y/%m/%d}/", NOON - DAY, NOON + DAY, ["a/2026/02/28/", "a/2026/03/01/", "a/2026/03/02/"]),
        ("{%d.%m.%Y}/", NOON - DAY, NOON, ["01.03.2026/", "28.02.2026/"]),
        (
            "a/{%Y-%m}/x-",
            datetime(2025, 11, 30, tzinfo=UTC),
            NOON - DAY,
            [
                "a/2025-11/x-",
                "a/2025-12/x-",
                "a/2026-01/x-",
                "a/2026-02/x-",
            ],
        ),
        ("{%Y}", datetime(2024, 12, 31, 23, tzinfo=UTC), NOON, ["2024", "2025", "2026"]),
        (
            "{%Y%j}",
            datetime(2024, 12, 31, tzinfo=UTC),
            datetime(2025, 1, 1, tzinfo=UTC),
            ["2024366", "2025001"],
        ),
        ("{%Y%m%d%H}", NOON, NOON + timedelta(minutes=61), ["2026030112", "2026030113"]),
        ("{%Y}", datetime(9999, 5, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), ["9999"]),
    ],
)
def test_partitions_of_a_span_are_given_in_key_order(text, first, last, partitions):
    assert PrefixTemplate(text).partitions(first, last, limit=10) == partitions


def test_more_partitions_than_may_be_are_none():
    template = PrefixTemplate("{%Y/%m/%d}/")
    assert len(template.partitions(NOON, NOON + 9 * DAY, limit=10)) == 10
    assert template.partitions(NOON, NOON + 10 * DAY, limit=10) is None


@pytest.mark.parametrize(
    ("text", "key", "partition"),
    [
        ("a/{%Y/%m/%d}/", "a/2026/03/01/x/y.csv", datetime(2026, 3, 1, tzinfo=UTC)),
        ("a/{%Y/%m/%d}/", "a/2026/03/01", None),
        ("a/{%Y/%m/%d}/", "b/2026/03/01/x", None),
        ("a/{%Y/%m/%d}/", "a/2026/02/30/x", None),
        ("a/{%Y/%m/%d}/", "a/0000/01/01/x", None),
        ("a/{%Y/%m/%d}/", "a/٢٠٢٦/03/01/x", None),
        ("{%Y%j}", "2026366", None),
        ("{%Y%j}", "2024366", datetime(2024, 12, 31, tzinfo=UTC)),
        ("{%Y%j}", "2024000", None),
        ("y={%Y}/d={%Y-%m}/", "y=2026/d=2026-02/x", datetime(2026, 2, 1, tzinfo=UTC)),
        ("y={%Y}/d={%Y-%m}/", "y=2026/d=2025-02/x", None),
        ("a.{%Y}", "ab2026", None),
    ],
)
def test_the_partition_of_a_key(text, key, partition):
    assert PrefixTemplate(text).partition(key) == partition


@pytest.mark.parametrize(
    ("partition", "modified", "stray"),
    [
        ("2026/03/01", NOON, False),
        ("2026/02/27", NOON, False),
        ("2026/02/26", NOON, True),
        ("2026/03/02", NOON, False),
        ("2026/03/03", NOON, True),
        ("no date!!!", NOON, True),
    ],
)
def test_a_stray_is_outside_the_partitions_around_its_time(partition, modified, stray):
    template = PrefixTemplate("a/{%Y/%m/%d}/")
    assert template.is_stray(f"a/{partition}/x", modified, 2 * DAY) is stray


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.sampled_from(TEMPLATES), MOMENTS, st.floats(-3, 3), st.floats(0, 3), st.integers(0, 3))
def test_what_is_no_stray_is_in_a_partition_that_is_listed(text, modified, ahead, passed, lookback):
    template = PrefixTemplate(text)
    low, now = modified - timedelta(microseconds=1), modified + timedelta(days=passed)
    try:
        date = modified + timedelta(days=ahead)
    except OverflowError:
        return
    key = template.partitions(date, date, limit=1)[0] + "rest"
    back = timedelta(days=lookback)
    listed = template.partitions(template.earliest(low, back), now + AHEAD, limit=10_000)

    assert template.partition(key) is not None
    if not template.is_stray(key, modified, back):
        assert any(key.startswith(prefix) for prefix in listed)


@given(st.sampled_from(TEMPLATES), MOMENTS, MOMENTS)
def test_no_partition_begins_another(text, one, other):
    template = PrefixTemplate(text)
    first, second = (template.partitions(each, each, limit=1)[0] for each in (one, other))
    assert first == second or not second.startswith(first)
