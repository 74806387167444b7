"""The comparison finds what is planted: a system test that could not fail would prove nothing."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from devtools.airflow_metadata import AssetEvent
from devtools.ledger import GcsLedger, Interruption, Repeat
from devtools.row_ledger import Committed, Version
from system_tests.comparison import RECOVERED, UNDISTURBED, Life, is_explained, lost
from system_tests.results import Results
from system_tests.system import System
from system_tests.traffic import Objects, Rows, Windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from devtools.ledger import Version as ObjectVersion

pytestmark = pytest.mark.quick

LONG = UNDISTURBED + 1
STAMP = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ended", "harms", "is_lost"),
    [
        pytest.param(float("inf"), [], True, id="it is still there"),
        pytest.param(float("inf"), [(0, 900)], True, id="it is still there, after harm"),
        pytest.param(UNDISTURBED - 1, [], False, id="it was replaced at once"),
        pytest.param(LONG, [], True, id="it was replaced after a while"),
        pytest.param(LONG, [(0, 60)], False, id="it was replaced during harm"),
        pytest.param(60 + LONG, [(0, 60)], True, id="it was replaced after harm"),
        pytest.param(500, [(LONG, 900)], True, id="it was there long before harm"),
        pytest.param(500, [(10, 200), (210, 480)], False, id="there was no time between harms"),
        pytest.param(500, [(10, 200), (200 + LONG, 480)], True, id="there was time between harms"),
    ],
)
def test_what_was_there_for_long_enough_is_promised(
    ended: float, harms: list[tuple[float, float]], *, is_lost: bool
) -> None:
    """Whatever became of it later: an overwritten object is no excuse."""
    assert lost([Life(name="it", began=0, ended=ended)], harms) == (["it"] if is_lost else [])
    assert not lost([Life(name="it", began=0, ended=ended, seen=1)], harms)


class _Airflow:
    """Only what the comparison asks of Airflow: which events were stored, and given to Dag runs."""

    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()
        self.ends: list[Interruption] = []
        self.events: list[AssetEvent] = []
        self.metadata = self

    def check(self) -> None:
        """Nothing ever ends."""

    def rows(self, *_: object) -> list[tuple[int]]:
        return [(event.id,) for event in self.events]

    def asset_events(self, _: str, *, after: int) -> list[AssetEvent]:
        return [event for event in self.events if event.id > after]

    def store(self, *changes: dict[str, Any], epoch: int = 1, ago: float = 0, **watermark: Any) -> None:
        at = datetime.now(UTC) - timedelta(seconds=ago)
        payload = {"changes": list(changes), "watermark": {"epoch": epoch, **watermark}}
        self.events.append(AssetEvent(len(self.events) + 1, at, payload))


class _World:
    """Objects that land, and events that tell of them."""

    def __init__(self) -> None:
        self.airflow = _Airflow()
        generations = itertools.count(1)
        bucket = SimpleNamespace(put=lambda *_: next(generations))
        self.ledger = GcsLedger(bucket, "bucket")
        self.objects = Objects("objects", self.ledger, cast("Any", SimpleNamespace(check=lambda: None)))
        self.system = System(
            services=cast("Any", None),
            networks=cast("Any", None),
            airflow=cast("Any", self.airflow),
            sources=[self.objects],
            small_disk=Path(),
            results=Results(),
        )
        self.first = self.put("first")
        self.deliver(self.first, ago=20)

    def put(self, key: str) -> ObjectVersion:
        return self.ledger.put(key, b"")

    def deliver(self, version: ObjectVersion, *, name: str = "", epoch: int = 1, ago: float = 0) -> None:
        key, generation = version
        change = {"id": name or f"{key}/{generation}", "key": key, "generation": generation}
        self.airflow.store(change, epoch=epoch, ago=ago)


def _nothing_wrong(world: _World) -> None:
    world.deliver(world.put("fine"))


def _a_loss(world: _World) -> None:
    world.put("new")


def _a_loss_that_was_replaced(world: _World) -> None:
    old = world.put("new")
    world.ledger.landed_at[-1] -= timedelta(seconds=LONG)
    world.deliver(world.put("new"))
    assert old in world.ledger.replaced_at


def _another_id(world: _World) -> None:
    world.deliver(world.first, name="another")


def _what_never_landed(world: _World) -> None:
    world.deliver(world.first._replace(key="ghost"))


def _a_repeat(world: _World) -> None:
    world.deliver(world.first)


def _an_epoch(world: _World) -> None:
    world.deliver(world.first, epoch=2)


@pytest.mark.parametrize(
    ("done", "found"),
    [
        pytest.param(_nothing_wrong, None, id="nothing"),
        pytest.param(_a_loss, "{'lost': ['new']}", id="a loss"),
        pytest.param(_a_loss_that_was_replaced, "{'lost': ['new']}", id="a loss that was replaced"),
        pytest.param(_another_id, "{'with more than one id': ['first']}", id="another id"),
        pytest.param(_what_never_landed, "{'never landed': ['ghost']}", id="what never landed"),
        pytest.param(_a_repeat, "{'repeated without cause': ['first/1']}", id="a repeat"),
        pytest.param(_an_epoch, "{'epochs that nobody began': ['2']}", id="an epoch"),
    ],
)
def test_what_is_planted_is_found(done: Callable[[_World], None], found: str | None) -> None:
    """During a fault, or between two: whatever came since the last comparison counts."""
    for meanwhile in (True, False):
        world = _World()
        world.system.check()
        if not meanwhile:
            done(world)
        if found is None:
            _bring_about(world, done if meanwhile else _nothing_wrong)
            continue
        with pytest.raises(AssertionError) as caught:
            _bring_about(world, done if meanwhile else _nothing_wrong)
        assert f"{{'objects': {found}}}" in str(caught.value)


def _bring_about(
    world: _World, done: Callable[[_World], None], *, of: str | None = None, ends_watchers: bool = False
) -> None:
    with world.system.fault("harm", settle_within=0) as fault:
        with fault.interruption("harm", of=of and (of,), ends_watchers=ends_watchers):
            time.sleep(0.01)
        done(world)


def test_a_repeat_needs_an_interruption_that_ended_its_own_watcher_soon_after() -> None:
    """Nothing else explains it: not one of another watcher, nor one long after, nor one before."""
    world = _World()
    world.deliver(old := world.put("old"), ago=100)
    world.deliver(new := world.put("new"))
    again: Callable[[_World], None] = lambda world: world.deliver(new)  # noqa: E731
    _bring_about(world, again, of="objects", ends_watchers=True)
    with pytest.raises(AssertionError, match=r"repeated without cause.*new/3"):
        _bring_about(world, again)
    world.deliver(newer := world.put("newer"))
    with pytest.raises(AssertionError, match=r"repeated without cause.*newer/4"):
        _bring_about(world, lambda world: world.deliver(newer), of="others", ends_watchers=True)
    with pytest.raises(AssertionError, match=r"repeated without cause.*old/2"):
        _bring_about(world, lambda world: world.deliver(old), ends_watchers=True)
    assert [row.repeated for row in world.system.results.rows] == [1, 1, 1, 1]
    world.system.check()  # what was told once is not told again


@pytest.mark.parametrize(
    ("before", "again", "is_cause"),
    [
        pytest.param(-14, 5, True, id="it was not committed yet"),
        pytest.param(-16, 5, False, id="it was committed"),
        pytest.param(4, 5, True, id="it was delivered while the watcher could end"),
        pytest.param(11, 12, False, id="it was delivered afterwards"),
        pytest.param(-5, -1, False, id="it came again before"),
        pytest.param(-5, 10 + RECOVERED - 1, True, id="it came again after the start"),
        pytest.param(-5, 10 + RECOVERED + 1, False, id="it came again much later"),
    ],
)
def test_an_interruption_explains_what_was_not_committed(
    before: float, again: float, *, is_cause: bool
) -> None:
    """It lasts for ten seconds, and what is not committed is at most 15 seconds old."""

    def at(seconds: float) -> datetime:
        return STAMP + timedelta(seconds=seconds)

    repeat = Repeat("it", at(again), None, at(before))
    assert is_explained(repeat, [Interruption("kill", at(0), at(10))], 15) == is_cause


def test_an_epoch_that_was_asked_for_is_no_repeat() -> None:
    """What comes again in it has its id, and is not counted."""
    world = _World()
    world.objects.epoch = 2
    _bring_about(world, lambda world: world.deliver(world.first, epoch=2))
    assert not world.system.results.rows[0].repeated


def _row(number: int, stamp: datetime) -> Version:
    return Version(number, 1, stamp, time.monotonic() - 1, time.monotonic())


ROW = {"id": "1", "key": {"id": 1}, "cursor": {"type": "timestamp", "value": STAMP.isoformat()}}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({**ROW, "row": {"version": 1}}, [], id="the row"),
        pytest.param({**ROW, "row": {"version": 2}}, ["of another version than was committed"], id="another"),
        pytest.param({**ROW, "key": {"id": 2}}, ["lost", "never committed"], id="a row that is not there"),
    ],
)
def test_a_row_is_the_one_that_was_committed(change: dict[str, Any], found: list[str]) -> None:
    """By its key, its stamp and its content."""
    airflow = _Airflow()
    source = Rows("rows", cast("Any", SimpleNamespace(committed=Committed([_row(1, STAMP)]))))
    airflow.store(change)
    source.collect(cast("Any", airflow))
    wrong = {"lost": source.lost(0, 1, []), **source.faults(())}
    assert sorted(fault for fault, names in wrong.items() if names) == found


@pytest.mark.parametrize(
    ("high", "later", "is_lost"),
    [
        pytest.param(1, 0, False, id="it is in a window"),
        pytest.param(-1, 0, True, id="no window reaches it"),
        pytest.param(1, 60, True, id="it came into a window that was delivered"),
    ],
)
def test_a_row_is_in_a_window_that_came_after_it(high: float, later: float, *, is_lost: bool) -> None:
    """A window is final: what enters it later is lost, for nobody looks again."""
    airflow = _Airflow()
    version = _row(1, STAMP)._replace(sent=time.monotonic() - 1 + later)
    source = Windows("windows", cast("Any", SimpleNamespace(committed=Committed([version]))))
    ends = [{"type": "timestamp", "value": (STAMP + timedelta(seconds=s)).isoformat()} for s in (-9, high)]
    airflow.store(event_id="window", low=ends[0], high=ends[1])
    source.collect(cast("Any", airflow))
    assert bool(source.lost(0, 1, [])) == is_lost
