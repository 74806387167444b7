"""Full garbage collections, of which the triggerer is spared."""

from __future__ import annotations

import gc
import time

import pytest

from airflow.providers.watermark import heap


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(heap, "_began", None)
    monkeypatch.setattr(heap, "_last", None)
    monkeypatch.setattr(heap, "_ends", 0.0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_there_is_looked_at_no_more_and_what_comes_later_is():
    cycles = [Cycle() for _ in range(1000)]
    heap.freeze()
    assert gc.get_freeze_count() > len(cycles)
    frozen = {id(each) for each in cycles}
    assert not any(id(each) in frozen for each in gc.get_objects())
    later = [Cycle() for _ in range(1000)]
    del later
    assert gc.collect() >= 1000


def test_young_garbage_is_collected_before():
    gc.collect()
    Cycle().more = [Cycle() for _ in range(100)]
    before = gc.get_stats()[1]["collected"]
    heap.freeze()
    assert gc.get_stats()[1]["collected"] - before >= 100


def test_a_process_that_has_started_long_ago_is_left_alone(monkeypatch):
    heap.freeze()
    gc.unfreeze()
    now = time.monotonic() + heap.STARTING + 1
    monkeypatch.setattr(heap.time, "monotonic", lambda: now)
    heap.freeze()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("begins", "later", "is_starting"),
    [
        pytest.param([200], 490, True, id="another watcher began"),
        pytest.param([200], 510, False, id="another began long ago"),
        pytest.param([200, 450, 700], 990, True, id="one after the other began"),
        pytest.param([250 * n for n in range(5)], 1190, True, id="many began"),
        pytest.param([250 * n for n in range(6)], 1210, False, id="they do not end to begin"),
    ],
)
def test_a_process_is_starting_as_long_as_watchers_begin(monkeypatch, begins, later, is_starting):
    now = began = time.monotonic()
    monkeypatch.setattr(heap.time, "monotonic", lambda: now)
    heap.freeze(begins=True)
    for seconds in begins:
        now = began + seconds
        heap.freeze(begins=True)
    gc.unfreeze()
    now = began + later
    heap.freeze()
    assert (gc.get_freeze_count() > 0) == is_starting


def test_many_watchers_that_begin_together_freeze_once(monkeypatch):
    heap.freeze()
    gc.unfreeze()
    heap.freeze()
    assert gc.get_freeze_count() == 0
    now = time.monotonic() + heap.REST
    monkeypatch.setattr(heap.time, "monotonic", lambda: now)
    heap.freeze()
    assert gc.get_freeze_count() > 0


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("AIRFLOW__WATERMARK__FREEZE_HEAP", "False")
    heap.freeze()
    assert gc.get_freeze_count() == 0
