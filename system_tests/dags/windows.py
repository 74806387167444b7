"""Windows of the same table."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

trigger = SQLUpdatedAtTrigger(
    conn_id="pg_source",
    table="events",
    max_rows_per_event=1000,
    poll_interval=2,
    late_arrival=1,
    commit_delay=1,
)
with DAG("windows", schedule=watch("windows", trigger), max_active_runs=16):
    EmptyOperator(task_id="done")
