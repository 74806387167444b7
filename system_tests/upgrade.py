"""What a release of this package stores: kept as fixtures, so that every later one can be tried with it.

``python -m system_tests.upgrade`` runs the whole system for a while, kills its triggerer, and writes what is
stored then into ``system_tests/stored/<version>/``: each watermark, and the class and the arguments of each
trigger. It then starts the same release again, and adds the events of the last seconds before the kill and of
the first ones after it: what any later release must deliver in its place, with the same ids. It is run once
for each release; the tests fail while a version of ``CHANGELOG.md`` has no folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from cryptography.fernet import Fernet

from airflow.providers.watermark import __version__
from airflow.providers.watermark.events import read_changes
from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.watermark import WatermarkState
from airflow.sdk import Asset
from system_tests import services
from system_tests.results import Results
from system_tests.running import DAGS
from system_tests.starting import running_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.providers.watermark.events import ObjectChange, RowChange
    from system_tests.running import RunningAirflow

STORED = Path(__file__).parent / "stored"

_TRAFFIC = 20.0
"""Seconds of traffic before the kill, so that much lies before the low watermarks."""

_KEPT = timedelta(seconds=20)
"""How long before the kill the oldest kept event was stored: all that a watermark remembers is younger."""

_MOST = 16
"""Changes that are kept of one event: fixtures are small, however long the new start takes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Rows of Airflow's metadata database as a release left them, each a line of a file.

    :param watermarks: of ``variable``: the ``key``, and the ``val`` as a document
    :param triggers: of ``trigger``: the ``classpath``, and the ``kwargs`` as a document
    :param events: of ``asset_event``, oldest first: the name of the ``asset``, and the ``payload``
    """

    watermarks: list[dict[str, Any]]
    triggers: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a release's files; none may be missing."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: json.loads((folder / f"{name}.json").read_text()) for name in names})

    def write(self, folder: Path) -> None:
        """Write them."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in dataclasses.fields(self):
            lines = ",\n".join(map(json.dumps, getattr(self, field.name)))
            (folder / f"{field.name}.json").write_text(f"[\n{lines}\n]\n")
            print(folder / f"{field.name}.json")

    def state(self, asset: str) -> WatermarkState:
        """Return the watermark of an asset."""
        (wire,) = (row["val"] for row in self.watermarks if row["key"].split(":")[2] == asset)
        return WatermarkState.from_wire(wire)

    def payloads(self, asset: str) -> list[dict[str, Any]]:
        """Return what the release's events of an asset carried, oldest first."""
        return [row["payload"] for row in self.events if row["asset"] == asset]

    @property
    def watching_changes(self) -> list[str]:
        """The assets whose events carry changes."""
        return sorted({row["asset"] for row in self.events if "changes" in row["payload"]})

    @property
    def watching_windows(self) -> list[str]:
        """The assets whose events tell of windows."""
        return sorted({row["asset"] for row in self.events} - set(self.watching_changes))

    def changes(self, asset: str) -> list[ObjectChange | RowChange]:
        """Return the changes of an asset that events carried, each once, oldest first."""
        return read_changes(*as_task_input(asset, self.payloads(asset)))

    def there(self, asset: str) -> list[ObjectChange | RowChange]:
        """Return what is still in the source: the newest version of each thing, oldest first."""
        newest = {str(change.key): change for change in self.changes(asset)}
        return sorted(newest.values(), key=lambda change: change.order)

    def due(self, asset: str) -> set[str]:
        """Return the ids of what is to be delivered: it lies after the watermark, and has not been yet."""
        state = self.state(asset)
        news = {each.id for each in self.there(asset) if is_after(each.order[0], state.low)}
        return news - state.seen.keys()

    def lacks(self) -> Iterator[str]:
        """Tell what is missing for a trial of these rows to prove something."""
        for asset in self.watching_changes:
            state, there = self.state(asset), self.there(asset)
            if all(is_after(each.order[0], state.low) for each in there):
                yield f"{asset}: a change before the watermark"
            if not state.seen.keys() & {each.id for each in there}:
                yield f"{asset}: a change that is remembered as delivered"
            if state.seen.keys() - {each.id for each in self.changes(asset)}:
                yield f"{asset}: the event of each change that is remembered as delivered"
            if not self.due(asset):
                yield f"{asset}: a change that is due"
        for asset in self.watching_windows:
            high = self.state(asset).high
            if high is None or not any(is_after(each.order[0], high) for each in self.there("rows")):
                yield f"{asset}: a window under way, and a row after it"


