"""What a release of this package stores: kept as fixtures, so that every later one can be tried with it.

``python -m system_tests.upgrade`` runs the whole system for a while, and writes what is stored into
``system_tests/stored/<version>/``: each watermark, and the class and the arguments of each trigger. It is run
once for each release.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.fernet import Fernet

from airflow.providers.watermark import __version__
from system_tests import services
from system_tests.results import Results
from system_tests.running import DAGS
from system_tests.system import running_system

if TYPE_CHECKING:
    from system_tests.running import RunningAirflow

STORED = Path(__file__).parent / "stored"


def stored_watermarks(airflow: RunningAirflow, prefix: str = "") -> dict[str, Any]:
    """Return the watermarks of our own Dags, by the name of their Variable.

    :param prefix: of the names of the assets
    """
    fernet = Fernet(airflow.environment["AIRFLOW__CORE__FERNET_KEY"])
    assets = {f"{prefix}{file.stem}" for file in DAGS.glob("*.py")}
    rows = airflow.metadata.rows("SELECT key, val, is_encrypted FROM variable WHERE key LIKE 'watermark:%'")
    return {
        name: json.loads(fernet.decrypt(value.encode()) if is_encrypted else value)
        for name, value, is_encrypted in sorted(rows)
        if name.split(":")[2] in assets
    }


def stored_triggers(airflow: RunningAirflow) -> list[dict[str, Any]]:
    """Return the trigger rows of our own Dags."""
    fernet = Fernet(airflow.environment["AIRFLOW__CORE__FERNET_KEY"])
    assets = {file.stem for file in DAGS.glob("*.py")}
    rows = airflow.metadata.rows("SELECT classpath, kwargs FROM trigger ORDER BY classpath")
    triggers = [
        {"classpath": path, "kwargs": json.loads(fernet.decrypt(kwargs.encode()))} for path, kwargs in rows
    ]
    return sorted(
        (each for each in triggers if each["kwargs"].get("asset_name") in assets),
        key=lambda each: str(each["kwargs"]["asset_name"]),
    )


def main() -> None:
    """Write the fixtures of the present version."""
    folder = STORED / __version__
    with (
        tempfile.TemporaryDirectory(prefix="system-test-") as scratch,
        services.running() as found,
        running_system(Path(scratch), found, Results()) as system,
    ):
        time.sleep(20)
        system.airflow.restart("triggerer", signal.SIGKILL)
        system.wait_for_news()
        time.sleep(5)  # events are under way, and something is remembered as delivered
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in (
            ("watermarks.json", stored_watermarks(system.airflow)),
            ("triggers.json", stored_triggers(system.airflow)),
        ):
            (folder / name).write_text(json.dumps(document, indent=1) + "\n")
            print(folder / name)


if __name__ == "__main__":
    main()
