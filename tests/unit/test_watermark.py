"""The state value on the wire, and what a sweep does to it."""

from __future__ import annotations

import base64
import copy
import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow.providers.watermark import watermark
from airflow.providers.watermark.change import Change, HighWatermark, Page, digest
from airflow.providers.watermark.exceptions import PositionTypeError, StateError
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.watermark import MAX_PENDING, Pending, Sweep, WatermarkState

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

# --- the wire -----------------------------------------------------------------------------------------------

GOLDEN = {
    "version": 1,
    "epoch": 2,
    "revision": 7,
    "source": {
        "watcher": "s3",
        "bucket_name": "lake",
        "prefix": "orders/",
        "pattern": None,
        "exclude": ["*.tmp"],
    },
    "low": {"type": "timestamp", "value": "2026-03-01T12:00:00Z"},
    "high": {"type": "timestamp", "value": "2026-03-01T12:05:00Z"},
    "cursor": {"type": "string", "value": "orders/3.csv"},
    "seen": [
        [{"type": "timestamp", "value": "2026-03-01T12:06:00Z"}, "AAAAAAAAAAEAAAAAAAAAAg=="],
        [{"type": "timestamp", "value": "2026-03-01T12:07:00Z"}, "/////////+8="],
    ],
    "pending": [
        [{"type": "timestamp", "value": "2026-03-01T11:00:00Z"}, "AAAAAAAAAAMAAAAAAAAAAA=="],
        [{"type": "timestamp", "value": "2026-03-01T11:30:00Z"}, "AAAAAAAAAAQAAAAAAAAABQ=="],
    ],
    "restless": True,
    "status": {"error": "allow s3:ListBucket", "since": "2026-03-01T12:00:00+00:00"},
}
"""Version 1 as it lies in stores: a change here breaks what users have stored."""

GOLDEN_STATE = WatermarkState(
    source=GOLDEN["source"],
    low=NOON,
    high=NOON + timedelta(minutes=5),
    cursor="orders/3.csv",
    seen={
        "AAAAAAAAAAE": NOON + timedelta(minutes=6),
        "AAAAAAAAAAI": NOON + timedelta(minutes=6),
        "_________-8": NOON + timedelta(minutes=7),
    },
    pending={
        "AAAAAAAAAAM": Pending(NOON - timedelta(hours=1)),
        "AAAAAAAAAAQ": Pending(NOON - timedelta(minutes=30), "AAAAAAAAAAU"),
    },
    restless=True,
    epoch=2,
    revision=7,
    status=GOLDEN["status"],
)


def test_the_golden_state_is_written_as_ever():
    assert GOLDEN_STATE.to_wire() == GOLDEN


def test_the_golden_text_is_read_as_ever():
    assert WatermarkState.from_wire(json.loads(json.dumps(GOLDEN))) == GOLDEN_STATE


def test_a_new_state_is_small():
    wire = WatermarkState(source={"watcher": "s3"}, low=BEGINNING).to_wire()
    assert WatermarkState.from_wire(wire) == WatermarkState(source={"watcher": "s3"}, low=BEGINNING)
    assert len(json.dumps(wire)) < 250


ids = st.binary(min_size=8, max_size=8).map(lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="))
last_ids = ids.filter(lambda name: name != watermark._NO_ID)
positions_by_type = {
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "naive-timestamp": st.datetimes(),
    "date": st.dates(),
    "integer": st.integers(),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(),
    "bytes": st.binary(),
    "uuid": st.uuids(),
}
json_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=9)


@st.composite
def states(draw):
    positions = draw(st.sampled_from(list(positions_by_type.values())))
    positions_ = st.just(BEGINNING) | positions
    return WatermarkState(
        source=draw(st.dictionaries(st.text(max_size=9), json_scalars | st.lists(json_scalars), max_size=4)),
        low=draw(positions_),
        high=draw(st.none() | positions_),
        cursor=draw(st.none() | st.sampled_from(list(positions_by_type.values())).flatmap(lambda kind: kind)),
        seen=draw(st.dictionaries(ids, positions, max_size=9)),
        pending=draw(st.dictionaries(ids, st.builds(Pending, positions, st.none() | last_ids), max_size=9)),
        restless=draw(st.booleans()),
        epoch=draw(st.integers(1, 10**9)),
        revision=draw(st.integers(0, 10**9)),
        status=draw(st.none() | st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2)),
    )