def as_task_input(asset: str, payloads: list[dict[str, Any]]) -> tuple[dict[Asset, list[Any]], Asset]:
    """Return payloads of events as a task gets them: ``triggering_asset_events``, and the asset."""
    events = [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in payloads]
    return {Asset(asset): events}, Asset(asset)


def fernet_of(airflow: RunningAirflow) -> Fernet:
    """Return what Airflow encrypts with."""
    return Fernet(airflow.environment["AIRFLOW__CORE__FERNET_KEY"])


def stored_watermarks(airflow: RunningAirflow) -> list[dict[str, Any]]:
    """Return the watermarks of our own Dags, by the name of their Variable."""
    fernet, assets = fernet_of(airflow), _own_assets()
    rows = airflow.metadata.rows("SELECT key, val, is_encrypted FROM variable WHERE key LIKE 'watermark:%'")
    return [
        {"key": key, "val": json.loads(fernet.decrypt(value.encode()) if is_encrypted else value)}
        for key, value, is_encrypted in sorted(rows)
        if key.split(":")[2] in assets
    ]


def stored_triggers(airflow: RunningAirflow) -> list[dict[str, Any]]:
    """Return the trigger rows of our own Dags, by asset."""
    fernet, assets = fernet_of(airflow), _own_assets()
    rows = airflow.metadata.rows("SELECT classpath, kwargs FROM trigger")
    triggers = [
        {"classpath": path, "kwargs": json.loads(fernet.decrypt(kwargs.encode()))} for path, kwargs in rows
    ]
    return sorted(
        (each for each in triggers if each["kwargs"].get("asset_name") in assets),
        key=lambda each: str(each["kwargs"]["asset_name"]),
    )


def _own_assets() -> set[str]:
    return {file.stem for file in DAGS.glob("*.py")}


def _is_telling(watermarks: list[dict[str, Any]]) -> bool:
    """Tell whether each watcher has delivered changes ahead of its watermark, or has a window under way."""
    return all(row["val"]["seen"] or row["val"]["high"] for row in watermarks)


def _shortened(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "changes": payload["changes"][:_MOST]} if "changes" in payload else payload


def main() -> None:
    """Write the fixtures of the present version."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.upgrade", description=main.__doc__)
    parser.add_argument("--replace", action="store_true", help="write them anew, before a release")
    replace = parser.parse_args().replace
    if (STORED / __version__).exists() and not replace:
        parser.error(f"{STORED / __version__} exists; say --replace, unless {__version__} has been released")
    services.end_by_sigterm_as_by_ctrl_c()
    with (
        tempfile.TemporaryDirectory(prefix="system-test-") as scratch,
        services.running() as found,
        running_system(Path(scratch), found, Results()) as system,
    ):
        airflow = system.airflow
        time.sleep(_TRAFFIC)
        airflow.wait_until("telling watermarks", lambda: _is_telling(stored_watermarks(airflow)))
        airflow.kill("triggerer")
        since = datetime.now(UTC) - _KEPT
        watermarks, triggers = stored_watermarks(airflow), stored_triggers(airflow)
        airflow.start("triggerer")
        system.wait_for_news(timeout=240)
        events = [
            {"asset": asset, "payload": _shortened(event.payload)}
            for asset in sorted(_own_assets())
            for event in airflow.metadata.asset_events(asset)
            if event.timestamp > since
        ]
    stored = Stored(watermarks=watermarks, triggers=triggers, events=events)
    assert not list(stored.lacks()), "once more: it lacks " + ", ".join(stored.lacks())
    stored.write(STORED / __version__)


if __name__ == "__main__":
    main()
