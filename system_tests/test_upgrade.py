"""What earlier releases stored loads, and goes on: see :mod:`system_tests.upgrade`."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow.providers.watermark.events import read_window
from airflow.providers.watermark.position import encode_position, is_after
from airflow.providers.watermark.watermark import WatermarkState
from system_tests.upgrade import STORED, Stored, as_task_input, stored_watermarks
from system_tests.upgraded import upgraded_airflow

if TYPE_CHECKING:
    from system_tests.running import RunningAirflow
    from system_tests.services import Services

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
RELEASES = sorted(folder.name for folder in STORED.glob("*"))

pytestmark = [pytest.mark.quick, pytest.mark.timeout(400)]
each_release = pytest.mark.parametrize("release", RELEASES)


def test_every_release_has_a_folder() -> None:
    """Without one there would be nothing to try."""
    released = re.findall(r"^## \[(\d[^]]*)]", CHANGELOG.read_text(), re.MULTILINE)
    assert RELEASES
    assert set(released) <= set(RELEASES)


@each_release
def test_what_is_kept_proves_something(release: str) -> None:
    """Each watermark lies between changes, and remembers some; each has its trigger."""
    stored = Stored.read(STORED / release)
    assets = [row["kwargs"]["asset_name"] for row in stored.triggers]
    assert len(stored.watching_changes) >= 4
    assert stored.watching_windows
    assert sorted([*stored.watching_changes, *stored.watching_windows]) == assets
    assert sorted(row["key"].split(":")[2] for row in stored.watermarks) == assets
    assert not list(stored.lacks())


@each_release
def test_a_stored_trigger_is_built_and_finds_its_watermark(release: str) -> None:
    """Each keeps its arguments, and stores under the same name: else the watcher would begin anew."""
    stored = Stored.read(STORED / release)
    names = set()
    for row in stored.triggers:
        module, _, name = row["classpath"].rpartition(".")
        trigger = getattr(import_module(module), name)(**row["kwargs"])
        path, kwargs = trigger.serialize()
        assert path == row["classpath"]
        assert {key: kwargs[key] for key in row["kwargs"]} == row["kwargs"]
        key = trigger.asset_watermark
        names.add(f"watermark:{key.namespace}:{key.asset_name}:{key.key}")
    assert names == {row["key"] for row in stored.watermarks}


@each_release
def test_a_stored_watermark_loads_as_it_was(release: str) -> None:
    """Whatever a release wrote is read, and written the same way, or with more in it."""
    for row in Stored.read(STORED / release).watermarks:
        wire = WatermarkState.from_wire(row["val"]).to_wire()
        assert {key: wire.get(key) for key in row["val"]} == row["val"]


@each_release
def test_a_triggerer_goes_on_where_the_release_was_killed(
    services: Services, release: str, tmp_path: Path
) -> None:
    """It loads the rows, delivers exactly what is due, each once, with the ids of the release, and saves."""
    stored = Stored.read(STORED / release)
    name = f"upgraded_{release}".replace(".", "_")
    with upgraded_airflow(tmp_path, services, stored, name) as airflow:
        airflow.start("triggerer")
        airflow.wait_until("events of all that is due", lambda: not _missing(airflow, stored), timeout=240)
        airflow.wait_until("saved watermarks", lambda: _have_gone_on(airflow, stored))
        delivered = {asset: _delivered(airflow, asset) for asset in stored.watching_changes}
        windows = {asset: _windows(airflow, asset) for asset in stored.watching_windows}
        complaints = airflow.errors_of_watchers()
    assert delivered == {asset: Counter(stored.due(asset)) for asset in stored.watching_changes}
    for asset, payloads in windows.items():
        _check_windows(stored, asset, payloads)
    assert not complaints


def _missing(airflow: RunningAirflow, stored: Stored) -> list[str]:
    """Return the assets with something that is due, and in no event yet."""
    last = encode_position(_rows(stored)[-1].cursor)
    delivered = {asset: _delivered(airflow, asset).keys() for asset in stored.watching_changes}
    bounds = {asset: _windows(airflow, asset) for asset in stored.watching_windows}
    return [
        *(asset for asset, ids in delivered.items() if stored.due(asset) - ids),
        *(asset for asset, found in bounds.items() if not found or found[-1]["watermark"]["high"] != last),
    ]


def _delivered(airflow: RunningAirflow, asset: str) -> Counter[str]:
    """Return how often each change was delivered, by its id."""
    events = airflow.metadata.asset_events(asset)
    return Counter(change["id"] for event in events for change in event.changes)


def _windows(airflow: RunningAirflow, asset: str) -> list[dict[str, Any]]:
    """Return the payloads of windows, less those that only wake Airflow."""
    payloads = [event.payload for event in airflow.metadata.asset_events(asset)]
    return [each for each in payloads if each["watermark"]["low"] != each["watermark"]["high"]]


def _have_gone_on(airflow: RunningAirflow, stored: Stored) -> bool:
    """Tell whether each watermark was saved again, further on and in the same epoch; and no other."""
    states = {row["key"]: WatermarkState.from_wire(row["val"]) for row in stored_watermarks(airflow)}
    before = {row["key"]: WatermarkState.from_wire(row["val"]) for row in stored.watermarks}
    return states.keys() == before.keys() and all(
        state.epoch == before[key].epoch
        and state.revision > before[key].revision
        and is_after(state.low, before[key].low)
        for key, state in states.items()
    )


def _check_windows(stored: Stored, asset: str, payloads: list[dict[str, Any]]) -> None:
    """Check that the very window under way comes again, and others up to the last row, without a gap."""
    state, rows = stored.state(asset), _rows(stored)
    ids = [payload["watermark"]["event_id"] for payload in payloads]
    assert state.high is not None
    assert ids[0] in {payload["watermark"]["event_id"] for payload in stored.payloads(asset)}
    assert payloads[0]["watermark"]["high"] == encode_position(state.high)
    assert len(ids) == len(set(ids)) > 1
    window = read_window(*as_task_input(asset, payloads))
    assert window is not None
    assert (window.low, window.high) == (state.low, rows[-1].cursor)
    assert window.count == sum(row.cursor > state.low for row in rows)


def _rows(stored: Stored) -> list[Any]:
    """Return the rows of the table that both the rows' and the windows' watcher read, oldest first."""
    return stored.there("rows")