@given(states())
def test_any_state_comes_back_from_json_text_as_it_was(state):
    text = json.dumps(state.to_wire(), allow_nan=False)
    assert text.isascii()
    assert WatermarkState.from_wire(json.loads(text)) == state


@given(states())
def test_what_was_read_is_written_the_same_again(state):
    wire = json.loads(json.dumps(state.to_wire()))
    assert WatermarkState.from_wire(wire).to_wire() == wire


def test_many_ids_at_one_position_take_eleven_characters_each():
    seen = {digest(str(number)): NOON + SECOND for number in range(4096)}
    text = json.dumps(WatermarkState(source={}, low=NOON, seen=seen).to_wire())
    assert len(text) < 4096 * 11 + 400


def test_a_newer_version_is_refused_with_what_to_do():
    with pytest.raises(StateError, match=r"version 2, this release knows 1: upgrade"):
        WatermarkState.from_wire({**GOLDEN, "version": 2})


def test_unknown_entries_of_the_same_version_are_passed_over():
    assert WatermarkState.from_wire({**GOLDEN, "comment": "by hand"}) == GOLDEN_STATE


POSITION = GOLDEN["low"]
DAMAGED = {
    "not an object": [None, 1, "text", [], ["version"], True],
    "no version": [{}, {"version": None}, {"version": "1"}, {"version": 1.0}, {"version": [1]}],
    "no such version": [{**GOLDEN, "version": value} for value in (0, -1, True, False)],
    "an entry is missing": [
        {name: value for name, value in GOLDEN.items() if name != missing}
        for missing in GOLDEN
        if missing != "status"
    ],
    "source": [{**GOLDEN, "source": value} for value in (None, 1, "lake", ["ab"], [["a", 1]], True)],
    "low": [
        {**GOLDEN, "low": value}
        for value in (
            None,
            1,
            "x",
            [],
            {},
            {"type": "timestamp"},
            {"type": "timestamp", "value": None},
            {"type": "timestamp", "value": "yesterday"},
            {"type": "timestamp", "value": "2026-03-01T12:00:00"},
            {"type": "timestamp", "value": "0001-01-01T00:00:00+14:00"},
            {"type": "naive-timestamp", "value": "2026-03-01T12:00:00Z"},
            {"type": "float", "value": "nan"},
            {"type": "decimal", "value": "sNaN"},
            {"type": "integer", "value": "9" * 5000},
            {"type": "unheard of", "value": "1"},
            {"type": ["x"], "value": "1"},
        )
    ],
    "high": [{**GOLDEN, "high": value} for value in (0, "", {}, {"type": "integer", "value": "x"})],
    "high has another type than low": [{**GOLDEN, "high": {"type": "integer", "value": "1"}}],
    "cursor": [{**GOLDEN, "cursor": value} for value in (0, "", {}, {"type": "string", "value": 1})],
    "seen": [
        {**GOLDEN, "seen": value}
        for value in (
            None,
            1,
            True,
            "AA",
            {"a": 1},
            [1],
            ["ab"],
            [[]],
            [[POSITION]],
            [[POSITION, None]],
            [[POSITION, 1]],
            [[POSITION, "AAAAAAAAAAE", 1]],
            [[POSITION, "not base64"]],
            [[POSITION, "AAAAAAAAAA=="]],
            [[POSITION, "AAAAAAAAAAE"]],
            [[POSITION, "\u00e9\u00e9\u00e9\u00e9"]],
            [[None, "AAAAAAAAAAE="]],
            [[{"type": "integer", "value": "1"}, "AAAAAAAAAAE="]],
        )
    ],
    "pending": [
        {**GOLDEN, "pending": value}
        for value in (
            None,
            1,
            "AA",
            [[POSITION, "AAAAAAAAAAE="]],
            [[POSITION, "AAAAAAAAAAEAAAAAAAAAAQ"]],
            [[{"type": "integer", "value": "1"}, "AAAAAAAAAAEAAAAAAAAAAg=="]],
        )
    ],
    "epoch": [{**GOLDEN, "epoch": value} for value in (None, "2", 2.5, 2.0, True, [], {}, "x")],
    "revision": [{**GOLDEN, "revision": value} for value in (None, "7", 7.5, 7.0, True, [], {}, "x")],
    "restless": [{**GOLDEN, "restless": value} for value in (None, 0, 1, "true", [])],
    "status": [{**GOLDEN, "status": value} for value in (1, "down", [], [1], True, ["ab"], {"error": 1})],
}


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(wire, id=f"{kind}-{number}")
        for kind, wires in DAMAGED.items()
        for number, wire in enumerate(wires)
    ],
)
def test_a_damaged_state_is_an_error_that_says_what_to_do(wire):
    with pytest.raises(StateError, match=r"reset"):
        WatermarkState.from_wire(wire)


