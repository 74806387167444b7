"""Each durable store in a real triggerer, through a kill; and what an operator changes while it runs."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from devtools.airflow_home import AirflowHome
from devtools.s3_servers import ministack

STORES = {
    "by_variable": "variable.VariableStore",
    "by_sql": "sql.SqlStore",
    "by_files": "object_storage.ObjectStorageStore",
    "by_asset_state": "asset_state.AssetStateStore",
}
DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

orders = watch({asset!r}, S3PrefixTrigger(
    bucket_name="lake", prefix="in/", poll_interval=1, late_arrival=5, commit_delay=2, start_from="beginning",
    store="airflow.providers.watermark.stores.{store}",
))
with DAG("load_" + {asset!r}, schedule=orders):
    pass
"""


def keys(airflow: AirflowHome, asset: str, *, epoch: int = 1) -> list[str]:
    return [
        change["key"]
        for event in airflow.metadata.asset_events(asset)
        if event.payload["watermark"]["epoch"] == epoch
        for change in event.changes
    ]


@pytest.mark.timeout(400)
def test_every_store_keeps_its_watermark_through_a_kill_and_takes_a_rewind(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    for asset, store in STORES.items():
        (dags / f"{asset}.py").write_text(textwrap.dedent(DAG).format(asset=asset, store=store))
    files = tmp_path / "watermarks"
    files.mkdir()
    environment = {
        "AIRFLOW__WATERMARK__SQL_CONN_ID": "watermarks",
        "AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH": f"file://{files}",
    }
    with ministack() as server:
        connections = {
            "aws_default": server.airflow_connection_json(),
            "watermarks": f'{{"conn_type": "sqlite", "host": "{tmp_path / "watermarks.db"}"}}',
        }
        client = server.client()
        client.create_bucket(Bucket="lake")
        with AirflowHome(
            tmp_path / "home", dags_folder=dags, connections=connections, environment=environment
        ) as airflow:

            def command(*argv: str) -> None:
                line = [sys.executable, "-m", "airflow", "watermarks", *argv]
                done = subprocess.run(line, env=airflow.environment, capture_output=True, text=True)  # noqa: PLW1510
                assert done.returncode == 0, done.stderr

            def put(name: str) -> None:
                client.put_object(Bucket="lake", Key=f"in/{name}", Body=b"x")

            def have(name: str, *, epoch: int = 1, assets: tuple[str, ...] = tuple(STORES)) -> bool:
                return all(f"in/{name}" in keys(airflow, asset, epoch=epoch) for asset in assets)

            command("migrate")
            put("first")
            airflow.start("dag-processor", "triggerer")
            airflow.wait_until("first delivery", lambda: have("first"), timeout=180)
            time.sleep(12)  # until it is committed, late_arrival and all
            airflow.kill("triggerer")
            put("second")
            airflow.start("triggerer")
            airflow.wait_until("delivery after the kill", lambda: have("second"), timeout=180)
            for asset in STORES:
                assert keys(airflow, asset).count("in/first") == 1, f"{asset} began anew"
            for asset, store in list(STORES.items())[:3]:
                path = f"airflow.providers.watermark.stores.{store}"
                command("rewind", asset, "--to", "beginning", "--yes", "--store", path)
            assets = tuple(STORES)[:3]
            airflow.wait_until(
                "delivery after the rewind", lambda: have("first", epoch=2, assets=assets), timeout=120
            )


@pytest.mark.timeout(400)
def test_a_variable_that_cannot_be_decrypted_is_not_missing(tmp_path: Path) -> None:
    """Else the watcher would begin anew, and with ``start_from="now"`` lose what it has not delivered."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "orders.py").write_text(
        textwrap.dedent(DAG).format(asset="orders", store="variable.VariableStore")
    )
    with ministack() as server:
        client = server.client()
        client.create_bucket(Bucket="lake")
        connections = {"aws_default": server.airflow_connection_json()}
        with AirflowHome(tmp_path / "home", dags_folder=dags, connections=connections) as airflow:
            client.put_object(Bucket="lake", Key="in/first", Body=b"x")
            airflow.start("dag-processor", "triggerer")
            airflow.wait_until("first delivery", lambda: keys(airflow, "orders"), timeout=180)
            time.sleep(12)
            airflow.kill("triggerer")
            (stored,) = airflow.metadata.rows("SELECT val FROM variable")
            with contextlib.closing(sqlite3.connect(airflow.metadata.path, timeout=60)) as database, database:
                database.execute("UPDATE variable SET val = ?", (encrypted_by_another_key(),))
            client.put_object(Bucket="lake", Key="in/second", Body=b"x")
            airflow.start("triggerer")
            log = tmp_path / "home" / "triggerer.log"
            airflow.wait_until(
                "error", lambda: "exists but cannot be read" in log.read_text(errors="replace"), timeout=120
            )
            time.sleep(5)
            assert keys(airflow, "orders") == ["in/first"]
            with contextlib.closing(sqlite3.connect(airflow.metadata.path, timeout=60)) as database, database:
                database.execute("UPDATE variable SET val = ?", stored)
            airflow.wait_until("second delivery", lambda: "in/second" in keys(airflow, "orders"), timeout=120)
            assert keys(airflow, "orders") == ["in/first", "in/second"]


def encrypted_by_another_key() -> str:
    return Fernet(Fernet.generate_key()).encrypt(b"{}").decode()
