"""Rows of a table, as soon as they are committed."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

trigger = SQLUpdatedAtTrigger(
    conn_id="pg_source",
    table="events",
    payload="rows",
    primary_key="id",
    columns=["version", "payload"],
    poll_interval=2,
    late_arrival=1,
)
with DAG("rows", schedule=watch("rows", trigger), max_active_runs=16):
    EmptyOperator(task_id="done")
