"""The other components of Airflow end, while changes arrive, and its database is away."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devtools.airflow_home import Component
    from system_tests.running import RunningAirflow
    from system_tests.system import System


@pytest.mark.quick
@pytest.mark.timeout(600)
def test_a_restart_of_the_metadata_database(system: System) -> None:
    """What Airflow itself does without its database is not ours: a component that ends is started again."""
    with (
        system.airflow.components_may_end(),
        system.fault("metadata database: restart, crash") as fault,
    ):
        for mode in ("fast", "immediate"):
            with fault.interruption(mode, lasts=30):
                system.services.metadata.restart(mode)
            time.sleep(5)
        system.wait_for_news()
        system.check_that_tasks_run()


@pytest.mark.timeout(900)
def test_a_metadata_database_that_is_away_for_a_minute(system: System) -> None:
    """Nothing can be stored meanwhile, and so nothing is committed."""
    with system.airflow.components_may_end(), system.fault("metadata database: away for 60 s") as fault:
        with fault.interruption("away", lasts=30):
            system.services.metadata.stop()
            time.sleep(60)
            system.services.metadata.start()
        system.wait_for_news(timeout=240)
        system.check_that_tasks_run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("component", ["api-server", "scheduler", "dag-processor"])
def test_a_component_that_watchers_do_not_need_to_go_on(system: System, component: Component) -> None:
    """Watchers go on meanwhile, and nothing may come again; then all is as before."""
    airflow = system.airflow
    with system.fault(f"{component}: SIGKILL, SIGTERM") as fault:
        for number in (signal.SIGKILL, signal.SIGTERM):
            with (
                fault.interruption(number.name, of=(), ends_watchers=False),
                _started_again(airflow, component),
            ):
                airflow.stop(component, number)
                system.wait_for_events()
            airflow.wait_for_heartbeat(component)
            system.wait_for_news()
            system.check_that_tasks_run()


@contextlib.contextmanager
def _started_again(airflow: RunningAirflow, component: Component) -> Iterator[None]:
    """Start a component in the end, whatever happens: the next test needs it."""
    try:
        yield
    finally:
        airflow.start(component)
