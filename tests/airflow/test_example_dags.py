"""Every example Dag is read by Airflow as it is; the demo and the system tests run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.airflow_home import AirflowHome

EXAMPLES = Path(__file__).parents[2] / "example_dags"


def test_every_example_dag_is_read_and_its_watcher_is_registered(tmp_path: Path) -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert files
    with AirflowHome(tmp_path / "home", dags_folder=EXAMPLES) as airflow:
        airflow.start("dag-processor")
        watchers = "SELECT count(DISTINCT asset_id) FROM asset_watcher"
        # wait_until also fails on the first Dag file that does not import.
        airflow.wait_until(
            "watcher of each example", lambda: airflow.metadata.rows(watchers)[0][0] == len(files)
        )


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_begins_with_what_it_does_and_what_to_change(file: Path) -> None:
    text = file.read_text()
    assert text.startswith('"""')
    assert "To make it yours" in text.split('"""')[1]
