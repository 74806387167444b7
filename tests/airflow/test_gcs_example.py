"""The GCS example Dag against a real emulator: watched in a real triggerer that is killed, and its tasks."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow.dag_processing.dagbag import DagBag
from devtools.airflow_home import AirflowHome
from devtools.gcs_servers import fake_gcs

EXAMPLE = Path(__file__).parents[2] / "example_dags" / "gcs_new_objects.py"


@pytest.mark.timeout(600)
def test_the_gcs_example_is_given_each_new_object_once_and_an_overwritten_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(EXAMPLE, dags)
    with fake_gcs() as server:
        server.create_bucket("lake")
        server.put("lake", "invoices/old.csv", b"there before")
        settings = {"STORAGE_EMULATOR_HOST": server.endpoint_url, "EXAMPLE_POLL_INTERVAL": "1"}
        connections = {"google_cloud_default": server.airflow_connection_json()}
        home = AirflowHome(tmp_path / "home", dags_folder=dags, connections=connections, environment=settings)
        with home as airflow:
            metadata = airflow.metadata

            def versions() -> dict[str, str]:  # a repeat has the same id
                return {
                    change["id"]: change["key"]
                    for event in metadata.asset_events("invoices")
                    for change in event.changes
                }

            airflow.start("dag-processor", "triggerer")
            airflow.wait_until("watermark", lambda: metadata.variable_names("watermark:gcs:"), timeout=240)
            for name in ("1", "2", "a b+é"):
                server.put("lake", f"invoices/{name}.csv", b"new")
            server.put("lake", "others/1.csv", b"elsewhere")
            airflow.wait_until("first objects", lambda: len(versions()) >= 3, timeout=120)
            airflow.kill("triggerer")
            server.put("lake", "invoices/1.csv", b"overwritten")
            server.edit("lake", "invoices/2.csv")
            server.put("lake", "invoices/3.csv", b"new")
            airflow.start("triggerer")
            airflow.wait_until("later objects", lambda: len(versions()) >= 5, timeout=240)
            delivered = versions()
            events = [
                SimpleNamespace(extra={"payload": e.payload, "from_trigger": True})
                for e in metadata.asset_events("invoices")
            ]
        assert Counter(delivered.values()) == {
            "invoices/1.csv": 2,
            "invoices/2.csv": 1,
            "invoices/3.csv": 1,
            "invoices/a b+é.csv": 1,
        }

        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint_url)
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", server.airflow_connection_json())
        dag = DagBag(dag_folder=dags, bundle_path=dags).dags["load_new_gcs_objects"]
        split, load = (dag.task_dict[name].python_callable for name in ("split", "load"))
        (chunk,) = split({split.__globals__["invoices"]: events})
        assert {each["id"] for each in chunk} == delivered.keys()
        assert set(load(chunk)) == delivered.keys()
        assert "'invoices/a b+é.csv': 3 bytes" in capsys.readouterr().out
