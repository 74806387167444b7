"""What a consumer reads of the windows of its run."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.events import Batch, ReadWindow, read_changes, read_window, window_payload
from airflow.providers.watermark.exceptions import EventError
from airflow.providers.watermark.position import BEGINNING
from airflow.sdk import Asset

ASSET = Asset(name="rows")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def window(low, high, *, count=1, epoch=1, source="sql://db/events", column="updated_at"):
    return window_payload(
        watcher="sql", source=source, low=low, high=high, epoch=epoch, count=count, column=column
    )


def events(*payloads, asset=ASSET):
    stored = [json.loads(json.dumps(payload)) for payload in payloads]
    return {asset: [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in stored]}


def read(*payloads):
    found = read_window(events(*payloads), ASSET)
    return None if found is None else (found.low, found.high, found.count)


class TestMerging:
    def test_one_window_is_read_as_it_is(self):
        assert read_window(events(window(3, 5, count=7)), ASSET) == ReadWindow(
            low=3, high=5, count=7, epoch=1, column="updated_at"
        )

    def test_adjacent_windows_become_one_in_any_order(self):
        assert read(window(5, 9, count=2), window(BEGINNING, 3), window(3, 5)) == (BEGINNING, 9, 4)

    def test_a_repeat_counts_once(self):
        assert read(window(1, 3), window(1, 3), window(3, 4), window(3, 4)) == (1, 4, 2)

    def test_an_overlap_is_clipped(self):
        assert read(window(1, 5), window(1, 3), window(2, 4), window(4, 8))[:2] == (1, 8)

    def test_only_the_newest_epoch_counts(self):
        assert read(window(1, 9), window(2, 3, epoch=2), window(3, 4, epoch=2)) == (2, 4, 2)

    @pytest.mark.parametrize(
        ("low", "middle", "high"),
        [
            (NOON, NOON + timedelta(microseconds=1), NOON + timedelta(days=1)),
            (NOON.replace(tzinfo=None), datetime(2026, 3, 2), datetime(2026, 3, 3)),  # noqa: DTZ001
            (date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)),
            (Decimal("1.10"), Decimal("1.11"), Decimal("1e30")),
            ("a", "b", "c"),
            (b"", b"\x00", b"\xff"),
        ],
    )
    def test_bounds_come_back_typed(self, low, middle, high):
        assert read(window(middle, high), window(low, middle)) == (low, high, 2)

    @given(st.lists(st.integers(0, 20), min_size=2, max_size=8, unique=True), st.randoms())
    def test_any_cut_of_a_range_is_that_range(self, cuts, random):
        cuts.sort()
        windows = [window(low, high) for low, high in pairwise(cuts)]
        repeated = [*windows, *random.choices(windows, k=3)]
        random.shuffle(repeated)
        assert read(*repeated) == (cuts[0], cuts[-1], len(windows))


class TestWithoutWindows:
    @pytest.mark.parametrize("given", [None, {}, {Asset(name="other"): []}], ids=["None", "empty", "other"])
    def test_there_is_nothing_to_read(self, given):
        assert read_window(given, ASSET) is None

    def test_events_by_hand_are_passed_over(self):
        by_hand = {ASSET: [SimpleNamespace(extra={}), SimpleNamespace(extra=None)]}
        assert read_window(by_hand, ASSET) is None
        by_hand[ASSET] += events(window(1, 2))[ASSET]
        assert read_window(by_hand, ASSET).high == 2


class TestMistakes:
    def test_a_gap_is_told_with_its_bounds(self):
        with pytest.raises(EventError, match=r"'rows'.*gap.*up to 3 and from 5"):
            read(window(1, 3), window(5, 6))

    def test_windows_of_two_sources_are_not_merged(self):
        with pytest.raises(EventError, match=r"sql://db/a, sql://db/b"):
            read(window(1, 3, source="sql://db/a"), window(3, 6, source="sql://db/b"))

    def test_changes_are_no_window_and_the_other_way_round(self):
        batch = Batch(
            watcher="sql", source="sql://db/t", low=1, high=2, epoch=1, max_changes=5, max_bytes=9000
        )
        payload = {**window(1, 2), "changes": []}
        with pytest.raises(EventError, match="read_changes"):
            read(payload)
        with pytest.raises(EventError, match="a window, not changes"):
            read_changes(events(window(1, 2)), ASSET)
        assert batch.close() is None

    def test_a_newer_release_is_refused(self):
        payload = window(1, 2)
        payload["watermark"]["version"] = 99
        with pytest.raises(EventError, match=r"version 99.*upgrade"):
            read(payload)

    @pytest.mark.parametrize(
        ("part", "name", "value"),
        [
            ("watermark", "low", None),
            ("watermark", "high", {"type": "integer", "value": "x"}),
            ("watermark", "high", {"type": "nosuch", "value": "1"}),
            (None, "count", "7"),
            (None, "count", None),
        ],
    )
    def test_damage_is_told(self, part, name, value):
        payload = window(1, 2)
        (payload if part is None else payload[part])[name] = value
        with pytest.raises(EventError, match=r"'rows' is damaged"):
            read(payload)

    @pytest.mark.parametrize("name", ["low", "high"])
    def test_a_missing_bound_is_told(self, name):
        payload = window(1, 2)
        del payload["watermark"][name]
        with pytest.raises(EventError, match=r"'rows' is damaged"):
            read(payload)


class TestThePredicate:
    def test_is_exclusive_below_and_inclusive_above(self):
        found = read_window(events(window(1, 2)), ASSET)
        assert found.where() == "updated_at > %(low)s AND updated_at <= %(high)s"
        assert found.where("named") == "updated_at > :low AND updated_at <= :high"
        assert found.parameters == {"low": 1, "high": 2}

    def test_has_no_lower_bound_at_the_beginning(self):
        found = read_window(events(window(BEGINNING, 2)), ASSET)
        assert found.where() == "updated_at <= %(high)s"
        assert found.parameters == {"high": 2}

    def test_keeps_the_quotes_and_doubles_percent_signs_where_they_count(self):
        found = read_window(events(window(1, 2, column='"100% at"')), ASSET)
        assert found.where() == '"100%% at" > %(low)s AND "100%% at" <= %(high)s'
        assert found.where("named") == '"100% at" > :low AND "100% at" <= :high'

    @pytest.mark.parametrize(("column", "style"), [("updated_at", "qmark"), (None, "named")])
    def test_is_an_error_where_there_is_none(self, column, style):
        with pytest.raises(EventError, match="no predicate"):
            read_window(events(window(1, 2, column=column)), ASSET).where(style)

    def test_selects_exactly_the_window(self):
        import sqlite3

        with sqlite3.connect(":memory:") as database:
            database.execute("create table rows (n)")
            database.executemany("insert into rows values (?)", [(n,) for n in range(10)])
            found = read_window(events(window(2, 4), window(4, 6), window(4, 6)), ASSET)
            found = ReadWindow(low=found.low, high=found.high, count=4, epoch=1, column="n")
            query = f"select n from rows where {found.where('named')}"  # noqa: S608
            assert [n for (n,) in database.execute(query, found.parameters)] == [3, 4, 5, 6]
        database.close()


class TestTheEventId:
    def test_is_made_of_the_source_the_epoch_and_the_bounds_alone(self):
        def event_id(**arguments):
            given = {"low": 1, "high": 2, **arguments}
            return window(given.pop("low"), given.pop("high"), **given)["watermark"]["event_id"]

        assert event_id(count=1) == event_id(count=2)  # rows may leave a final window
        others = [{}, {"low": 0}, {"high": 3}, {"epoch": 2}, {"source": "sql://db/other"}]
        assert len({event_id(**arguments) for arguments in others}) == len(others)
