"""Dags are paused, broken, edited and removed, while changes arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from system_tests.system import Fault, System

CANCELLED_WITHIN = 5.0
"""How long a trigger may go on after its row is gone, in seconds: the triggerer looks once a second."""


def _watching(system: System) -> list[set[int]]:
    return [set(system.airflow.metadata.watching_triggers(source.name)) for source in system.sources]


@pytest.fixture
def texts(system: System) -> Iterator[dict[str, str]]:
    """Read the Dag files, and restore them in the end, whatever happens: the next test needs them."""
    found = {s.name: (system.airflow.dags_folder / f"{s.name}.py").read_text() for s in system.sources}
    yield found
    _write(system, found)


def _write(system: System, texts: dict[str, str]) -> None:
    """Replace Dag files, none of which is ever half there."""
    for name, text in texts.items():
        file = system.airflow.dags_folder / f"{name}.py"
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").replace(file)


def _wait_for_ends(system: System, fault: Fault) -> None:
    """Wait until no watcher is left; the first of them ends when its Dag file is next parsed."""
    airflow = system.airflow
    airflow.wait_until("end of a watcher", lambda: not all(_watching(system)), timeout=240)
    with fault.interruption("end of the watchers", lasts=CANCELLED_WITHIN):
        airflow.wait_until("end of the watchers", lambda: not any(_watching(system)), timeout=240)


@pytest.mark.quick
@pytest.mark.timeout(400)
def test_dags_that_are_paused_and_unpaused(system: System) -> None:
    """No watcher runs meanwhile; changes wait in the source."""
    airflow = system.airflow
    with system.fault("Dags: paused and unpaused") as fault:
        try:
            for source in system.sources:
                airflow.pause_dag(source.name)
            _wait_for_ends(system, fault)
            time.sleep(5)
        finally:
            for source in system.sources:
                airflow.unpause_dag(source.name)
        airflow.wait_until("return of the watchers", lambda: all(_watching(system)))
        system.wait_for_news()


@pytest.mark.quick
@pytest.mark.timeout(400)
def test_dag_files_that_are_broken_and_repaired(system: System, texts: dict[str, str]) -> None:
    """The UI shows the import error; watchers may go on meanwhile, or wait."""
    airflow = system.airflow
    with system.fault("Dag files: broken and repaired") as fault, airflow.files_may_break():
        with fault.interruption("broken", lasts=CANCELLED_WITHIN):
            _write(system, {name: f"{text}\nraise RuntimeError\n" for name, text in texts.items()})
            airflow.wait_until(
                "import errors", lambda: len(airflow.metadata.import_errors()) == len(system.sources)
            )
            time.sleep(5)
            _write(system, texts)
            airflow.wait_until("end of import errors", lambda: not airflow.metadata.import_errors())
            airflow.wait_until("return of the watchers", lambda: all(_watching(system)))
        system.wait_for_news()


@pytest.mark.timeout(600)
def test_dags_whose_watchers_are_tuned(system: System, texts: dict[str, str]) -> None:
    """Airflow ends the old watcher and begins the new one a parse later; the watermark stays."""
    tuned = {name: text.replace("poll_interval=2", "poll_interval=3") for name, text in texts.items()}
    with system.fault("Dag files: watchers tuned, and back") as fault:
        for files in (tuned, texts):
            old = _watching(system)
            with fault.interruption("edit", lasts=CANCELLED_WITHIN):
                _write(system, files)
                _wait_for_others(system, old)
            system.wait_for_news()


def _wait_for_others(system: System, old: list[set[int]]) -> None:
    """Wait until each watcher is another than it was."""

    def are_others() -> bool:
        return all(new and not new & before for new, before in zip(_watching(system), old, strict=True))

    system.airflow.wait_until("new watchers", are_others)


@pytest.mark.timeout(600)
def test_dag_files_that_are_deleted_and_restored(system: System, texts: dict[str, str]) -> None:
    """The watermark outlives its Dag."""
    airflow = system.airflow
    # A file that goes while it is being parsed is an import error for a moment.
    with airflow.files_may_break(), system.fault("Dag files: deleted and restored") as fault:
        for name in texts:
            (airflow.dags_folder / f"{name}.py").unlink()
        _wait_for_ends(system, fault)
        time.sleep(10)
        _write(system, texts)
        airflow.wait_until("return of the watchers", lambda: all(_watching(system)), timeout=240)
        system.wait_for_news(timeout=240)
