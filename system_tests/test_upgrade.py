"""What earlier releases stored loads, and goes on: see :mod:`system_tests.upgrade`."""

from __future__ import annotations

import contextlib
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from airflow.providers.watermark.watermark import WatermarkState
from system_tests.running import DAGS
from system_tests.upgrade import STORED, stored_watermarks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from system_tests.running import RunningAirflow
    from system_tests.system import System

RELEASES = sorted(STORED.iterdir())

pytestmark = [
    pytest.mark.quick,
    pytest.mark.timeout(400),
    pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name),
]


def _triggers(release: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((release / "triggers.json").read_text())
    return found


def _watermarks(release: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((release / "watermarks.json").read_text())
    return found


def test_there_is_a_release(release: Path) -> None:
    """An empty folder would test nothing."""
    assert len(_triggers(release)) == len(_watermarks(release)) >= 4


def test_a_stored_trigger_is_built_and_finds_its_watermark(release: Path) -> None:
    """Each keeps its arguments, and stores under the same name: else the watcher would begin anew."""
    names = set()
    for row in _triggers(release):
        module, _, name = row["classpath"].rpartition(".")
        trigger = getattr(import_module(module), name)(**row["kwargs"])
        path, kwargs = trigger.serialize()
        assert path == row["classpath"]
        assert {key: kwargs[key] for key in row["kwargs"]} == row["kwargs"]
        key = trigger.asset_watermark
        names.add(f"watermark:{key.namespace}:{key.asset_name}:{key.key}")
    assert names == set(_watermarks(release))


def test_a_stored_watermark_loads_as_it_was(release: Path) -> None:
    """Whatever a release wrote is read, and written the same way, or with more in it."""
    for stored in _watermarks(release).values():
        wire = WatermarkState.from_wire(stored).to_wire()
        assert {key: wire.get(key) for key in stored} == stored


def test_watchers_go_on_where_the_release_left_off(system: System, release: Path) -> None:
    """All that came after the stored watermark is delivered, in the same epoch; who is new begins now."""
    airflow, prefix = system.airflow, f"upgraded_{release.name}_".replace(".", "_")
    before = {_renamed(name, prefix): wire for name, wire in _watermarks(release).items()}
    statement = "INSERT INTO variable (key, val, is_encrypted) VALUES (?, ?, false)"
    for name, wire in before.items():
        airflow.metadata.execute(statement, name, json.dumps(wire))

    def have_gone_on() -> bool:
        after = stored_watermarks(airflow, prefix)
        return all(
            after[name]["epoch"] == wire["epoch"] and after[name]["revision"] > wire["revision"]
            for name, wire in before.items()
        )

    landed = {source.name: source.changes for source in system.sources}
    with _copied_dags(airflow, prefix):
        for name, count in landed.items():
            # Only the last version of what was changed more than once is still there.
            _wait_for_changes(system, f"{prefix}{name}", count // 4)
        airflow.wait_until("saved watermarks", have_gone_on)


def _renamed(name: str, prefix: str) -> str:
    """Return the name of the Variable of the same watcher for another asset."""
    root, namespace, asset, key = name.split(":")
    return f"{root}:{namespace}:{prefix}{asset}:{key}"


@contextlib.contextmanager
def _copied_dags(airflow: RunningAirflow, prefix: str) -> Iterator[None]:
    """Run our own Dags a second time, under other names."""
    files = []
    for original in DAGS.glob("*.py"):
        text = original.read_text()
        for call in ("DAG", "watch"):
            assert f'{call}("{original.stem}"' in text
            text = text.replace(f'{call}("{original.stem}"', f'{call}("{prefix}{original.stem}"')
        files.append(airflow.dags_folder / f"{prefix}{original.name}")
        files[-1].write_text(text)
    try:
        yield
    finally:
        for file in files:
            file.unlink()


def _wait_for_changes(system: System, asset: str, count: int) -> None:
    def delivered() -> int:
        return sum(event.payload["count"] for event in system.airflow.metadata.asset_events(asset))

    system.airflow.wait_until(f"{count} old changes of {asset}", lambda: delivered() >= count)
