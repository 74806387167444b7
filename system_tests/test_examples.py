"""Every example Dag, as it is, to a successful run and to what it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from system_tests.running import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from system_tests.system import System

ROWS = 30
KEYS = [f"{number}.csv" for number in range(ROWS)]

pytestmark = [pytest.mark.quick, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def changed(system: System) -> System:
    """Change all sources at once: the Dags run side by side."""
    services = system.services
    s3 = services.s3.client()
    for key in KEYS:
        s3.put_object(Bucket="lake", Key=f"orders/{key}", Body=b"order")
        services.gcs.put("lake", f"invoices/{key}", b"invoice")
    rows = f"generate_series(1, {ROWS}) AS n"
    services.postgres.execute(f"INSERT INTO tickets SELECT n, 'open', n * 1.5 FROM {rows}")  # noqa: S608
    services.postgres.execute("INSERT INTO tickets VALUES (1000, 'draft', 0)")
    services.postgres.execute(f"INSERT INTO sales SELECT n, n FROM {rows}")  # noqa: S608
    return system


def _wait_for_identities(
    system: System, asset: str, identity: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """Return what was changed, by the ids of the changes, once there is enough of it."""

    def identities() -> dict[str, Any]:
        events = system.airflow.metadata.asset_events(asset)
        changes = (change for event in events for change in event.changes)
        return {change["id"]: identity(change) for change in changes if change["id"] not in system.checks}

    system.airflow.wait_until(f"events of {asset}", lambda: len(identities()) >= ROWS)
    return identities()


def _returned(system: System, dag: str, task: str) -> list[Any]:
    return [each.value for each in system.airflow.metadata.returned(dag, task)]


def _check_all_succeed(system: System, dag: str) -> None:
    """Check that all runs did that were given more than what other tests put, while they did harm."""
    metadata = system.airflow.metadata

    def states() -> set[str]:
        events = metadata.asset_events("orders")
        others = {event.id for event in events if system.checks >= {each["id"] for each in event.changes}}
        return {run.state for run in metadata.dag_runs(dag) if not run.event_ids <= others}

    system.airflow.wait_until("end of all runs", lambda: not {"queued", "running"} & states())
    assert states() == {"success"}


def _check_each_is_loaded_once(
    system: System, dag: str, task: str, identities: dict[str, Any], changed: set[Any]
) -> None:
    """Check that the tasks handled each change, by its id, and that those are the changes that were made."""

    def loaded() -> list[str]:
        found = [change for chunk in _returned(system, dag, task) for change in chunk]
        return [change for change in found if change not in system.checks]

    system.airflow.wait_until(f"end of {dag}", lambda: len(set(loaded())) >= len(changed), timeout=240)
    _check_all_succeed(system, dag)
    assert sorted(map(str, loaded())) == sorted(identities)
    assert set(identities.values()) == changed


def _check_objects(system: System, dag: str, asset: str, keys: set[str]) -> None:
    found = _wait_for_identities(system, asset, lambda change: change["key"])
    _check_each_is_loaded_once(system, dag, "load", found, keys)


def test_new_objects_in_s3_are_loaded(changed: System) -> None:
    """``s3_new_objects.py``: each object once, in chunks."""
    _check_objects(changed, "load_new_objects", "orders", {f"orders/{key}" for key in KEYS})


def test_new_objects_in_gcs_are_loaded(changed: System) -> None:
    """``gcs_new_objects.py``: each object once, in chunks."""
    _check_objects(changed, "load_new_gcs_objects", "invoices", {f"invoices/{key}" for key in KEYS})


def test_changed_rows_are_handled(changed: System) -> None:
    """``sql_rows.py``: each row once, and none that its predicate leaves out."""
    found = _wait_for_identities(changed, "tickets", lambda change: change["key"]["id"])
    _check_each_is_loaded_once(changed, "handle_tickets", "handle", found, set(range(1, ROWS + 1)))


def test_windows_of_a_table_are_copied(changed: System) -> None:
    """``sql_window.py``: the copy is the table."""
    postgres = changed.services.postgres

    def rows(table: str) -> list[tuple[Any, ...]]:
        return postgres.execute(f"SELECT id, amount, updated_at FROM {table} ORDER BY id")  # noqa: S608

    changed.airflow.wait_until("copy", lambda: rows("sales_copy") == rows("sales"), timeout=240)
    _check_all_succeed(changed, "copy_sales")
    assert sum(_returned(changed, "copy_sales", "copy_window")) == len(rows("sales")) == ROWS


def test_no_example_is_left_out(system: System) -> None:
    """A new example needs a test here."""
    tested = {"gcs_new_objects", "s3_new_objects", "sql_rows", "sql_window"}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == tested
    assert not system.airflow.metadata.import_errors()
