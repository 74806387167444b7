"""What the reference and the tables say is what the code does."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from airflow.providers.watermark import provider_info
from airflow.providers.watermark.objects.listing import ListedObject
from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.testing.doubles import WatchedList, WatchedListWindows
from airflow.providers.watermark.testing.objects import WatchedObjects
from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from tests.docs.events import payload_for
from tests.docs.pages import DOCS, ROOT, all_blocks, blocks_of

PACKAGE = ROOT / "providers/watermark/src/airflow/providers/watermark"
SCHEMA = json.loads((DOCS / "reference/event.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# -- Event payload -----------------------------------------------------------------------------------------


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "trigger",
    [
        S3PrefixTrigger(bucket_name="lake", prefix="orders/"),
        GCSPrefixTrigger(bucket_name="lake", prefix="orders/"),
        SQLUpdatedAtTrigger(conn_id="shop", table="sales"),
        SQLUpdatedAtTrigger(conn_id="shop", table="sales", payload="keys", primary_key="id"),
        SQLUpdatedAtTrigger(
            conn_id="shop", table="sales", payload="rows", primary_key="id", columns=["amount"]
        ),
    ],
    ids=["S3", "GCS", "windows", "keys", "rows"],
)
def test_what_the_package_builds_is_valid(trigger: Any) -> None:
    VALIDATOR.validate(payload_for(trigger))


@pytest.mark.parametrize("source", [WatchedList, WatchedListWindows, WatchedObjects])
async def test_what_a_watcher_delivers_is_valid(source: Any) -> None:
    watched = source()
    await watched.put("a", "b")
    await watched.settle()
    trigger = watched.make_trigger(asset_name="a", start_from="beginning", late_arrival=watched.late_arrival)
    async with Harness(trigger) as watcher:
        events = await watcher.deliver(2)
    assert events
    for event in events:
        VALIDATOR.validate(event.payload)


@pytest.mark.parametrize(
    "block", blocks_of(DOCS / "reference/event.md", "json"), ids=lambda block: block.name
)
def test_the_events_of_the_page_are_valid(block: Any) -> None:
    VALIDATOR.validate(json.loads(block.code))


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: payload.pop("count"),
        lambda payload: payload["watermark"].pop("epoch"),
        lambda payload: payload["watermark"].update(version=2),
        lambda payload: payload["watermark"].update(event_id="short"),
        lambda payload: payload["watermark"].update(low={"type": "moment", "value": "now"}),
        lambda payload: payload["changes"][0].pop("etag"),
        lambda payload: payload["changes"][0].update(last_modified="2026-03-01 12:00"),
        lambda payload: payload.update(cursor_column="at"),
        lambda payload: payload.pop("changes"),
    ],
    ids=[
        *(
            "no count",
            "no epoch",
            "another version",
            "a short id",
            "no position",
            "no etag",
            "a time of another form",
        ),
        *("both shapes", "neither shape"),
    ],
)
def test_what_is_damaged_is_not_valid(damage: Any) -> None:
    payload = payload_for(S3PrefixTrigger(bucket_name="lake", prefix="orders/"))
    damage(payload)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(payload)


# -- Options, metrics, permissions -------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [S3PrefixTrigger, GCSPrefixTrigger, SQLUpdatedAtTrigger])
def test_each_option_is_described(trigger: type) -> None:
    tables = _module(DOCS / "_ext/reference_tables.py")
    rows = list(tables.option_rows(trigger))
    assert all(text for _, _, text in rows)
    page = (DOCS / "reference/options.md").read_text()
    assert f"{trigger.__module__}.{trigger.__name__}" in page


def test_each_watcher_has_its_options_in_the_reference() -> None:
    page = (DOCS / "reference/options.md").read_text()
    for module in provider_info._trigger_modules():
        assert module in page


def test_the_metrics_of_the_page_are_those_of_the_code() -> None:
    told = set(re.findall(r"`watermark\.([a-z_]+)`", _part(DOCS / "how-to/operate.md", "metrics")))
    sent = set(re.findall(r'"watermark\.([a-z_]+)"', (PACKAGE / "triggers/health.py").read_text()))
    assert told == sent


def _part(page: Path, name: str) -> str:
    return page.read_text().split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def test_the_policy_allows_what_the_watcher_asks_and_no_more() -> None:
    asked = {"list_objects_v2": "s3:ListBucket", "list_multipart_uploads": "s3:ListBucketMultipartUploads"}
    called = set(re.findall(r'self\._call\("(\w+)"', (PACKAGE / "triggers/s3.py").read_text()))
    assert called == asked.keys()
    for block in blocks_of(DOCS / "how-to/permissions.md", "json"):
        allowed: set[str] = set()
        for statement in json.loads(block.code)["Statement"]:
            actions = statement["Action"]
            allowed |= {actions} if isinstance(actions, str) else set(actions)
        assert allowed == set(asked.values())


# -- Messages ----------------------------------------------------------------------------------------------


def _texts() -> Iterator[str]:
    """Give the texts in the package; what is put into them is a NUL."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%(\.\d+)?[a-z]", "\0", node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)


