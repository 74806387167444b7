"""Where a listing is cut into parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.objects import landmarks
from airflow.providers.watermark.objects.landmarks import Landmarks
from airflow.providers.watermark.objects.listing import KeyRange


def known(pages, size=1000):
    ends = Landmarks()
    for number in range(1, pages + 1):
        ends.add(f"{number:06}", size)
    return ends


def parts(ends, concurrency=8, **keys):
    return ends.split(KeyRange(prefix="", **keys), concurrency)


@pytest.mark.parametrize(
    ("pages", "concurrency", "number"),
    [
        (0, 8, 1),
        (1, 8, 1),
        (7, 8, 1),
        (8, 8, 2),
        (31, 8, 7),
        (32, 8, 8),
        (100, 8, 8),
        (191, 8, 8),
        (383, 8, 8),
        (384, 8, 16),
        (1000, 8, 40),
        (1000, 16, 32),
        (1000, 64, 64),
        (1000, 1, 1),
    ],
)
def test_the_number_of_parts_is_a_multiple_of_the_concurrency_and_no_part_is_short(
    pages, concurrency, number
):
    assert len(parts(known(pages), concurrency)) == number


def test_the_parts_are_of_about_the_same_size():
    cuts = [int(part.until) for part in parts(known(1000))[:-1]]
    sizes = [after - before for before, after in zip([0, *cuts], [*cuts, 1000], strict=True)]
    assert set(sizes) <= {24, 25, 26}


@given(
    keys=st.lists(st.text("ab", min_size=1, max_size=4), unique=True).map(sorted),
    after=st.none() | st.text("ab", max_size=4),
    until=st.none() | st.text("ab", min_size=1, max_size=4),
    concurrency=st.integers(1, 5),
    counts=st.lists(st.integers(0, 3), min_size=1),
)
def test_the_parts_of_a_range_are_the_range_and_no_key_is_in_two(keys, after, until, concurrency, counts):
    ends = Landmarks()
    for number, key in enumerate(keys):
        ends.add(key, counts[number % len(counts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landmarks, "FEWEST_PAGES", 1)
        found = parts(ends, concurrency, after=after, until=until)
    assert (found[0].after, found[-1].until) == (after, until)
    cuts = [part.until for part in found[:-1]]
    assert cuts == [part.after for part in found[1:]]
    assert all(cut is not None and cut > (after or "") and (until is None or cut <= until) for cut in cuts)
    assert cuts == sorted(set(cuts))


def test_the_memory_is_bounded_and_what_is_left_parts_a_listing_as_well():
    ends = known(100_000)
    assert landmarks.MAX_LANDMARKS / 2 <= len(ends._ends) <= landmarks.MAX_LANDMARKS
    assert ends.last == "100000"
    cuts = [int(part.until) for part in parts(ends, concurrency=8)[:-1]]
    assert max(after - before for before, after in zip([0, *cuts], [*cuts, 100_000], strict=True)) < 200


@pytest.mark.parametrize(
    ("after", "until", "ends"),
    [
        pytest.param(None, None, ["2b", "3b"], id="from end to end"),
        pytest.param("2", None, ["1", "2", "2b", "3b"], id="from a cursor to the end"),
        pytest.param(None, "3b", ["2b", "3b", "4", "5"], id="from the beginning"),
        pytest.param("2", "3b", ["1", "2", "2b", "3b", "4", "5"], id="in the middle"),
    ],
)
def test_what_is_listed_again_replaces_what_was_known_of_that_part_alone(after, until, ends):
    old, new = Landmarks(), Landmarks()
    for key in "12345":
        old.add(key, 10)
    for key in ("2b", "3b"):
        new.add(key, 10)
    old.replace(new, after=after, until=until)
    assert [key for key, _ in old._ends] == ends


@pytest.mark.parametrize(
    ("count", "below", "key"),
    [
        (1, None, "4"),
        (10, None, "4"),
        (11, None, "3"),
        (40, None, "1"),
        (41, None, None),
        (1, "4", "3"),
        (1, "4a", "4"),
        (1, "1", None),
    ],
)
def test_an_end_with_so_many_keys_behind_it_is_found(count, below, key):
    ends = Landmarks()
    for each in "12345":
        ends.add(each, 10)
    assert ends.before_last(count, below=below) == key
