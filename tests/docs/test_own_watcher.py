"""The watcher and the store of the pages are written as the pages say, and keep their contracts."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk.definitions.asset import AssetNameRef, AssetUniqueKey
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
from tests.docs.events import payload_for
from tests.docs.pages import DOCS, write_files


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("page", "fewest"), [("write-a-watcher", 45), ("write-a-store", 30)])
def test_what_the_page_builds_passes_the_contract_suite(page: str, fewest: int, tmp_path: Path) -> None:
    files = write_files(DOCS / "how-to" / f"{page}.md", tmp_path)
    (tests,) = [str(file) for file in files if "tests" in file.parts]
    run = _python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", tests)
    assert run.returncode == 0, run.stdout
    passed = int(run.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed >= fewest, run.stdout


def test_a_watcher_that_is_broken_fails_it(tmp_path: Path) -> None:
    write_files(DOCS / "how-to/write-a-watcher.md", tmp_path)
    file = tmp_path / "acme_watchers/folder.py"
    text = file.read_text()
    broken = text.replace("file[0] > after", "file[0] > after + 'x'").replace(
        "EPOCH + timedelta", "EPOCH - timedelta"
    )
    assert broken != text
    file.write_text(broken)
    run = _python(
        tmp_path,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "tests/test_folder.py",
    )
    assert run.returncode == 1, run.stdout


@pytest.mark.parametrize("page", ["write-a-watcher", "several-dags"])
def test_the_dags_of_the_page_are_read(page: str, tmp_path: Path) -> None:
    files = write_files(DOCS / "how-to" / f"{page}.md", tmp_path)
    dags = [str(file) for file in files if "dags" in file.parts]
    assert dags
    for dag in dags:
        run = _python(tmp_path, "-c", f"import runpy, sys; sys.path.insert(0, '.'); runpy.run_path({dag!r})")
        assert run.returncode == 0, run.stderr


def test_a_dag_reads_the_changes_of_an_asset_that_it_only_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(DOCS / "how-to/several-dags.md", tmp_path)
    report = runpy.run_path(str(tmp_path / "dags/reports.py"))["report"]
    payload = payload_for(S3PrefixTrigger(bucket_name="lake", prefix="orders/"))
    event = SimpleNamespace(
        asset=SimpleNamespace(name="orders", uri="orders"),
        source_aliases=[],
        extra={"from_trigger": True, "payload": payload},
    )
    # What Airflow remembers once it has looked the asset up in its database.
    known = {AssetNameRef("orders"): (AssetUniqueKey(name="orders", uri="orders"), {})}
    monkeypatch.setattr(TriggeringAssetEventsAccessor, "_asset_ref_cache", known)
    report.function(triggering_asset_events=TriggeringAssetEventsAccessor.build([event]))
    assert capsys.readouterr().out == "2 new objects\n"
