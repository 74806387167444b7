"""Changes that most sweeps do not look for have a cut of their own, and are delivered once all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.change import Change, HighWatermark
from airflow.providers.watermark.exceptions import StateError
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.watermark import Sweep, WatermarkState, is_reset, reset_wire

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LATE = 5.0


def at(seconds):
    return NOON + seconds * SECOND


def change(name, seconds, *, stray=False):
    return Change(identity=name, version="1", position=at(seconds), stray=stray)


def bounds(now, strays=BEGINNING):
    found = HighWatermark.from_clock(at(now), late_arrival=LATE, step=SECOND)
    return HighWatermark(
        bound=found.bound, due=found.due, future=found.future, step=found.step, strays=strays
    )


def full(now, held=None):
    return bounds(now, strays=at(now - LATE) if held is None else at(held))


def start(**known):
    return WatermarkState(source={}, low=NOON, **known)


def run(state, bound, changes, stop_after=None):
    """Sweep; without ``stop_after`` to the end."""
    sweep = Sweep(state, bound, max_seen=100)
    delivered = []
    for each in sorted(changes, key=lambda each: each.identity):
        if sweep.cursor is not None and each.identity <= sweep.cursor:
            continue
        looked_for = not each.stray or sweep.stray_high is not None
        if (
            looked_for
            and sweep.concerns(each.identity, each.position, stray=each.stray)
            and sweep.admits(each)
        ):
            sweep.take(each)
            delivered.append(each.identity)
            if len(delivered) == stop_after:
                return sweep.snapshot(), delivered
    return sweep.finish(), delivered


def test_a_sweep_that_does_not_look_for_strays_delivers_none_and_leaves_their_cut():
    state, delivered = run(start(), bounds(60), [change("a", 10), change("b", 10, stray=True)])
    assert delivered == ["a"]
    assert (state.low, state.stray_low, state.stray_high) == (at(55), NOON, None)


def test_a_sweep_that_looks_for_strays_delivers_those_since_their_own_cut():
    state, _ = run(start(), bounds(60), [])
    state, delivered = run(state, full(120), [change("a", 10), change("b", 10, stray=True)])
    assert delivered == ["b"]
    assert (state.low, state.stray_low, state.stray_high) == (at(115), at(115), None)


def test_strays_are_delivered_once_they_are_settled_and_not_before():
    news = [change("b", 117, stray=True)]
    state, delivered = run(start(), full(120), news)
    assert delivered == []
    state, delivered = run(state, full(240), news)
    assert delivered == ["b"]
    assert run(state, full(360), news)[1] == []


def test_what_is_late_holds_back_the_cut_of_strays_alone():
    news = [change("a", 90), change("b", 90, stray=True)]
    state, delivered = run(start(), full(120, held=80), news)
    assert delivered == ["a"]
    assert (state.low, state.stray_low) == (at(115), at(80))
    assert run(state, full(240), news)[1] == ["b"]


def test_an_interrupted_sweep_goes_on_looking_for_strays_whatever_is_asked_then():
    news = [change("a", 10, stray=True), change("b", 10), change("c", 10, stray=True)]
    state, delivered = run(start(), full(60), news, stop_after=1)
    assert delivered == ["a"]
    state = WatermarkState.from_wire(state.to_wire())
    assert state.stray_high == at(55)
    state, delivered = run(state, bounds(90), news)
    assert delivered == ["b", "c"]
    assert (state.low, state.stray_low, state.stray_high) == (at(55), at(55), None)


def test_an_interrupted_sweep_does_not_begin_to_look_for_strays_half_way():
    news = [change("a", 10), change("b", 10, stray=True), change("c", 10)]
    state, _ = run(start(), bounds(60), news, stop_after=1)
    state, delivered = run(state, full(90), news)
    assert delivered == ["c"]
    assert run(state, full(120), news)[1] == ["b"]


def test_the_cut_from_which_a_sweep_looks_is_the_earlier_one_if_it_looks_for_strays():
    state, _ = run(start(), bounds(60), [])
    assert Sweep(state, bounds(90), 10).since == at(55)
    assert Sweep(state, full(90), 10).since == NOON


def test_a_watcher_without_strays_stores_nothing_of_them():
    plain = HighWatermark.from_clock(at(60), late_arrival=LATE, step=SECOND)
    state, _ = run(start(), plain, [change("a", 10)])
    assert not {"stray_low", "stray_high"} & state.to_wire().keys()


def test_a_rewind_takes_back_both_cuts():
    state, _ = run(start(), full(120), [])
    back = state.rewind(at(30))
    assert (back.low, back.stray_low, back.stray_high) == (at(30), at(30), None)
    news = [change("a", 40), change("b", 40, stray=True), change("c", 20, stray=True)]
    assert run(back, full(240), news)[1] == ["a", "b"]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12
    )
)
def test_each_change_is_delivered_once_whatever_sweeps_look_for_strays_and_break_off(steps):
    """Each step: seconds pass, one change of either kind appears, and a sweep runs, maybe in two parts."""
    state, now, changes, delivered = start(), 1, [], []
    for number, (passed, stray, looks, stop) in enumerate(
        [*steps, (60, False, True, 0), (60, True, True, 0)]
    ):
        now += passed
        changes.append(change(f"{number % 7}-{number}", now, stray=stray))
        now += 1
        asked = full(now) if looks else bounds(now)
        state, found = run(state, asked, changes, stop_after=stop or None)
        delivered += found
        if state.high is not None:
            state, found = run(WatermarkState.from_wire(state.to_wire()), full(now), changes)
            delivered += found
    state, found = run(state, full(now + 60), changes)
    delivered += found
    assert sorted(delivered) == sorted(each.identity for each in changes)


@pytest.mark.parametrize(
    ("stored", "epoch", "revision"),
    [
        (WatermarkState(source={}, low=NOON, epoch=3, revision=9).to_wire(), 4, 10),
        ({"version": 1, "epoch": "damaged", "revision": True}, 1, 1),
        ({}, 1, 1),
    ],
)
def test_a_reset_begins_a_new_epoch_whatever_was_stored(stored, epoch, revision):
    wire = reset_wire(stored)
    assert is_reset(wire)
    assert (wire["epoch"], wire["revision"]) == (epoch, revision)
    with pytest.raises(StateError):
        WatermarkState.from_wire(wire)


@pytest.mark.parametrize(
    "wire", [{}, {"reset": True}, {"version": 2, "reset": True, "epoch": 1, "revision": 1}]
)
def test_what_is_no_reset_is_not_taken_for_one(wire):
    assert not is_reset(wire)
    assert not is_reset(WatermarkState(source={}, low=NOON).to_wire())