def _messages() -> list[str]:
    text = (DOCS / "how-to/trouble.md").read_text().split("## What the log says")[1]
    cells = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)
    return [span for cell in cells for span in re.findall(r"`([^`]+)`", cell) if " " in span.strip("…")]


_PUT_IN = r"…|'[^']*'|\([^)]*\)|=\d+|;|: |(?<=The settled bound is) "
"""Where something is put into a message, or one text follows another."""


@pytest.mark.parametrize("message", _messages())
def test_a_message_of_the_page_is_one_of_the_code(message: str) -> None:
    corpus = "\n".join(_texts())
    # A part that is put in may be a text of its own: each piece of the message has to be there.
    pieces = [piece for piece in re.split(_PUT_IN, message) if len(piece.strip()) > 8]
    assert pieces, "too short to be found"
    for piece in pieces:
        known = re.sub(r"\d+", "\0", piece.strip())
        assert known in corpus or piece.strip() in corpus, piece


# -- Drawn and computed ------------------------------------------------------------------------------------


def test_the_diagrams_are_those_that_are_drawn() -> None:
    diagrams = _module(DOCS / "diagrams.py")
    for name, draw in diagrams.DIAGRAMS.items():
        assert (DOCS / "_static" / name).read_text() == draw(), f"{name}: run python docs/diagrams.py"


def test_the_tables_of_scaling_are_those_of_the_model() -> None:
    model = _module(DOCS / "scaling_model.py")
    text = model.PAGE.read_text()
    assert model.filled(text) == text, "run python docs/scaling_model.py"


def test_the_model_of_scaling_knows_the_defaults() -> None:
    model = _module(DOCS / "scaling_model.py")
    trigger = S3PrefixTrigger(bucket_name="lake")
    assert trigger.poll_interval == model.POLL_INTERVAL
    assert trigger.list_concurrency == model.LIST_CONCURRENCY
    assert trigger.reconcile_interval == model.RECONCILE_INTERVAL
    assert trigger.partition_lookback == (model.DATED_PARTITIONS - 2) * 86400


@pytest.mark.parametrize("objects", [1, 1000, 4500])
async def test_a_poll_takes_the_requests_that_the_model_counts(objects: int) -> None:
    model = _module(DOCS / "scaling_model.py")
    watched = WatchedObjects()
    for number in range(objects):
        watched.bucket.put(f"in/{number:05}")
    trigger = watched.make_trigger(asset_name="a")
    assert isinstance(trigger, ObjectStoreTrigger)
    async with Harness(trigger) as watcher:
        await watcher.deliver(2)
        before = watcher.trigger.requests  # type: ignore[attr-defined]
        await watcher.deliver()
        sent = watcher.trigger.requests - before  # type: ignore[attr-defined]
    assert sent == model.Load(watchers=1, objects=objects).requests


def test_the_wire_names_of_objects_are_those_of_the_schema() -> None:
    change = payload_for(S3PrefixTrigger(bucket_name="lake"))["changes"][0]
    assert change.keys() - {"id"} == {"key", "size", "etag", "last_modified"}
    assert ListedObject._fields == ("key", "modified", "size", "version")


def test_links_of_the_pages_to_files_lead_somewhere() -> None:
    for page in {block.page for block in all_blocks()} | {*DOCS.rglob("*.md")}:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_each_example_dag_is_shown_from_its_file() -> None:
    shown = set()
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"^```\{literalinclude\} (\S+)$", page.read_text(), re.MULTILINE):
            shown.add((page.parent / target).resolve())
    assert shown == {path.resolve() for path in (ROOT / "example_dags").glob("*.py")}
