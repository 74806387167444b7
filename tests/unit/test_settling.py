"""How far a database is settled: the barrier, the history of positions, and clocks that are put back."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.sql.settling import Barrier, BarrierPoint, History, local_floor

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def point(seconds, *open_transactions, highest=None):
    return BarrierPoint(clock=at(seconds), highest=highest, open_transactions=frozenset(open_transactions))


def settled(barrier):
    return None if barrier.settled is None else (barrier.settled.clock - NOON).total_seconds()


class TestTheBarrier:
    def test_falls_at_once_when_nobody_has_a_transaction_open(self):
        barrier = Barrier()
        barrier.advance(point(1))
        assert settled(barrier) == 1
        assert barrier.pending is None

    def test_stands_until_each_of_its_transactions_has_ended(self):
        barrier = Barrier()
        barrier.advance(point(1, "a", "b"))
        assert settled(barrier) is None
        barrier.advance(point(2, "b", "c"))
        assert settled(barrier) is None
        assert barrier.holding() == {"a", "b"}
        barrier.advance(point(3, "c"))
        assert settled(barrier) == 1

    def test_is_not_held_by_transactions_that_began_after_it(self):
        barrier = Barrier()
        for second in range(1, 10):
            barrier.advance(point(second, str(second)))
        assert settled(barrier) == 8

    def test_is_put_up_again_as_soon_as_it_has_fallen(self):
        barrier = Barrier()
        barrier.advance(point(1, "a"))
        barrier.advance(point(2, "b"))
        assert (settled(barrier), barrier.holding()) == (1, {"b"})

    def test_keeps_what_was_settled_when_it_is_dropped(self):
        barrier = Barrier()
        barrier.advance(point(1))
        barrier.advance(point(2, "3/7"))
        barrier.drop()
        assert (settled(barrier), barrier.holding()) == (1, set())

    def test_is_void_after_a_restart_in_which_a_prepared_transaction_got_another_name(self):
        """Kept, it would fall now, though its transaction is only known by another name."""
        barrier = Barrier()
        barrier.advance(point(1, "3/7"))
        barrier.drop()
        barrier.advance(point(2, "-1/725"))
        assert settled(barrier) is None
        barrier.advance(point(3))
        assert settled(barrier) == 3

    def test_gives_the_highest_position_that_was_visible_when_it_was_put_up(self):
        barrier = Barrier()
        barrier.advance(point(1, "a", highest=7))
        barrier.advance(point(2, "b", highest=9))
        assert barrier.settled == point(1, "a", highest=7)


@dataclass
class Database:
    """A model of Postgres: transactions stamp rows with the time at which they began, or with the present."""

    time: int = 0
    open: dict[str, list[int]] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    visible: list[int] = field(default_factory=list)
    names: itertools.count = field(default_factory=itertools.count)

    def begin(self):
        name = f"t{next(self.names)}"
        self.open[name], self.began[name] = [], self.time

    def write(self, name, *, by_clock):
        self.open[name].append(self.time if by_clock else self.began[name])

    def commit(self, name):
        self.visible += self.open.pop(name)


steps = st.lists(
    st.one_of(
        st.just(("begin", 0, False)),
        st.tuples(st.sampled_from(["write", "commit", "rollback"]), st.integers(0, 7), st.booleans()),
        st.just(("poll", 0, False)),
        st.just(("poll in two halves", 0, False)),
    ),
    max_size=60,
)


@given(steps)
def test_nothing_stamped_before_a_settled_point_appears_after_it(steps):
    """B0: the clock is read first, in a statement of its own; a transaction may begin and write between."""
    database, barrier, final = Database(), Barrier(), {}
    for step, number, by_clock in steps:
        database.time += 1
        names = sorted(database.open)
        if step == "begin":
            database.begin()
        elif step.startswith("poll"):
            clock = database.time
            if step == "poll in two halves":
                database.begin()
                database.time += 1
                database.write(max(database.open, key=lambda name: int(name[1:])), by_clock=False)
            barrier.advance(point(clock, *database.open))
            if barrier.settled is not None:
                bound = int(settled(barrier))
                now = sorted(stamp for stamp in database.visible if stamp < bound)
                assert final.setdefault(bound, now) == now
        elif names:
            name = names[number % len(names)]
            if step == "write":
                database.write(name, by_clock=by_clock)
            elif step == "commit":
                database.commit(name)
            else:
                del database.open[name]
    for bound, rows in final.items():
        assert sorted(stamp for stamp in database.visible if stamp < bound) == rows


def test_a_clock_that_is_read_after_the_transactions_loses_rows():
    """B1, the mutant: the set of transactions, then one begins, then the clock."""
    database, barrier = Database(time=1), Barrier()
    seen = frozenset(database.open)
    database.begin()
    database.write("t0", by_clock=False)
    database.time = 2
    barrier.advance(BarrierPoint(clock=at(database.time), highest=None, open_transactions=seen))
    before = list(database.visible)
    database.commit("t0")
    assert before == []
    assert [stamp for stamp in database.visible if stamp < settled(barrier)] == [1]


def test_a_stamp_of_a_client_is_safe_only_with_a_margin():
    """B5: a row is stamped at 100 by the application and inserted at 102, while the barrier falls at 101."""
    barrier = Barrier()
    barrier.advance(point(101))
    stamp, late_arrival = at(100), timedelta(seconds=5)
    assert barrier.settled.clock > stamp
    assert barrier.settled.clock - late_arrival < stamp


class TestTheHistory:
    def test_knows_nothing_until_a_position_is_old_enough(self):
        history = History()
        history.add(at(10), 7)
        assert history.before(at(9)) is None
        assert history.before(at(10)) == 7

    def test_gives_the_newest_position_that_is_old_enough(self):
        """B6: the last row of all is settled, too, once it is old enough: the bound is inclusive."""
        history = History()
        for seconds, highest in ((1, 1), (2, 2), (3, 2), (4, 5)):
            history.add(at(seconds), highest)
        assert [history.before(at(seconds)) for seconds in (1, 2, 3, 4, 9)] == [1, 2, 2, 5, 5]

    def test_remembers_when_a_position_was_first_seen_not_last(self):
        history = History()
        for seconds in range(100):
            history.add(at(seconds), 7)
        assert history.before(at(0)) == 7
        assert len(history._entries) == 0

    def test_passes_over_an_empty_table(self):
        history = History()
        history.add(at(1), None)
        assert history.before(at(2)) is None


class TestAClockWithoutAZone:
    """Berlin's clocks are put back on 25 October 2026 at 01:00 UTC, from 03:00 to 02:00."""

    @pytest.mark.parametrize(
        ("instant", "floor"),
        [
            ("2026-10-24T22:00", "2026-10-25T00:00"),
            ("2026-10-24T23:59:59", "2026-10-25T01:59:59"),
            ("2026-10-25T00:00", "2026-10-25T02:00"),
            ("2026-10-25T00:30", "2026-10-25T02:00"),
            ("2026-10-25T00:59:59.999999", "2026-10-25T02:00"),
            ("2026-10-25T01:00", "2026-10-25T02:00"),
            ("2026-10-25T01:30", "2026-10-25T02:30"),
            ("2026-10-25T02:30", "2026-10-25T03:30"),
            ("2026-03-29T00:59:59", "2026-03-29T01:59:59"),
            ("2026-03-29T01:00", "2026-03-29T03:00"),
            ("2026-07-01T12:00", "2026-07-01T14:00"),
        ],
    )
    def test_is_settled_up_to_the_earliest_time_that_can_still_come(self, instant, floor):
        found = local_floor(datetime.fromisoformat(instant).replace(tzinfo=UTC), BERLIN)
        assert abs(found - datetime.fromisoformat(floor)) < timedelta(seconds=1)
        assert found <= datetime.fromisoformat(floor)

    @pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Etc/GMT+12", "Pacific/Kiritimati"])
    def test_is_the_local_time_where_clocks_are_never_changed(self, zone):
        local = NOON.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        assert local_floor(NOON, ZoneInfo(zone)) == local

    @given(
        st.sampled_from(
            [
                ("Europe/Berlin", "2026-10-25T01:00"),
                ("America/New_York", "2026-11-01T06:00"),
                ("America/St_Johns", "2026-11-01T04:30"),
                ("Australia/Lord_Howe", "2026-04-04T15:00"),  # by half an hour
                ("Antarctica/Troll", "2026-10-25T01:00"),  # by two hours
                ("Europe/Berlin", "2026-03-29T01:00"),
            ]
        ),
        st.timedeltas(min_value=timedelta(hours=-4), max_value=timedelta(hours=4)),
        st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=6)),
    )
    def test_no_later_instant_has_an_earlier_local_time(self, change, offset, later):
        name, changed = change
        zone, instant = ZoneInfo(name), datetime.fromisoformat(changed).replace(tzinfo=UTC) + offset
        assert (instant + later).astimezone(zone).replace(tzinfo=None) >= local_floor(instant, zone)
