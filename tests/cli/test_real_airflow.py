"""The command line in a real Airflow: its Variables, its assets, its Dags, and its own `airflow` command."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys

import pytest
from cryptography.fernet import Fernet

from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.variable import variable_name
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.version_compat import HAS_ACK_MODE
from airflow.providers.watermark.watermark import WatermarkState
from devtools.airflow_home import AirflowHome
from devtools.databases import postgres
from devtools.s3_stub import StubS3

DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

orders = watch("orders", S3PrefixTrigger(bucket_name="lake", prefix="orders/", start_from="beginning"))
with DAG("load_orders", schedule=orders):
    pass
"""
SALES = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

with DAG(
    "load_sales",
    schedule=watch("sales", SQLUpdatedAtTrigger(conn_id="shop", table="sales", start_from="beginning")),
):
    pass
"""
TRIGGER = S3PrefixTrigger(asset_name="orders", bucket_name="lake", prefix="orders/")
GONE = WatermarkKey("gone", "s3", "q83vEjRWeJA")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "load_orders.py").write_text(DAG)
    with (
        StubS3() as stub,
        AirflowHome(
            folder / "home", dags_folder=dags, connections={"aws_default": stub.airflow_connection_json()}
        ) as home,
    ):
        for number in range(3):
            stub.put(f"orders/{number}.csv", b"x")
        home.start("dag-processor")
        home.wait_until("asset", lambda: home.metadata.watching_triggers("orders"))
        yield home


def command(airflow, *argv, module="airflow", environment=()):
    argv = ("watermarks", *argv) if module == "airflow" else argv
    done = subprocess.run(
        [sys.executable, "-m", module, *argv],
        capture_output=True,
        check=False,
        text=True,
        env={**airflow.environment, **dict(environment)},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def plant(airflow, key):
    wire = WatermarkState(source=TRIGGER.fingerprint, low="a", revision=1).to_wire()
    text = json.dumps(wire)
    script = "import sys; from airflow.models import Variable; Variable.set(sys.argv[1], sys.argv[2])"
    subprocess.run(
        [sys.executable, "-c", script, variable_name(key), text], check=True, env=airflow.environment
    )


def test_variables_are_listed_changed_and_pruned_by_airflows_own_command(airflow):
    plant(airflow, GONE)
    code, out, _ = command(airflow, "list", "-o", "json")
    assert code == 0
    assert [row["asset"] for row in json.loads(out)] == ["gone"]
    assert command(airflow, "rewind", "gone", "--to", "A", "--yes")[0] == 0
    code, out, _ = command(airflow, "show", "gone", "-o", "json", module="airflow.providers.watermark")
    assert (code, json.loads(out)[0]["value"]["epoch"]) == (0, 2)
    plant(airflow, TRIGGER.key)
    code, _, err = command(airflow, "prune", "--yes")
    assert code == 0
    assert "gone/s3" in err
    assert "orders" not in err
    assert [row["asset"] for row in json.loads(command(airflow, "list", "-o", "json")[1])] == ["orders"]
    assert command(airflow, "reset", "orders", "--yes")[0] == 0


def test_a_variable_that_cannot_be_decrypted_is_an_error_and_never_missing(airflow):
    key = GONE._replace(asset_name="sealed")
    plant(airflow, key)
    query = 'SELECT val FROM variable WHERE "key" = ?'
    before = airflow.metadata.rows(query, variable_name(key))
    another = {"AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode()}
    code, out, _ = command(airflow, "list", "-o", "json", environment=another)
    (row,) = [row for row in json.loads(out) if row["asset"] == "sealed"]
    assert code == 0
    assert "fernet_key was changed" in row["last_error"]
    code, _, err = command(airflow, "reset", "sealed", "--yes", environment=another)
    assert code == 1
    assert "exists but cannot be read" in err
    assert "tried again" not in err
    assert airflow.metadata.rows(query, variable_name(key)) == before
    with contextlib.closing(sqlite3.connect(airflow.metadata.path, timeout=60)) as database, database:
        database.execute('DELETE FROM variable WHERE "key" = ?', (variable_name(key),))


def test_a_watcher_of_a_dag_is_tried_without_delivering_anything(airflow):
    code, out, err = command(airflow, "check", "orders", "-o", "json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["waiting"] == "3"
    assert row["source"] == "s3://lake/orders/"


def test_an_asset_without_a_watcher_of_ours_is_an_error_in_one_line(airflow):
    code, _, err = command(airflow, "check", "sales")
    assert code == 1
    assert "no Dag has an asset 'sales'" in err


def test_rows_are_alone_on_the_standard_output_whatever_dag_files_do(airflow, tmp_path):
    (tmp_path / "load_orders.py").write_text(DAG + "print('a Dag file prints')\n")
    (tmp_path / "broken.py").write_text("from airflow.sdk import DAG\nraise ValueError('a mistake')\n")
    code, out, err = command(airflow, "check", "orders", "-o", "json", "--dag-file", str(tmp_path))
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["asset"] == "orders"
    assert "broken.py cannot be imported: ValueError: a mistake" in err


def test_where_the_settled_bound_of_a_table_comes_from_is_told(airflow, tmp_path):
    file = tmp_path / "sales.py"
    file.write_text(SALES)
    with postgres() as database:
        database.execute("create table sales (updated_at timestamptz not null)")
        database.execute("insert into sales values ('2026-03-01T12:00:00Z')")
        shop = {"AIRFLOW_CONN_SHOP": database.airflow_connection_json()}
        code, out, err = command(
            airflow, "check", "sales", "-o", "json", "--dag-file", str(file), environment=shop
        )
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["waiting"] == "1"
    assert row["bound"].startswith("exact")


@pytest.mark.skipif(not HAS_ACK_MODE, reason="Airflow has asset state from 3.3 on")
def test_a_watcher_whose_watermark_is_in_asset_state_is_tried_too(airflow, tmp_path):
    file = tmp_path / "load_orders.py"
    store = "airflow.providers.watermark.stores.asset_state.AssetStateStore"
    file.write_text(DAG.replace('bucket_name="lake"', f'bucket_name="lake", store="{store}"'))
    code, out, err = command(airflow, "check", "orders", "-o", "json", "--dag-file", str(file))
    assert code == 0, err
    assert json.loads(out)[0]["waiting"] == "3"


def test_nothing_is_pruned_while_a_dag_file_cannot_be_imported(airflow):
    plant(airflow, GONE)
    airflow.stop("dag-processor")  # which would see that there is no such file
    with contextlib.closing(sqlite3.connect(airflow.metadata.path)) as database, database:
        database.execute("insert into import_error (filename, stacktrace) values ('broken.py', 'a mistake')")
    code, _, err = command(airflow, "prune", "--yes")
    assert code == 1
    assert "broken.py" in err
    assert "gone" in [row["asset"] for row in json.loads(command(airflow, "list", "-o", "json")[1])]
