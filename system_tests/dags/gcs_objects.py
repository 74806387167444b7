"""Objects in Google Cloud Storage."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
from airflow.sdk import DAG

trigger = GCSPrefixTrigger(
    bucket_name="system-test",
    prefix="in/",
    gcp_conn_id="gcs_source",
    poll_interval=2,
    late_arrival=5,
)
with DAG("gcs_objects", schedule=watch("gcs_objects", trigger), max_active_runs=16):
    EmptyOperator(task_id="done")
