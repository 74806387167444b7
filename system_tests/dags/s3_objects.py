"""Objects in S3."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

trigger = S3PrefixTrigger(
    bucket_name="system-test",
    prefix="in/",
    aws_conn_id="s3_source",
    poll_interval=2,
    late_arrival=5,
)
with DAG("s3_objects", schedule=watch("s3_objects", trigger), max_active_runs=16):
    EmptyOperator(task_id="done")
