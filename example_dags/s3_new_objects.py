"""Load whatever is new under an S3 prefix: each object once, many at a time, in chunks of a bounded size.

To make it yours: write your bucket, prefix and connection below, and your own work into ``load``.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.watermark import watch
from airflow.providers.watermark.events import read_changes
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG, task

BUCKET = os.environ.get("EXAMPLE_BUCKET", "lake")
PREFIX = os.environ.get("EXAMPLE_PREFIX", "orders/")
CONNECTION = os.environ.get("EXAMPLE_AWS_CONN_ID", "aws_default")

# Seconds between two looks at the bucket: how late you may learn of an object, against what listing costs.
POLL_INTERVAL = float(os.environ.get("EXAMPLE_POLL_INTERVAL", "30"))

# Objects for one task instance. Airflow maps at most 1,024 instances in a run ([core] max_map_length), so
# this also says how large a backlog one run can take.
CHUNK_SIZE = int(os.environ.get("EXAMPLE_CHUNK_SIZE", "500"))

# Other Dag files name a watched asset by Asset.ref(name="orders"): a second definition without its watcher
# would make Airflow remove the watcher, and add it again, each time the two files are parsed.
orders = watch(
    "orders",
    S3PrefixTrigger(
        bucket_name=BUCKET,
        prefix=PREFIX,
        aws_conn_id=CONNECTION,
        poll_interval=POLL_INTERVAL,
        start_from="now",  # "beginning" also loads what is there already
    ),
)

# Bound the work by the limit on the task below, not by a low max_active_runs: while a Dag is at that limit,
# Airflow leaves new events without a run until yet another event comes (apache/airflow#56050).
with DAG("load_new_objects", schedule=orders, max_active_runs=16, tags=["example", "watermark"]):

    @task
    def split(triggering_asset_events: dict[Any, Any] | None = None) -> list[list[dict[str, Any]]]:
        """Return the new objects in chunks; a run that you start by hand has no events, and so no chunks."""
        changes = read_changes(triggering_asset_events, orders)
        # What one task hands to the next must be JSON.
        objects = [{"epoch": change.epoch, "id": change.id, "key": change.key} for change in changes]
        return [objects[start : start + CHUNK_SIZE] for start in range(0, len(objects), CHUNK_SIZE)]

    @task(max_active_tis_per_dag=4)
    def load(chunk: list[dict[str, Any]]) -> list[str]:
        """Load one chunk, and return the ids of what was loaded.

        After a crash an object may come again, with the same epoch and id: store both with what you load, or
        write in a way that may be repeated. After a rewind it comes again on purpose, in a higher epoch.

        What is read is what is there by now: of an object that was overwritten since, the new version comes
        as a change of its own, too. One that was deleted since fails here; skip it, if that may happen.
        """
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook

        s3 = S3Hook(aws_conn_id=CONNECTION).get_conn()
        for each in chunk:
            body = s3.get_object(Bucket=BUCKET, Key=each["key"])["Body"].read()
            version = f"{each['epoch']}-{each['id']}"  # what a repeat has in common with the first time
            print(f"{each['key']!r}: {len(body)} bytes, {version}")  # your work goes here
        return [each["id"] for each in chunk]

    load.expand(chunk=split())
