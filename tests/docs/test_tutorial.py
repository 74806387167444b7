"""The tutorial hangs together; ``python -m tests.docs.tutorial`` does all of it, with a real Airflow."""

from __future__ import annotations

import runpy
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from airflow.providers.watermark.events import Batch
from airflow.providers.watermark.objects.changes import object_changes
from airflow.providers.watermark.objects.listing import ListedObject
from tests.docs.pages import blocks_of, write_files
from tests.docs.tutorial import PAGE

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KINDS = (
    "",
    "unless",
    "in a second terminal",
    "in a third terminal",
    "until it prints",
    "after a stop",
    "after a start",
)


def test_the_reader_knows_what_each_block_asks_for() -> None:
    notes = [block.note.partition(", ")[2] for block in blocks_of(PAGE) if block.word == "run by"]
    assert len(notes) > 8
    assert all(any(note.startswith(kind) for kind in KINDS if kind) or not note for note in notes)


def test_the_dag_writes_what_the_page_shows(tmp_path: Path) -> None:
    (file,) = [path for path in write_files(PAGE, tmp_path) if path.parent.name == "dags"]
    loaded = tmp_path / "loaded.txt"
    file.write_text(file.read_text().replace("/tmp/watermark-tutorial.txt", str(loaded)))
    dag = runpy.run_path(str(file))
    batch = Batch(
        watcher="s3", source="s3://lake/orders/", low=NOW, high=NOW, epoch=1, max_changes=9, max_bytes=9999
    )
    size = len(b"some orders")
    for change in object_changes(
        [ListedObject(f"orders/{day}.csv", NOW, size, "e") for day in ("monday", "tuesday")], "etag"
    ):
        batch.add(change)
    event = SimpleNamespace(extra={"from_trigger": True, "payload": batch.close()})
    dag["load"].function(triggering_asset_events={dag["orders"]: [event]})
    (shown,) = blocks_of(PAGE, "text")
    assert loaded.read_text() == shown.code
    assert "some orders" in (tmp_path / "put.py").read_text()


def test_the_dag_is_read_with_what_it_says_of_the_beginning(tmp_path: Path) -> None:
    (file,) = [path for path in write_files(PAGE, tmp_path) if path.parent.name == "dags"]
    (watcher,) = runpy.run_path(str(file))["orders"].watchers
    assert (watcher.trigger.start_from, watcher.trigger.poll_interval) == ("beginning", 5)
