"""The triggerer dies, is stopped, or is frozen, while changes arrive."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from system_tests.system import System


@pytest.mark.quick
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_triggerer_that_ends(system: System, number: signal.Signals) -> None:
    """Changes wait; what had not been committed comes again, with the same ids."""
    with system.fault(f"triggerer: {number.name}") as fault:
        time.sleep(3)
        with fault.interruption(number.name):
            system.airflow.restart("triggerer", number)
        system.wait_for_news()


@pytest.mark.timeout(600)
def test_a_frozen_triggerer_that_wakes_up_after_another_took_over(system: System) -> None:
    """The other one takes over after the health check's threshold; while both run, changes may come twice."""
    airflow = system.airflow
    with airflow.components_may_end(), system.fault("triggerer: frozen, taken over, woken up") as fault:
        with contextlib.ExitStack() as other:
            other.enter_context(airflow.another_triggerer())
            time.sleep(10)  # it is up, and has nothing to do
            with fault.interruption("frozen", lasts=15):
                airflow.signal_all("triggerer", signal.SIGSTOP)
                try:
                    system.wait_for_news()
                finally:
                    airflow.signal_all("triggerer", signal.SIGCONT)
            system.wait_for_news()
            time.sleep(20)
            with fault.interruption("the other one stopped"):
                other.close()
        system.wait_for_news()
