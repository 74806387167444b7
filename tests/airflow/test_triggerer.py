"""The watcher in a real Dag processor and a real triggerer, on SQLite, with real S3 requests."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest

from devtools.airflow_home import AirflowHome
from devtools.s3_servers import S3Server, ministack, stub

DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

with DAG({dag_id!r}, schedule=watch({asset!r}, S3PrefixTrigger({arguments}))):
    pass
"""


def write_dag(folder: Path, asset: str, arguments: str) -> None:
    folder.mkdir(exist_ok=True)
    text = textwrap.dedent(DAG).format(dag_id=f"load_{asset}", asset=asset, arguments=arguments)
    (folder / f"{asset}.py").write_text(text)


def airflow_home(path: Path, server: S3Server) -> AirflowHome:
    connections = {"aws_default": server.airflow_connection_json()}
    return AirflowHome(path / "home", dags_folder=path / "dags", connections=connections)


def delivered_ids(airflow: AirflowHome, asset: str) -> list[str]:
    return [change["id"] for event in airflow.metadata.asset_events(asset) for change in event.changes]


def test_a_wrong_argument_is_an_import_error_that_names_it_and_one_bad_dag_spoils_no_other(
    tmp_path: Path,
) -> None:
    dags = tmp_path / "dags"
    write_dag(dags, "no_bucket", "prefix='orders/'")
    write_dag(dags, "uri", "bucket_name='s3://lake'")
    write_dag(dags, "negative", "bucket_name='lake', late_arrival=-5")
    write_dag(dags, "typo", "bucket_name='lake', poll_intervall=5")
    write_dag(dags, "no_time", "bucket_name='lake', start_from='yesterday'")
    write_dag(dags, "good", "bucket_name='lake'")
    server = S3Server(
        name="none", endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key="a", secret_key="b"
    )
    with airflow_home(tmp_path, server) as airflow:
        airflow.start("dag-processor")
        deadline = time.monotonic() + 90
        while len(errors := airflow.metadata.import_errors()) < 5 and time.monotonic() < deadline:
            time.sleep(0.5)
        text = "\n".join(errors)
        assert len(errors) == 5, text + airflow.log_tails()
        assert "bucket_name='': must be a bucket's name" in text
        assert "bucket_name='s3://lake': must be a bucket's name alone" in text
        assert "late_arrival=-5: must be a number above 0" in text
        assert "poll_intervall: unknown option; did you mean 'poll_interval'?" in text
        assert "start_from='yesterday': must be 'now', 'beginning', or a time" in text
        while not (good := airflow.metadata.watching_triggers("good")) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert good


def test_what_lands_is_delivered_once_and_the_watermark_is_a_variable(tmp_path: Path) -> None:
    write_dag(
        tmp_path / "dags", "orders", "bucket_name='lake', prefix='orders/', poll_interval=1, late_arrival=5"
    )
    with ministack() as server, airflow_home(tmp_path, server) as airflow:
        client = server.client()
        client.create_bucket(Bucket="lake")
        client.put_object(Bucket="lake", Key="orders/before", Body=b"old news")
        time.sleep(2.5)  # start_from="now" is exact to the second
        airflow.start("dag-processor", "triggerer")
        airflow.wait_until("watermark", lambda: airflow.metadata.variable_names("watermark:s3:orders:"))
        keys = [f"orders/{index} ü+%.csv" for index in range(5)]
        for key in keys:
            client.put_object(Bucket="lake", Key=key, Body=key.encode())
        airflow.wait_until("delivery", lambda: len(delivered_ids(airflow, "orders")) >= len(keys))
        time.sleep(3)  # as many polls, none of which may deliver anything again
        events = airflow.metadata.asset_events("orders")
        assert sorted(change["key"] for event in events for change in event.changes) == sorted(keys)
        assert {event.payload["watermark"]["source"] for event in events} == {"s3://lake/orders/"}


def test_an_access_error_is_told_once_with_a_remedy_and_the_watcher_recovers_by_itself(
    tmp_path: Path,
) -> None:
    write_dag(tmp_path / "dags", "late", "bucket_name='late', poll_interval=1, late_arrival=5")
    with ministack() as server, airflow_home(tmp_path, server) as airflow:
        log = tmp_path / "home" / "triggerer.log"
        airflow.start("dag-processor", "triggerer")
        airflow.wait_until("error", lambda: log.exists() and "NoSuchBucket" in log.read_text())
        time.sleep(5)
        complaint = "S3 bucket 'late', connection 'aws_default': list_multipart_uploads failed (NoSuchBucket)"
        assert log.read_text().count(complaint) == 1
        assert "create the bucket, or correct bucket_name" in log.read_text()
        assert log.read_text().count("trigger ID") == log.read_text().count("trigger ID 1 starting")
        client = server.client()
        client.create_bucket(Bucket="late")
        airflow.wait_until("watermark", lambda: airflow.metadata.variable_names("watermark:s3:late:"))
        client.put_object(Bucket="late", Key="first", Body=b"x")
        airflow.wait_until("delivery", lambda: delivered_ids(airflow, "late"))
        assert "Recovered after" in log.read_text()


@pytest.mark.timeout(660)
def test_a_backlog_of_200_000_objects_drains_through_a_kill_and_goes_on_where_it_was(tmp_path: Path) -> None:
    objects = 200_000
    arguments = "bucket_name='lake', start_from='beginning', max_event_bytes=262144"
    write_dag(tmp_path / "dags", "backlog", arguments)
    with stub(objects=objects) as server, airflow_home(tmp_path, server) as airflow:
        airflow.start("dag-processor", "triggerer")

        def delivered(at_least: int) -> bool:
            # Events are counted, since to read all of them again and again is more work than the delivery.
            return int(airflow.metadata.rows("SELECT count(*) FROM asset_event")[0][0]) * 500 >= at_least

        airflow.wait_until("half of the backlog", lambda: delivered(objects // 2), timeout=300)
        airflow.kill("triggerer")
        at_kill = len(delivered_ids(airflow, "backlog"))
        airflow.start("triggerer")
        airflow.wait_until(
            "rest of the backlog",
            lambda: delivered(objects) and len(set(delivered_ids(airflow, "backlog"))) >= objects,
            timeout=300,
        )
        ids = delivered_ids(airflow, "backlog")
        assert len(set(ids)) == objects
        again = len(ids) - objects
        assert again < at_kill, "it began anew instead of going on"
