"""The stored watermark is changed by an operator, or cannot be stored, while changes arrive."""

from __future__ import annotations

import contextlib
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from devtools.dropper import Dropper
from devtools.ledger import Ledger
from system_tests import small_disk
from system_tests.running import DAGS
from system_tests.traffic import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from system_tests.system import System
    from system_tests.traffic import Source

STORE = "airflow.providers.watermark.stores.object_storage.ObjectStorageStore"


@pytest.mark.quick
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["s3_objects", "rows"])
def test_a_watermark_that_is_rewound_while_its_watcher_runs(system: System, name: str) -> None:
    """All that is after the cut, and still there, comes again in the next epoch; nothing else does."""
    (source,) = (each for each in system.sources if each.name == name)
    with system.fault(f"watermark of {name}: rewound by 40 s") as fault:
        system.wait_for_news(name)
        # In whole seconds, as objects are stamped: what lies exactly there counts as delivered.
        cut = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=40)
        with (
            _come_again(system, source, after=cut),
            fault.interruption("rewind", of=(name,), ends_watchers=False),
        ):
            system.airflow.command_line("rewind", name, "--to", cut.isoformat(), "--yes")
        system.wait_for_news(name)


@contextlib.contextmanager
def _come_again(system: System, source: Source, *, after: datetime) -> Iterator[None]:
    """Check that the epoch that is begun meanwhile has all after a moment, and nothing before it."""

    def delivered(epoch: int) -> dict[str, datetime]:
        events = system.airflow.metadata.asset_events(source.name)
        newest = (event for event in events if event.payload["watermark"]["epoch"] == epoch)
        return {change["id"]: _position(change) for event in newest for change in event.changes}

    expected = {name for name, at in delivered(source.epoch).items() if at > after}
    assert len(expected) > 5
    source.epoch += 1
    yield

    def have_come() -> bool:
        source.collect(system.airflow)  # what is replaced meanwhile does not come
        return bool(expected & source.deliveries.current_ids <= delivered(source.epoch).keys())

    system.airflow.wait_until(f"{len(expected)} changes once more", have_come)
    assert min(delivered(source.epoch).values()) > after


def _position(change: dict[str, Any]) -> datetime:
    """Return the position of an object, or of a row."""
    return datetime.fromisoformat(change.get("last_modified") or change["cursor"]["value"])


@contextlib.contextmanager
def _watched_bucket(system: System, name: str, **options: str) -> Iterator[Objects]:
    """Watch another bucket, with other options, while objects land in it; in the end, compare once more."""
    airflow, bucket = system.airflow, name.replace("_", "-")
    client = system.services.s3.client()
    client.create_bucket(Bucket=bucket)
    text = (DAGS / "s3_objects.py").read_text().replace("system-test", bucket).replace("s3_objects", name)
    # From the beginning, so that it does not matter when the watcher comes to begin.
    given = "".join(
        f"\n    {key}={value!r}," for key, value in {"start_from": "beginning", **options}.items()
    )
    file = airflow.dags_folder / f"{name}.py"
    ledger = Ledger(client, bucket)
    dropper = Dropper(ledger, 5, rate=1)
    objects = Objects(name, ledger, dropper)
    try:
        file.write_text(text.replace("late_arrival=5,", f"late_arrival=5,{given}"))
        with system.also(objects):
            with dropper:
                yield objects
            system.check()
    finally:
        with airflow.files_may_break():  # a file that goes while it is being parsed
            file.unlink(missing_ok=True)
            ended: Callable[[], bool] = lambda: not airflow.metadata.watching_triggers(name)  # noqa: E731
            airflow.wait_until("end of the watcher", ended, timeout=240)


@pytest.mark.timeout(600)
def test_a_watermark_that_is_reset_while_its_watcher_runs(system: System) -> None:
    """By ``start_from="beginning"``, all that is there comes again, in the next epoch."""
    with _watched_bucket(system, "reset") as objects, system.fault("watermark: reset") as fault:
        system.wait_for_news(objects.name)
        time.sleep(10)
        with (
            _come_again(system, objects, after=datetime.fromtimestamp(0, UTC)),
            fault.interruption("reset", of=(objects.name,), ends_watchers=False),
        ):
            system.airflow.command_line("reset", objects.name, "--yes")
        system.wait_for_news(objects.name)


@pytest.mark.timeout(600)
# The header of the run says so, too; CI's tests are root's.
@pytest.mark.skipif(bool(small_disk.problem()), reason=f"nothing can be mounted: {small_disk.problem()}")
def test_a_disk_that_is_full_for_the_object_store(system: System) -> None:
    """The log says that the watermark cannot be saved; events are made all the same, and come again."""
    airflow, logged = system.airflow, system.airflow.log_size()

    def warned() -> bool:
        lines = airflow.errors_of_watchers(after=logged).get("stored_in_files", [])
        return any("cannot be saved" in line and "No space left" in line for line in lines)

    with (
        small_disk.mounted(system.small_disk) as disk,
        _watched_bucket(system, "stored_in_files", store=STORE) as objects,
    ):
        airflow.wait_until("watermark in a file", lambda: any(disk.rglob("*.json")))
        with system.fault("object store: disk full for half a minute, and SIGKILL") as fault:
            system.wait_for_news()
            with fault.interruption("disk full", of=(objects.name,)), small_disk.full(disk):
                system.wait_for_news(objects.name)  # which cannot be saved, and so comes again
                airflow.wait_until("warning that names the cause", warned)
                time.sleep(20)
                system.wait_for_news(objects.name)
                with fault.interruption("SIGKILL"):
                    airflow.restart("triggerer", signal.SIGKILL)
                system.wait_for_news(objects.name)
            system.wait_for_news(timeout=240)
            assert objects.repeats()
