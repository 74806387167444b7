"""
The state machine is worth its time: it finds broken watchers by itself.

Those, that is, which take few steps to be found; the contract suite finds the others.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from airflow.providers.watermark.testing.doubles import WatchedList
from tests.contract import mutant_watchers as mutants
from tests.property.test_watcher_machine import WatcherMachine

SETTINGS = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "mutant",
    [
        mutants.TakesOnlyWhatIsNewerThanTheNewest,
        mutants.LimitsBeforeItDrops,
        mutants.ForgetsInACrashWhatItHasSeen,
        mutants.LeavesNoMargin,
        mutants.ForgetsWhatIsUnderWay,
        mutants.CommitsWhatIsNotAcknowledged,
        mutants.TakesAFailureForAnAcknowledgement,
    ],
)
def test_the_machine_finds_a_broken_watcher(mutant):
    class Watched(WatchedList):
        trigger_class = mutant

    class Machine(WatcherMachine):
        def __init__(self) -> None:
            super().__init__()
            self.source = Watched()

    with pytest.raises(AssertionError, match=r"lost|claimed|comes again"):
        run_state_machine_as_test(Machine, settings=SETTINGS)
