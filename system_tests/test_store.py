"""The stored watermark is changed by an operator, or cannot be stored, while changes arrive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from devtools.dropper import Dropper
from devtools.ledger import Ledger
from system_tests.running import DAGS
from system_tests.traffic import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from system_tests.system import System

STORE = "airflow.providers.watermark.stores.object_storage.ObjectStorageStore"


@pytest.mark.quick
@pytest.mark.timeout(400)
def test_a_watermark_that_is_rewound_while_its_watcher_runs(system: System) -> None:
    """The watcher adopts it with its next poll, and delivers again what is after it, in a new epoch."""
    airflow = system.airflow
    objects = system.sources[0]
    with system.fault("watermark: rewound by 15 s") as fault:
        system.wait_for_news(objects.name)
        before = objects.repeated()
        with fault.interruption("rewind", lasts=10):
            to = (datetime.now(UTC) - timedelta(seconds=15)).isoformat()
            airflow.command_line("rewind", objects.name, "--to", to, "--yes")

        def has_come_again() -> bool:
            objects.collect(airflow)
            return objects.repeated() > before

        airflow.wait_until("change that came again", has_come_again)
        system.wait_for_news(objects.name)
    epochs = {event.payload["watermark"]["epoch"] for event in airflow.metadata.asset_events(objects.name)}
    assert len(epochs) > 1, f"what was delivered again cannot be told from the first time: epochs {epochs}"


@pytest.fixture
def small_disk(system: System) -> Iterator[Path]:
    """Mount a file system of 64 KiB, which takes a privilege; without it there is no small disk to fill."""
    folder = system.small_disk
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "watermarks", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"a small file system can be mounted by root only (uid {os.getuid()}): {done.stderr.strip()}"
        )
    try:
        (folder / "kept").mkdir()  # the store takes no mount point itself
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def _stored_in_files(system: System) -> Iterator[Objects]:
    """Watch another bucket, with a watermark in a file."""
    airflow, name = system.airflow, "stored_in_files"
    client = system.services.s3.client()
    client.create_bucket(Bucket=name.replace("_", "-"))
    text = (DAGS / "s3_objects.py").read_text().replace("system-test", name.replace("_", "-"))
    text = text.replace("s3_objects", name).replace(
        "late_arrival=5,", f'late_arrival=5,\n    store="{STORE}",'
    )
    file = airflow.dags_folder / f"{name}.py"
    file.write_text(text)
    airflow.wait_until("watermark in a file", lambda: any(system.small_disk.rglob("*.json")))
    ledger = Ledger(client, name.replace("_", "-"))
    with Dropper(ledger, 5, rate=1) as dropper:
        yield Objects(name, ledger, dropper)
    file.unlink()
    airflow.wait_until("end of the watcher", lambda: not airflow.metadata.watching_triggers(name))


@pytest.mark.timeout(600)
def test_a_disk_that_is_full_for_the_object_store(system: System, small_disk: Path) -> None:
    """The log says that the watermark cannot be saved; events are made all the same, and may come again."""
    logged = system.airflow.log_size()

    def warned() -> bool:
        lines = system.airflow.errors_of_watchers(after=logged).get(objects.name, [])
        return any("cannot be saved" in line and "No space left" in line for line in lines)

    with _stored_in_files(system) as objects:
        system.sources.append(objects)
        with system.fault("object store: disk full for 20 s") as fault:
            system.wait_for_news(objects.name)
            with fault.interruption("disk full", ends_watchers=True, lasts=30):
                with contextlib.suppress(OSError), (small_disk / "filling").open("wb", buffering=0) as file:
                    while True:
                        file.write(b"x" * 4096)
                time.sleep(20)
                system.airflow.wait_until("warning that names the cause", warned)
                (small_disk / "filling").unlink()
            system.wait_for_news(objects.name, timeout=240)
            with fault.interruption("SIGKILL"):
                system.airflow.restart("triggerer", signal.SIGKILL)
            system.wait_for_news(objects.name)
        system.sources.remove(objects)
