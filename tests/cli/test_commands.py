"""The command line of an operator, on a store of files; what it prints, changes and refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from airflow.providers.watermark.cli import main, running
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.watermark import WatermarkState, is_reset

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = WatermarkKey("orders", "s3", "q83vEjRWeJA")
SOURCE = {"watcher": "s3", "bucket_name": "lake", "prefix": "orders/", "pattern": None, "exclude": []}
FILES = "airflow.providers.watermark.stores.object_storage.ObjectStorageStore"


def state(**known):
    return WatermarkState(**{"source": SOURCE, "low": NOON, "revision": 3, **known})


class Files:
    """The configured store, looked at from outside."""

    def __init__(self, monkeypatch, path):
        self.path = path
        path.mkdir()
        monkeypatch.setenv("AIRFLOW__WATERMARK__STORE", FILES)
        monkeypatch.setenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH", f"file://{path}")

    def put(self, value, key=KEY):
        wire = value if isinstance(value, dict) else value.to_wire()

        async def save():
            store = ObjectStorageStore()
            await store.save(key, wire, expected=await store.load(key))
            await store.close()

        asyncio.run(save())
        return wire

    def get(self, key=KEY):
        async def load():
            store = ObjectStorageStore()
            try:
                return await store.load(key)
            finally:
                await store.close()

        return asyncio.run(load())


@pytest.fixture
def files(monkeypatch, tmp_path):
    return Files(monkeypatch, tmp_path / "watermarks")


@pytest.fixture
def run(capfd):
    """Run a command; give its exit code, and what it printed."""

    def run(*argv):
        code = main(argv)
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


# --- list and show ------------------------------------------------------------------------------------------


def test_the_list_tells_how_watchers_fare(files, run):
    low = datetime.now(UTC) - timedelta(hours=1)
    status = {"polled": "2026-03-01T12:00:00+00:00", "error": "allow s3:ListBucket", "since": "?"}
    wire = files.put(state(low=low, status=status))
    code, out, _ = run("list", "--output", "json")
    (row,) = json.loads(out)
    assert code == 0
    assert row.pop("age") == pytest.approx(3600, abs=60)
    assert row == {
        "asset": "orders",
        "watcher": "s3",
        "key": "q83vEjRWeJA",
        "source": {"watcher": "s3", "bucket_name": "lake", "prefix": "orders/"},
        "low_watermark": wire["low"]["value"],
        "bytes": len(json.dumps(wire)),
        "last_poll": "2026-03-01T12:00:00+00:00",
        "last_error": "allow s3:ListBucket",
    }


@pytest.mark.parametrize("output", ["table", "plain"])
def test_the_list_is_a_table_for_people(files, run, output):
    files.put(state())
    code, out, _ = run("list", "-o", output)
    assert code == 0
    assert "orders" in out
    assert "prefix=orders/" in out


def test_a_table_tells_all_that_a_watermark_is_named_by_as_it_is(files, run):
    odd = KEY._replace(asset_name="übër [red]x")
    files.put(state(), odd)
    for command in (("list",), ("list", "-o", "plain"), ("show", odd.asset_name)):
        code, out, _ = run(*command)
        assert code == 0
        for text in odd:
            assert text in out


def test_who_stops_reading_gets_no_traceback(files, monkeypatch, capfd):
    files.put(state())
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["list", "-o", "json"]) == 1
    assert capfd.readouterr().err == ""


def test_what_is_logged_and_printed_meanwhile_is_not_among_the_rows(files, run, monkeypatch):
    files.put(state())
    load = ObjectStorageStore.load

    async def chatty(store, key):
        print("a Dag file prints")
        logging.getLogger("airflow.chatty").error("Airflow logs")
        return await load(store, key)

    monkeypatch.setattr(ObjectStorageStore, "load", chatty)
    handler = logging.StreamHandler(sys.stdout)  # as Airflow has it
    logging.root.addHandler(handler)
    try:
        code, out, err = run("list", "-o", "json")
    finally:
        logging.root.removeHandler(handler)
    assert (code, len(json.loads(out))) == (0, 1)
    assert "a Dag file prints" in err
    assert "Airflow logs" in err
    assert handler.stream is sys.stdout


def test_an_empty_list_is_no_error(files, run):
    assert run("list", "-o", "json")[:2] == (0, "[]\n")


def test_what_is_damaged_is_listed_and_hides_no_other(files, run):
    files.put({"version": 1, "revision": 1}, KEY._replace(asset_name="damaged"))
    files.put(state())
    code, out, _ = run("list", "-o", "yaml")
    rows = yaml.safe_load(out)
    assert code == 0
    assert [row["asset"] for row in rows] == ["damaged", "orders"]
    assert "damaged" in rows[0]["last_error"]
    assert rows[1]["last_error"] is None


def test_all_that_is_stored_is_shown(files, run):
    wire = files.put(state(high=NOON + timedelta(hours=1), cursor="orders/7", status={"bound": "a clock"}))
    code, out, _ = run("show", "orders", "-o", "json")
    assert (code, json.loads(out)) == (0, [{**KEY._asdict(), "value": wire}])
    code, out, _ = run("show", "orders")
    assert code == 0
    for text in ("2026-03-01T12:00:00Z", "orders/7", "a clock"):
        assert text in out


def test_an_asset_that_has_no_watermark_is_an_error_in_one_line(files, run):
    files.put(state())
    code, out, err = run("show", "sales")
    assert (code, out) == (1, "")
    assert "'sales'" in err
    assert len(err.strip().splitlines()) == 1


def test_of_several_watermarks_one_has_to_be_named(files, run):
    files.put(state())
    files.put(state(), KEY._replace(namespace="gcs"))
    code, _, err = run("show", "orders")
    assert code == 1
    assert "--namespace gcs --key q83vEjRWeJA" in err
    assert run("show", "orders", "--namespace", "gcs")[0] == 0


def test_a_store_that_is_none_is_an_error_in_one_line(run):
    code, _, err = run("list", "--store", "no.such.Store")
    assert code == 1
    assert "no.such.Store" in err
    assert len(err.strip().splitlines()) == 1


def test_a_wrong_command_is_told_with_its_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explode"])
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


# --- set, rewind and reset ----------------------------------------------------------------------------------


def test_a_rewind_begins_a_new_epoch_and_says_what_comes_again(files, run):
    files.put(state(seen={"AAAAAAAAAAE": NOON + timedelta(minutes=1)}))
    code, _, err = run("rewind", "orders", "--to", "2026-03-01T13:00:00+02:00", "--yes")
    assert code == 0
    assert "after 2026-03-01T11:00:00Z" in err
    assert "1 changes after that" in err
    found = WatermarkState.from_wire(files.get())
    assert (found.low, found.epoch, found.revision, dict(found.seen)) == (
        NOON - timedelta(hours=1),
        2,
        4,
        {},
    )


@pytest.mark.parametrize(
    "command",
    [
        ("rewind", "orders", "--to", "beginning"),
        ("set", "orders", "2027-01-01T00:00:00Z"),
        ("reset", "orders"),
    ],
)
@pytest.mark.parametrize("how", ["dry run", "nobody to ask"])
def test_nothing_is_changed_without_being_asked_for(files, run, command, how):
    wire = files.put(state())
    code, _, err = run(*command, *(["--dry-run"] if how == "dry run" else []))
    assert files.get() == wire
    assert code == (0 if how == "dry run" else 1)
    assert ("Nothing was changed" if how == "dry run" else "nobody to ask") in err


@pytest.mark.parametrize(("answer", "changed"), [("y", True), ("YES", True), ("n", False), ("", False)])
def test_somebody_is_asked_before_anything_is_changed(files, run, monkeypatch, answer, changed):
    wire = files.put(state())
    monkeypatch.setattr(running.sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert run("rewind", "orders", "--to", "beginning")[0] == 0
    assert (files.get() != wire) is changed


def test_an_end_of_input_is_no_answer(files, run, monkeypatch):
    def end(_):
        raise EOFError

    wire = files.put(state())
    monkeypatch.setattr(running.sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("builtins.input", end)
    code, _, err = run("rewind", "orders", "--to", "beginning")
    assert (code, files.get()) == (0, wire)
    assert "Nothing was changed" in err


def test_a_rewind_ahead_is_refused_and_set_says_what_is_skipped(files, run):
    wire = files.put(state())
    code, _, err = run("rewind", "orders", "--to", "2026-03-02T00:00:00Z", "--yes")
    assert (code, files.get()) == (1, wire)
    assert "use `set`" in err
    code, _, err = run("set", "orders", "2026-03-02T00:00:00Z", "--yes")
    assert code == 0
    assert "skipped, and never delivered" in err
    assert WatermarkState.from_wire(files.get()).low == datetime(2026, 3, 2, tzinfo=UTC)


def test_the_low_watermark_itself_changes_nothing(files, run):
    wire = files.put(state())
    assert run("rewind", "orders", "--to", "2026-03-01T12:00:00Z", "--yes")[0] == 0
    assert files.get() == wire


@pytest.mark.parametrize(
    ("low", "text", "position"),
    [
        (7, "5", 5),
        (7, "beginning", BEGINNING),
        ("m", "a", "a"),
        (datetime(2026, 3, 1), "2026-02-01T00:00:00", datetime(2026, 2, 1)),  # noqa: DTZ001
    ],
)
def test_a_position_has_the_type_of_the_watermark(files, run, low, text, position):
    files.put(state(low=low))
    assert run("rewind", "orders", "--to", text, "--yes")[0] == 0
    assert WatermarkState.from_wire(files.get()).low == position


@pytest.mark.parametrize(
    ("low", "text", "advice"),
    [
        (NOON, "yesterday", "UTC offset, such as"),
        (NOON, "2026-03-01T00:00:00", "UTC offset, such as"),
        (NOON, "5", "UTC offset, such as"),
        (7, "x", "type integer"),
        (datetime(2026, 3, 1), "2026-02-01T00:00:00Z", "without a UTC offset"),  # noqa: DTZ001
    ],
)
def test_what_is_no_position_is_refused_with_what_is_allowed(files, run, low, text, advice):
    wire = files.put(state(low=low))
    code, _, err = run("set", "orders", text, "--yes")
    assert (code, files.get()) == (1, wire)
    assert advice in err


def test_a_reset_leaves_a_mark_that_its_watcher_adopts(files, run):
    files.put(state(epoch=2))
    assert run("reset", "orders", "--yes")[0] == 0
    wire = files.get()
    assert is_reset(wire)
    assert (wire["epoch"], wire["revision"]) == (3, 4)
    code, _, err = run("reset", "orders", "--yes")
    assert (code, files.get()) == (0, wire)
    assert "already" in err
    assert run("rewind", "orders", "--to", "beginning", "--yes")[0] == 1
    assert json.loads(run("list", "-o", "json")[1])[0]["low_watermark"] == "(reset)"
    assert "reset" in run("show", "orders")[1]


def test_what_is_damaged_can_be_reset_and_nothing_else(files, run):
    wire = files.put({"version": 1, "revision": 5})
    code, _, err = run("set", "orders", "beginning", "--yes")
    assert (code, files.get()) == (1, wire)
    assert "damaged" in err
    assert run("reset", "orders", "--yes")[0] == 0
    assert is_reset(files.get())


# --- copy ---------------------------------------------------------------------------------------------------


def test_a_watermark_is_copied_to_the_new_name_of_its_asset(files, run):
    wire = files.put(state())
    code, _, err = run("copy", "orders", "--as", "orders_v2", "--yes")
    assert code == 0
    assert "1 watermarks were copied" in err
    assert files.get(KEY._replace(asset_name="orders_v2")) == wire
    assert files.get() == wire


@pytest.mark.parametrize(
    ("there", "copied"),
    [
        ({"revision": 2}, True),
        ({"revision": 3, "low": NOON + timedelta(hours=1)}, False),
        ({"revision": 4}, False),
        ({"revision": 1, "epoch": 2}, False),
    ],
)
def test_a_newer_watermark_is_never_overwritten(files, run, there, copied):
    new = KEY._replace(asset_name="orders_v2")
    wire, old = files.put(state()), files.put(state(**there), new)
    code, _, err = run("copy", "orders", "--as", "orders_v2", "--yes")
    assert files.get(new) == (wire if copied else old)
    assert code == (0 if copied else 1)
    assert ("over an older one" if copied else "a newer one is there") in err


def test_what_is_there_already_is_not_copied_again(files, run):
    files.put(state())
    files.put(state(), KEY._replace(asset_name="orders_v2"))
    code, _, err = run("copy", "orders", "--as", "orders_v2", "--yes")
    assert code == 0
    assert "is there already" in err


def test_what_is_damaged_keeps_no_other_from_being_copied(files, run):
    wire = files.put(state())
    files.put(state(), KEY._replace(namespace="gcs"))
    (damaged,) = (files.path / "gcs").rglob("*.json")
    damaged.write_text("{")
    code, _, err = run("copy", "orders", "--as", "orders_v2", "--yes")
    assert code == 1
    assert "1 watermarks were copied" in err
    assert "orders_v2/gcs" in err
    assert "does not hold JSON" in err
    assert files.get(KEY._replace(asset_name="orders_v2")) == wire


def test_a_dag_file_that_is_not_there_is_named(run, tmp_path):
    code, out, err = run("check", "orders", "--dag-file", str(tmp_path / "none.py"))
    assert (code, out) == (1, "")
    assert "none.py" in err


@pytest.mark.parametrize("argv", [("copy", "sales"), ("copy", "--as", "x"), ("copy",)])
def test_there_has_to_be_something_to_copy(files, run, argv):
    assert run(*argv, "--yes")[0] == 1