json_values = st.recursive(
    json_scalars | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def paths(value, path=()):
    """Give the paths of all parts of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in items:
        yield from paths(part, (*path, name))


PATHS = list(paths(GOLDEN))


def replaced(wire, path, value):
    if not path:
        return value
    wire = copy.deepcopy(wire)
    part = wire
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return wire


@given(st.sampled_from(PATHS), json_values)
@example(("source", "prefix"), math.nan)
def test_whatever_is_damaged_the_error_is_ours_and_what_is_read_can_be_written(path, value):
    try:
        state = WatermarkState.from_wire(replaced(GOLDEN, path, value))
    except StateError:
        return
    assert WatermarkState.from_wire(json.loads(json.dumps(state.to_wire()))) == state


# --- rewinding ----------------------------------------------------------------------------------------------


def test_a_rewind_raises_the_epoch_and_clears_what_lies_beyond():
    state = GOLDEN_STATE.rewind(NOON - timedelta(days=1))
    assert (state.low, state.epoch) == (NOON - timedelta(days=1), 3)
    assert (state.high, state.cursor, dict(state.seen)) == (None, None, {})
    assert (state.source, state.revision, state.status) == (
        GOLDEN_STATE.source,
        GOLDEN_STATE.revision,
        GOLDEN_STATE.status,
    )


def test_a_rewind_keeps_what_is_under_way_and_forgets_what_of_it_was_delivered():
    back = GOLDEN_STATE.rewind(NOON - timedelta(days=1))
    assert {name: slot.since for name, slot in back.pending.items()} == {
        name: slot.since for name, slot in GOLDEN_STATE.pending.items()
    }
    assert {slot.last for slot in back.pending.values()} == {None}
    assert dict(GOLDEN_STATE.rewind(NOON + timedelta(days=1)).pending) == dict(GOLDEN_STATE.pending)


def test_a_rewind_to_another_type_of_position_is_refused():
    with pytest.raises(PositionTypeError, match=r"integer.*timestamp"):
        GOLDEN_STATE.rewind(5)


@pytest.mark.parametrize(
    ("low", "to"), [(NOON, BEGINNING), (BEGINNING, NOON), (BEGINNING, 5), (BEGINNING, BEGINNING)]
)
def test_a_rewind_from_or_to_the_beginning_fits_every_type(low, to):
    assert WatermarkState(source={}, low=low).rewind(to).low == to


def test_a_rewind_to_something_that_is_no_position_is_refused():
    with pytest.raises(PositionTypeError):
        GOLDEN_STATE.rewind(None)


@pytest.mark.parametrize("value", [float("nan"), None, True, [1]], ids=repr)
def test_a_rewind_from_the_beginning_to_no_position_is_refused(value):
    with pytest.raises(PositionTypeError):
        WatermarkState(source={}, low=BEGINNING).rewind(value)


# --- sweeps: traces over integer positions ------------------------------------------------------------------


def change(identity, position, version="1"):
    return Change(identity=identity, version=version, position=position)


def bounds(bound, due=None, late=None, future=None):
    return HighWatermark(bound=bound, due=due, late={} if late is None else late, future=future)


def run(sweep, changes, page_size=1000):
    """Read changes in order of their identities, and give the names of what is delivered."""
    delivered = []
    for entry in sorted(changes, key=lambda one: one.identity):
        if sweep.cursor is not None and entry.identity <= sweep.cursor:
            continue
        if sweep.admits(entry):
            sweep.take(entry)
            delivered.append(entry.identity)
        sweep.read_to(Page(changes=[entry]))
    return delivered


def sweep_once(state, changes, bound, *, max_seen=100, due=None, late=None):
    sweep = Sweep(state, bounds(bound, due=due, late=late), max_seen)
    delivered = run(sweep, changes)
    return delivered, sweep.finish(), sweep


def at(low, **more):
    return WatermarkState(source={}, low=low, **more)


def test_what_is_at_or_before_low_is_old_news():
    delivered, _, _ = sweep_once(at(10), [change("a", 9), change("b", 10), change("c", 11)], bound=20)
    assert delivered == ["c"]


def test_ties_at_the_bound_are_delivered_together_and_never_again():
    changes = [change(name, 20) for name in "abc"]
    delivered, state, _ = sweep_once(at(10), changes, bound=20)
    assert delivered == ["a", "b", "c"]
    assert (state.low, dict(state.seen)) == (20, {})
    assert sweep_once(state, changes, bound=20)[0] == []


def test_ties_after_the_bound_are_remembered_one_by_one():
    first, state, _ = sweep_once(at(10), [change("a", 25)], bound=20)
    again, state, _ = sweep_once(state, [change("a", 25), change("b", 25)], bound=21)
    assert (first, again) == (["a"], ["b"])
    assert state.low == 21


def test_the_bound_becomes_low_at_the_end_of_the_sweep_and_high_and_cursor_are_cleared():
    _, state, sweep = sweep_once(at(10), [change("a", 15)], bound=20)
    assert sweep.snapshot().high == 20
    assert (state.low, state.high, state.cursor) == (20, None, None)


@pytest.mark.parametrize("bound", [5, 10], ids=["before low", "at low"])
def test_a_bound_that_is_not_after_low_never_moves_it_back(bound):
    delivered, state, sweep = sweep_once(at(10), [change("a", 8), change("b", 12)], bound=bound)
    assert (sweep.high, state.low) == (10, 10)
    assert delivered == ["b"]
    assert dict(state.seen) == {change("b", 12).id: 12}


def test_from_the_beginning_everything_counts():
    delivered, state, _ = sweep_once(at(BEGINNING), [change("a", -(10**30)), change("b", 0)], bound=5)
    assert delivered == ["a", "b"]
    assert state.low == 5


def test_from_the_beginning_with_a_bound_at_the_beginning_low_stays_there():
    delivered, state, _ = sweep_once(at(BEGINNING), [change("a", 1)], bound=BEGINNING)
    assert delivered == ["a"]
    assert state.low is BEGINNING
    assert sweep_once(state, [change("a", 1)], bound=BEGINNING)[0] == []


def test_an_overwritten_thing_is_news_by_its_version_and_by_its_position():
    _, state, _ = sweep_once(at(10), [change("a", 25, "v1")], bound=20)
    by_version, state, _ = sweep_once(state, [change("a", 25, "v2")], bound=20)
    by_position, state, _ = sweep_once(state, [change("a", 26, "v2")], bound=20)
    assert (by_version, by_position) == (["a"], ["a"])
    assert len(state.seen) == 3


def test_finishing_forgets_what_low_now_covers():
    _, state, _ = sweep_once(at(10), [change("a", 25), change("b", 30)], bound=20)
    _, state, _ = sweep_once(state, [change("a", 25), change("b", 30)], bound=27)
    assert dict(state.seen) == {change("b", 30).id: 30}


def test_a_position_of_another_type_is_an_error_that_names_both():
    sweep = Sweep(at(10), bounds(20), 100)
    with pytest.raises(PositionTypeError, match=r"timestamp.*integer"):
        sweep.admits(change("a", NOON))


# --- due and future -----------------------------------------------------------------------------------------


def test_what_is_not_due_waits_and_is_delivered_when_it_is():
    waiting, state, _ = sweep_once(at(10), [change("a", 30)], bound=20, due=30)
    assert (waiting, state.low, dict(state.seen)) == ([], 20, {})
    delivered, _, _ = sweep_once(state, [change("a", 30)], bound=21, due=31)
    assert delivered == ["a"]


def test_a_change_within_the_current_second_and_its_successor_are_both_seen():
    """algorithm-pitfalls 11: A, B, A within one second; what counts is what is there when it is over."""
    state = at(10)
    for version in ("A", "B", "A"):
        delivered, state, _ = sweep_once(state, [change("k", 30, version)], bound=20, due=30)
        assert delivered == []
    delivered, _, _ = sweep_once(state, [change("k", 30, "A")], bound=21, due=31)
    assert delivered == ["k"]


def test_future_dates_are_counted_and_never_remembered():
    sweep = Sweep(at(10), bounds(20, due=30, future=40), 100)
    changes = [change("a", 35), change("b", 40), change("c", 10**9)]
    assert run(sweep, changes) == []
    assert (sweep.future.identity, sweep.future_count) == ("b", 2)
    assert dict(sweep.finish().seen) == {}
    assert not sweep.full


def test_future_dates_take_no_room_from_others():
    """algorithm-pitfalls 6: future values filled the memory and hid all later ones."""
    changes = [change(f"f{number}", 10**6 + number) for number in range(50)] + [change("z", 25)]
    delivered, _, _ = sweep_once(at(10), changes, bound=20, due=30, max_seen=1)
    assert delivered == ["z"]


def test_a_resumed_sweep_delivers_what_its_bound_covers_even_if_the_clock_went_back():
    """What waited at or before the bound would be passed by the end of the sweep, and lost."""
    state = at(10, high=20, cursor="a")
    delivered, state, _ = sweep_once(state, [change("b", 18)], bound=4, due=14)
    assert (delivered, state.low) == (["b"], 20)


# --- a full memory ------------------------------------------------------------------------------------------


def test_with_a_full_memory_what_is_settled_is_still_delivered():
    changes = [change("a", 25), change("b", 26), change("c", 15), change("d", 27)]
    delivered, state, sweep = sweep_once(at(10), changes, bound=20, max_seen=1)
    assert delivered == ["a", "c"]
    assert sweep.full
    delivered, state, sweep = sweep_once(state, changes, bound=26, max_seen=1)
    assert delivered == ["b"]
    delivered, state, sweep = sweep_once(state, changes, bound=27, max_seen=1)
    assert delivered == ["d"]
    assert not sweep.full


def test_changes_before_the_bound_take_no_memory():
    """algorithm-pitfalls 9: they filled it, the rest was skipped, and low passed it."""
    changes = [change(name, 15) for name in "abcdef"]
    delivered, state, sweep = sweep_once(at(10), changes, bound=20, max_seen=2)
    assert delivered == list("abcdef")
    assert (sweep.full, dict(state.seen)) == (False, {})


def test_with_a_full_memory_the_bound_still_moves():
    changes = [change(name, 25) for name in "abc"]
    _, state, _ = sweep_once(at(10), changes, bound=20, max_seen=1)
    assert state.low == 20


def test_settled_delivery_waits_for_the_bound_and_is_never_full():
    delivered, state, sweep = sweep_once(at(10), [change("a", 15), change("b", 21)], bound=20, max_seen=0)
    assert delivered == ["a"]
    assert (sweep.full, dict(state.seen)) == (False, {})


def test_a_memory_that_was_made_smaller_forgets_nothing():
    _, state, _ = sweep_once(at(10), [change(name, 25) for name in "abc"], bound=20)
    delivered, state, sweep = sweep_once(state, [change(name, 25) for name in "abcd"], bound=20, max_seen=1)
    assert (delivered, sweep.full, len(state.seen)) == ([], True, 3)


# --- interrupted sweeps -------------------------------------------------------------------------------------


def test_a_resumed_sweep_keeps_its_bound_and_goes_on_after_its_cursor():
    changes = [change(name, 15) for name in "abcd"]
    sweep = Sweep(at(10), bounds(20), 100)
    for entry in changes[:2]:
        assert sweep.admits(entry)
        sweep.take(entry)
    state = sweep.snapshot()
    assert (state.low, state.high, state.cursor) == (10, 20, "b")
    delivered, state, resumed = sweep_once(state, changes, bound=99)
    assert (delivered, resumed.high, state.low) == (["c", "d"], 20, 20)


def test_a_state_in_the_middle_of_a_page_covers_what_was_taken_and_not_what_was_asked():
    sweep = Sweep(at(10), bounds(20), 100)
    assert sweep.admits(change("a", 15))
    sweep.take(change("a", 15))
    assert sweep.admits(change("b", 15))
    assert sweep.snapshot().cursor == "a"


def test_a_read_page_moves_the_cursor_over_what_was_dropped():
    sweep = Sweep(at(10), bounds(20), 100)
    sweep.read_to(Page(changes=[change("a", 5)]))
    assert sweep.cursor == "a"
    sweep.read_to(Page(changes=[change("b", 5)], cursor="bzz"))
    assert sweep.cursor == "bzz"
    sweep.read_to(Page(changes=[]))
    assert sweep.cursor == "bzz"


def test_a_change_behind_the_cursor_of_an_interrupted_sweep_is_still_remembered_afterwards():
    """algorithm-pitfalls 8: it was not listed again, forgotten, and came again."""
    sweep = Sweep(at(10), bounds(20), 100)
    assert sweep.admits(change("a", 25))
    sweep.take(change("a", 25))
    state = sweep.snapshot()
    delivered, state, _ = sweep_once(state, [change("a", 25), change("b", 15)], bound=30)
    assert delivered == ["b"]
    assert sweep_once(state, [change("a", 25), change("b", 15)], bound=22)[0] == []


def test_the_reading_order_may_be_another_than_that_of_the_identities():
    entry = Change(identity="z", version="1", position=15, place=3)
    sweep = Sweep(at(10), bounds(20), 100)
    sweep.take(entry)
    assert sweep.snapshot().cursor == 3


def test_a_snapshot_does_not_change_with_the_sweep():
    sweep = Sweep(at(10), bounds(20, late={"u": 12}), 100)
    before = sweep.snapshot()
    sweep.take(change("a", 25))
    sweep.take(change("u", 26))
    assert dict(before.seen) == {}
    assert before.pending[digest("u")].last is None
    assert before.cursor is None


# --- late identities: uploads in progress -------------------------------------------------------------------


def late_bounds(bound, **late):
    return HighWatermark(
        bound=NOON + bound * SECOND,
        due=NOON + 1000 * SECOND,
        late={name: NOON + since * SECOND for name, since in late.items()},
        step=SECOND,
    )


def stamped(identity, seconds, version="1"):
    return change(identity, NOON + seconds * SECOND, version)


def upload_sweep(state, bound, changes, **late):
    sweep = Sweep(state, late_bounds(bound, **late), 100)
    return run(sweep, changes), sweep.finish()


def test_an_upload_that_ends_long_after_the_bound_has_passed_it_is_delivered():
    state = at(NOON)
    _, state = upload_sweep(state, 100, [], u=50)
    assert state.pending == {digest("u"): Pending(NOON + 50 * SECOND)}
    _, state = upload_sweep(state, 10_000, [], u=50)
    delivered, state = upload_sweep(state, 20_000, [stamped("u", 50)])
    assert delivered == ["u"]
    assert dict(state.pending) == {}
    assert upload_sweep(state, 20_001, [stamped("u", 50)])[0] == []


def test_an_upload_after_the_bound_needs_no_slot():
    _, state = upload_sweep(at(NOON), 100, [], u=101)
    assert dict(state.pending) == {}


def test_an_upload_at_the_bound_needs_one():
    _, state = upload_sweep(at(NOON), 100, [], u=100)
    assert len(state.pending) == 1


def test_an_upload_before_low_needs_one_too():
    _, state = upload_sweep(at(NOON), -5, [], u=-3)
    assert len(state.pending) == 1


def test_what_lay_under_an_upload_before_it_began_is_old_news():
    state = at(NOON + 100 * SECOND)
    for bound in (200, 300):
        delivered, state = upload_sweep(state, bound, [stamped("u", 40)], u=50)
        assert delivered == []


def test_a_version_delivered_while_its_slot_is_held_comes_once():
    state = at(NOON)
    first, state = upload_sweep(state, 100, [stamped("u", 60)], u=50)
    assert first == ["u"]
    again, state = upload_sweep(state, 200, [stamped("u", 60)], u=50)
    assert again == []
    ended, state = upload_sweep(state, 300, [stamped("u", 50, "multipart")])
    assert ended == ["u"]


def test_an_upload_in_the_second_of_a_delivered_version_does_not_repeat_it():
    """The version is delivered after the bound, then a slot is opened in its second, then low passes it."""
    state = at(NOON)
    first, state = upload_sweep(state, 40, [stamped("u", 50)], u=50)
    assert (first, dict(state.pending)) == (["u"], {})
    for bound in (60, 70, 80):
        again, state = upload_sweep(state, bound, [stamped("u", 50)], u=50)
        assert again == []


def test_a_slot_outlives_a_resumed_sweep():
    """Only a sweep that began without the upload has surely listed what became of it."""
    state = at(NOON)
    sweep = Sweep(state, late_bounds(100, u=50), 100)
    sweep.read_to(Page(changes=[], cursor="zz"))  # "u" is passed, then its upload ends, then a crash
    delivered, state = upload_sweep(sweep.snapshot(), 200, [stamped("u", 50)])
    assert delivered == []
    assert digest("u") in state.pending
    delivered, state = upload_sweep(state, 300, [stamped("u", 50)])
    assert delivered == ["u"]
    assert dict(state.pending) == {}


def test_a_resumed_sweep_gives_slots_to_new_uploads():
    sweep = Sweep(at(NOON), late_bounds(100), 100)
    _, state = upload_sweep(sweep.snapshot(), 300, [], u=200)
    assert (state.low, digest("u") in state.pending) == (NOON + 100 * SECOND, True)


def test_a_slot_stays_while_the_source_does_not_tell():
    _, state = upload_sweep(at(NOON), 100, [], u=50)
    sweep = Sweep(state, replace(late_bounds(200), late=None), 100)
    state = sweep.finish()
    assert digest("u") in state.pending
    delivered, state = upload_sweep(state, 300, [stamped("u", 50)])
    assert delivered == ["u"]


def test_a_slot_keeps_its_earliest_second_when_a_second_upload_of_the_key_begins():
    _, state = upload_sweep(at(NOON), 100, [], u=50)
    _, state = upload_sweep(state, 200, [], u=150)
    assert state.pending[digest("u")].since == NOON + 50 * SECOND


def test_a_slot_takes_the_second_of_an_older_upload_that_was_not_watched_for_before():
    """As after max_upload_age was raised: what becomes of the older upload has the older second."""
    _, state = upload_sweep(at(NOON), 100, [], u=75)
    delivered, state = upload_sweep(state, 300, [], u=20)
    assert state.pending[digest("u")].since == NOON + 20 * SECOND
    delivered, _ = upload_sweep(state, 400, [stamped("u", 20)])
    assert delivered == ["u"]


def test_slots_do_not_share_the_room_of_seen():
    """algorithm-pitfalls 5: when they did, changes were lost, or an old upload starved all others."""
    state = at(NOON)
    sweep = Sweep(state, late_bounds(100, a=10, b=20), 1)
    assert run(sweep, [stamped("x", 150)]) == ["x"]
    assert len(sweep.finish().pending) == 2


def test_a_held_upload_does_not_starve_what_comes_after_it():
    """algorithm-pitfalls 5: an upload begun at 1 is held, two puts fill the memory, and then b is put."""
    state = at(NOON)
    puts = [stamped("p1", 10), stamped("p2", 11)]
    sweep = Sweep(state, late_bounds(5, a=1), 2)
    assert run(sweep, puts) == ["p1", "p2"]
    delivered = []
    for bound in (50, 51):  # the first sweep frees the memory that the second one needs
        sweep = Sweep(sweep.finish(), late_bounds(bound, a=1), 2)
        delivered += run(sweep, [*puts, stamped("b", 60)])
    assert delivered == ["b"]


def test_more_uploads_than_slots_hold_the_bound_back(monkeypatch):
    monkeypatch.setattr(watermark, "MAX_PENDING", 2)
    sweep = Sweep(at(NOON), late_bounds(100, a=10, b=20, c=30, d=40), 100)
    assert sweep.held_back
    assert sweep.high == NOON + 29 * SECOND
    state = sweep.finish()
    assert set(state.pending) == {digest("a"), digest("b")}
    # When one ends, the next gets its slot.
    sweep = Sweep(state, late_bounds(200, b=20, c=30, d=40), 100)
    assert run(sweep, [stamped("a", 10)]) == ["a"]
    assert sweep.held_back
    sweep = Sweep(sweep.finish(), late_bounds(300, b=20, c=30, d=40), 100)
    assert sweep.high == NOON + 39 * SECOND
    delivered = run(sweep, [stamped("c", 30)])
    assert delivered == ["c"]


def test_the_oldest_uploads_get_the_slots(monkeypatch):
    monkeypatch.setattr(watermark, "MAX_PENDING", 1)
    sweep = Sweep(at(NOON), late_bounds(100, young=90, old=10), 100)
    assert set(sweep.finish().pending) == {digest("old")}


def test_uploads_that_hold_the_bound_back_lose_nothing_and_repeat_nothing(monkeypatch):
    monkeypatch.setattr(watermark, "MAX_PENDING", 1)
    uploads = {"a": 10, "b": 20, "c": 30}
    state, there, delivered = at(NOON), [], []
    for step in range(12):
        if step in (3, 6, 9):
            name, since = uploads.popitem()
            there.append(stamped(name, since))
        found, state = upload_sweep(state, 100 + step, there, **uploads)
        delivered += found
    assert sorted(delivered) == ["a", "b", "c"]


def test_the_limit_of_slots_is_what_a_state_has_room_for():
    pending = {
        digest(str(number)): Pending(NOON + number * SECOND, digest("x")) for number in range(MAX_PENDING)
    }
    text = json.dumps(at(NOON, pending=pending).to_wire())
    assert len(text) < 240_000


def test_a_watcher_may_leave_out_what_does_not_concern_the_sweep():
    sweep = Sweep(at(NOON), late_bounds(100, u=-50), 100)
    assert sweep.concerns("x", NOON + SECOND)
    assert not sweep.concerns("x", NOON)
    assert sweep.concerns("u", NOON - 100 * SECOND)


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 12), st.sampled_from("xy")), max_size=12),
)
def test_concerns_never_leaves_out_what_would_be_admitted(low, entries):
    state = at(NOON + low * SECOND, pending={digest("a"): Pending(NOON + SECOND)})
    one = Sweep(state, late_bounds(6), 2)
    for name, seconds, version in sorted(entries):
        entry = stamped(name, seconds, version)
        if one.admits(entry):
            assert one.concerns(entry.identity, entry.position)


# --- the whole: everything once, whatever the order of events -----------------------------------------------


class Model:
    """A bucket whose puts come up to 4 s late, of 5 s allowed, and its uploads as late as they like."""

    def __init__(self, max_seen):
        self.max_seen = max_seen
        self.now, self.version, self.crashed = 10, 0, False
        self.objects: dict[str, Change] = {}
        self.uploads: list[tuple[str, int]] = []
        self.state = self.committed = at(NOON)
        self.delivered: list[str] = []

    def put(self, name, late):
        self._store(name, self.now - late)

    def tick(self, seconds):
        self.now += seconds

    def begin(self, name):
        self.uploads.append((name, self.now))

    def end(self):
        if self.uploads:
            self._store(*self.uploads.pop(0))

    def sweep(self, limit=1000):
        """Sweep, or deliver no more than so many changes and break off; nothing is committed then."""
        sweep = Sweep(self.state, self._bounds(), self.max_seen)
        for entry in sorted(self.objects.values(), key=lambda one: one.identity):
            if sweep.cursor is not None and entry.identity <= sweep.cursor:
                continue
            if sweep.admits(entry):
                if not limit:
                    self.state = sweep.snapshot()
                    return
                sweep.take(entry)
                self.delivered.append(entry.id)
                limit -= 1
            sweep.read_to(Page(changes=[entry]))
        self.state = sweep.finish()

    def commit(self):
        self.committed = self.state

    def crash(self):
        self.state, self.crashed = WatermarkState.from_wire(self.committed.to_wire()), True

    def _store(self, name, seconds):
        self.version += 1
        self.objects[name] = stamped(name, seconds, str(self.version))

    def _bounds(self):
        late: dict[str, datetime] = {}
        for name, since in reversed(self.uploads):
            late[name] = NOON + since * SECOND  # the earliest comes last
        return HighWatermark.from_clock(NOON + self.now * SECOND, late_arrival=5, step=SECOND, late=late)


names = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("put"), names, st.integers(0, 4)),
    st.tuples(st.just("tick"), st.integers(1, 6)),
    st.tuples(st.just("begin"), names),
    st.tuples(st.just("end")),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("sweep"), st.integers(0, 3)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("crash")),
)


@given(st.lists(steps, max_size=40), st.integers(0, 3))
@settings(max_examples=300)
def test_every_change_that_stays_is_delivered_and_none_comes_twice_without_a_crash(script, max_seen):
    model = Model(max_seen)
    for step, *values in script:
        getattr(model, step)(*values)
    model.tick(100)
    for _ in range(4):
        model.sweep()
    missing = {entry.identity for entry in model.objects.values() if entry.id not in model.delivered}
    assert not missing
    assert model.crashed or len(model.delivered) == len(set(model.delivered))
    assert len(model.state.seen) <= max_seen
    assert model.uploads or not model.state.pending


def test_every_type_of_position_can_be_swept():
    for low, high in (
        (1, 2),
        (Decimal(1), Decimal(2)),
        (1.0, 2.0),
        ("a", "b"),
        (b"a", b"b"),
        (date(2026, 1, 1), date(2026, 1, 2)),
        (UUID(int=1), UUID(int=2)),
        (NOON, NOON + SECOND),
        (datetime(2026, 1, 1), datetime(2026, 1, 2)),  # noqa: DTZ001
    ):
        delivered, state, _ = sweep_once(at(low), [change("x", low), change("y", high)], bound=high)
        assert (delivered, state.low) == (["y"], high)
