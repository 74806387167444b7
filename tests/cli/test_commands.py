"""The command line of an operator, on a store of files; what it prints, changes and refuses."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import pty
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import yaml

from airflow.providers.watermark import asset_watermark
from airflow.providers.watermark.cli import main, moving, running
from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.watermark import Pending, WatermarkState, is_reset, reset_wire
from devtools.s3_stub import StubS3

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
        "bytes": len(json.dumps(wire, separators=(",", ":"))),
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


@pytest.mark.parametrize("output", ["table", "plain"])
def test_what_would_act_on_a_terminal_is_shown_and_breaks_no_line(files, run, output):
    odd = "a\nb\x1b[2J\0"
    files.put(state(), KEY._replace(asset_name=odd))
    for command in (("list",), ("show", odd)):
        _, out, err = run(*command, "-o", output)
        assert r"a\nb\x1b[2J\x00" in out
        assert not {"\x1b", "\0"} & {*out, *err}
    code, _, err = run("set", odd, "2027-01-01T00:00:00Z\x1b[31m")
    assert code == 1
    assert "\x1b" not in err
    assert json.loads(run("list", "-o", "json")[1])[0]["asset"] == odd


def test_a_low_watermark_in_the_future_is_told_as_such(files, run):
    files.put(state(low=datetime.now(UTC) + timedelta(minutes=90, seconds=2)))
    for command in (("list",), ("show", "orders")):
        assert "1:30:0" in (out := run(*command)[1])
        assert "ahead" in out


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


def test_a_short_name_that_no_store_has_is_told_with_those_that_there_are(run):
    for argv in (("list", "--store", "SQL"), ("copy", "--from", "", "--to", "sql")):
        code, out, err = run(*argv)
        assert (code, out) == (1, "")
        assert "variable, sql, object_storage, asset_state or a class path" in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["variable", "sql", "object_storage", "asset_state"])
def test_every_store_has_a_short_name(files, run, monkeypatch, name):
    """Without its settings, or its database, a store fails: but it is found."""
    monkeypatch.delenv("AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH")
    code, _, err = run("list", "--store", name)
    assert code in {0, 1}
    assert "there is no store" not in err
    assert "cannot be imported" not in err


@pytest.mark.parametrize(
    "promise",
    [
        "; it is tried again",
        "; it is tried again, and nothing is lost",
        ". Nothing is lost: it is tried again",
    ],
)
def test_nobody_is_promised_that_it_is_tried_again(files, run, monkeypatch, promise):
    """What a watcher says when it waits is no truth of a command that ends."""

    async def fail(*_):
        raise StoreError(f"the store is down{promise}")

    files.put(state())
    monkeypatch.setattr(ObjectStorageStore, "load", fail)
    for argv in (("show", "orders"), ("list", "-o", "json"), ("copy", "orders", "--as", "x", "--yes")):
        code, out, err = run(*argv)
        assert "the store is down" in out + err
        assert "tried again" not in out + err
        assert "lost" not in out + err
        assert code == (0 if argv[0] == "list" else 1)


def test_each_promise_in_the_package_is_one_that_a_command_leaves_out():
    command_line = Path(running.__file__).parent
    modules = [path for path in command_line.parent.rglob("*.py") if path.parent != command_line]
    trees = [ast.parse(path.read_text()) for path in modules]
    texts = {text for tree in trees for text in texts_in(tree) if "tried again" in text}
    assert len(texts) > 8
    for text in texts:
        assert "tried again" not in running.told(StoreError(text))


def texts_in(tree):
    """Find the texts of a module but for its docstrings; what is formatted into one stands as {}."""
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    parts = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings | parts
        ):
            yield node.value


@pytest.mark.parametrize("depth", [60, 400])
def test_what_is_nested_too_deeply_hides_no_other_and_is_an_error_in_a_line(files, run, depth):
    files.put(state(), KEY._replace(asset_name="sales"))
    files.put(state())
    (stored,) = (path for path in files.path.rglob("*.json") if "sales" in str(path))
    nested = '"source":{"a":' + depth * "[" + depth * "]" + ',"watcher"'
    stored.write_text(stored.read_text().replace('"source":{"watcher"', nested))
    for output in ("json", "yaml", "table"):
        code, out, _ = run("list", "-o", output)
        assert code == 0
        assert "orders" in out
        assert "2026-03-01T12:00:00Z" in out
    rows = {row["asset"]: row for row in json.loads(run("list", "-o", "json")[1])}
    assert "nested too deeply" in rows["sales"]["last_error"]
    for argv in (("show", "sales", "-o", "yaml"), ("show", "sales"), ("delete", "sales", "--yes")):
        code, _, err = run(*argv)
        assert code == 0 or "nested too deeply" in err


def test_what_a_store_cannot_read_so_deep_it_is_hides_no_other(files, run, monkeypatch):
    load = ObjectStorageStore.load

    async def deep(store, key):
        return json.loads(100_000 * "[") if key.asset_name == "sales" else await load(store, key)

    monkeypatch.setattr(ObjectStorageStore, "load", deep)
    files.put(state())
    (files.path / "s3" / "sales").mkdir()
    (orders,) = files.path.rglob("*.json")
    (files.path / "s3" / "sales" / orders.name).write_text("")
    code, out, _ = run("list", "-o", "json")
    assert code == 0
    rows = {row["asset"]: row for row in json.loads(out)}
    assert rows["orders"]["last_error"] is None
    assert "sales/s3/q83vEjRWeJA is nested too deeply" in rows["sales"]["last_error"]
    for argv in (("show", "sales"), ("delete", "sales", "--yes"), ("copy", "sales", "--as", "x", "--yes")):
        code, out, err = run(*argv)
        assert (code, out) == (1, "")
        assert "sales/s3/q83vEjRWeJA is nested too deeply to be read; repair" in err or "x/s3" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("show", "\udcff"),
        ("reset", "orders", "--namespace", "\udcff", "--key", "k", "--yes"),
        ("delete", "orders", "--namespace", "s3", "--key", "\udcff", "--yes"),
        ("set", "orders", "\udcff", "--yes"),
        ("copy", "orders", "--as", "\udcff", "--yes"),
        ("list", "--store", "\udcff"),
    ],
)
def test_a_name_that_is_no_text_is_refused(files, run, argv):
    wire = files.put(state())
    code, out, err = run(*argv)
    assert (code, out, files.get()) == (1, "", wire)
    assert "no valid UTF-8" in err


def test_what_is_no_json_is_told_as_damaged_and_not_printed_as_json(files, run):
    files.put(state())
    (stored,) = files.path.rglob("*.json")
    stored.write_text(stored.read_text().replace('"bucket_name":"lake"', '"bucket_name":NaN'))

    def rows(*argv):
        def refuse(text):
            raise ValueError(text)

        code, out, _ = run(*argv, "-o", "json")
        assert code == 0
        return json.loads(out, parse_constant=refuse)

    (listed,) = rows("list")
    assert "the stored watermark is damaged (ValueError: Out of range float" in listed["last_error"]
    (shown,) = rows("show", "orders")
    assert shown["value"]["source"]["bucket_name"] == "NaN"


def shell(line, **environment):
    """Run a command in a process of its own; ``line`` says what becomes of its streams."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$PYTHON" -m airflow.providers.watermark {line}'],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("reset orders <&-", "error: there is nobody to ask; say --yes, or --dry-run to be told only"),
        ("list -o json >&-", "error: the standard output is closed, so nothing can be shown"),
        *(
            (
                f"list -o {output} >/dev/full",
                "error: the standard output cannot be written (No space left on device)",
            )
            for output in ("json", "table")
        ),
    ],
)
def test_a_stream_that_there_is_not_is_an_error_in_a_line(files, line, told):
    wire = files.put(state())
    code, out, err = shell(line)
    assert (code, out, files.get()) == (1, "", wire)
    assert err.strip().splitlines()[-1] == told


def test_without_a_standard_error_nothing_is_told_among_the_rows(files):
    files.put(state())
    code, out, _ = shell("list -o json 2>&-")
    assert (code, len(json.loads(out))) == (0, 1)
    assert shell("reset orders 2>&-")[:2] == (1, "")


@pytest.mark.parametrize("output", ["table", "yaml"])
def test_a_name_that_a_stream_cannot_carry_is_no_error(files, output):
    files.put(state(), KEY._replace(asset_name="übër"))
    code, out, _ = shell(f"list -o {output}", PYTHONIOENCODING="ascii")
    assert code == 0
    if output == "yaml":
        assert yaml.safe_load(out)[0]["asset"] == "übër"
    else:
        assert r"\xfcb\xebr" in out


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
        ("delete", "orders"),
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


def test_ctrl_c_at_the_question_ends_the_command_and_nothing_is_changed(files):
    wire = files.put(state())
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow.providers.watermark", "rewind", "orders", "--to", "beginning"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        preexec_fn=lambda: os.login_tty(inner),  # noqa: PLW1509 - so that Ctrl-C reaches it
    )
    os.close(inner)
    try:
        assert "[y/N]" in read_until(terminal, "[y/N]")
        # Faster than a person: a signal between the prompt and the read that follows would end no read.
        wait_until_asleep(process.pid)
        os.write(terminal, b"\x03")
        told = read_until(terminal, "interrupted")  # and nobody answers any more
        assert "interrupted" in told
        assert "Traceback" not in told
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert files.get() == wire


def wait_until_asleep(pid, seconds=60):
    end, asleep = time.monotonic() + seconds, 0
    while asleep < 5:
        assert time.monotonic() < end, "it never waits for an answer"
        asleep = asleep + 1 if psutil.Process(pid).status() == psutil.STATUS_SLEEPING else 0
        time.sleep(0.02)


def read_until(terminal, text, seconds=60):
    read, end = "", time.monotonic() + seconds
    while text not in read and (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                read += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # all who wrote to it are gone
                break
    return read


def test_a_rewind_ahead_is_refused_and_set_says_what_is_skipped(files, run):
    wire = files.put(state())
    code, _, err = run("rewind", "orders", "--to", "2026-03-02T00:00:00Z", "--yes")
    assert (code, files.get()) == (1, wire)
    assert "use `set`" in err
    code, _, err = run("set", "orders", "2026-03-02T00:00:00Z", "--yes")
    assert code == 0
    assert "skipped, and never delivered" in err
    assert WatermarkState.from_wire(files.get()).low == datetime(2026, 3, 2, tzinfo=UTC)


def test_set_says_what_comes_again_though_it_skips(files, run):
    seen = {"AAAAAAAAAA" + each: NOON + timedelta(minutes=n) for n, each in enumerate("EIMQ", start=1)}
    files.put(state(seen=seen, high=NOON + timedelta(seconds=30), cursor="orders/3"))
    code, _, err = run("set", "orders", "2026-03-01T12:02:00Z", "--dry-run")
    assert code == 0
    assert "Delivered after 2026-03-01T12:02:00Z already, and again in epoch 2: 2 changes." in err
    code, _, err = run("set", "orders", "2026-03-01T12:00:10Z", "--dry-run")
    assert "again in epoch 2: 4 changes, and what the sweep under way, up to 2026-03-01T12:00:30Z" in err
    assert "again in" not in run("set", "orders", "2026-03-01T12:04:00Z", "--dry-run")[2]


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
        (
            (7, "m"),
            json.dumps([{"type": "integer", "value": "7"}, {"type": "string", "value": "a"}]),
            (7, "a"),
        ),
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
        ((7, "m"), "7, m", "a list as `list` shows it"),
        ((7, "m"), "[" * 100_000, "a list as `list` shows it"),
    ],
)
def test_what_is_no_position_is_refused_with_what_is_allowed(files, run, low, text, advice):
    wire = files.put(state(low=low))
    code, _, err = run("set", "orders", text, "--yes")
    assert (code, files.get()) == (1, wire)
    assert advice in err


SQL = {"watcher": "sql", "conn_id": "shop", "table": "sales"}


@pytest.mark.parametrize(
    ("source", "text", "position"),
    [
        (SQL, "3", 3),
        (SQL, "20260301", 20260301),
        (SQL, "3.50", Decimal("3.50")),
        (SQL, "2026-03-01", date(2026, 3, 1)),
        (SQL, "2026-03-01T12:00:00Z", NOON),
        (SQL, "2026-03-01T12:00:00", datetime(2026, 3, 1, 12)),  # noqa: DTZ001
        (SQL, str(UUID(int=7)), UUID(int=7)),
        (SOURCE, "2026-03-01T12:00:00Z", NOON),
        ({"watcher": "gcs"}, "2026-03-01T12:00:00Z", NOON),
    ],
)
def test_while_no_position_is_known_a_text_is_read_as_the_watcher_may_have_it(
    files, run, source, text, position
):
    files.put(state(low=BEGINNING, source=source))
    code, _, err = run("set", "orders", text, "--yes")
    assert code == 0
    assert f"{text} is taken for a position of the type" in err
    found = WatermarkState.from_wire(files.get()).low
    assert (type(found), found) == (type(position), position)


@pytest.mark.parametrize(
    ("source", "text", "advice"),
    [
        (SOURCE, "3", "a time with a UTC offset"),
        ({"watcher": "gcs"}, "2026-03-01", "a time with a UTC offset"),
        (SQL, "abc", "a number, a date, a time or a uuid"),
        ({"watcher": "mine"}, "2026-03-01T12:00:00Z", "AssetWatermark.set_value"),
        ({}, "3", "AssetWatermark.set_value"),
    ],
)
def test_while_no_position_is_known_nothing_is_guessed(files, run, source, text, advice):
    wire = files.put(state(low=BEGINNING, source=source))
    code, _, err = run("set", "orders", text, "--yes")
    assert (code, files.get()) == (1, wire)
    assert advice in err


def test_what_may_be_late_tells_the_type_too(files, run):
    files.put(state(low=BEGINNING, source=SQL, pending={"AAAAAAAAAAI": Pending(Decimal(7))}))
    assert run("set", "orders", "3", "--yes")[0] == 0
    assert type(WatermarkState.from_wire(files.get()).low) is Decimal


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


@pytest.mark.parametrize(
    "command",
    [
        ("rewind", "orders", "--to", "beginning"),
        ("reset", "orders"),
        ("set", "orders", "2027-01-01T00:00:00Z"),
    ],
)
@pytest.mark.parametrize("saves", [1, 3])
def test_a_watcher_that_saves_while_somebody_is_asked_is_no_hindrance(
    files, run, monkeypatch, command, saves
):
    files.put(state())
    answer_after(
        monkeypatch,
        lambda: [
            files.put(state(low=NOON + timedelta(hours=n), revision=3 + n)) for n in range(1, saves + 1)
        ],
    )
    code, _, err = run(*command)
    assert code == 0, err
    wire = files.get()
    assert wire["epoch"] == 2
    assert wire["revision"] == 4 + saves


def test_a_watcher_that_comes_past_a_position_ahead_meanwhile_is_not_set_back(files, run, monkeypatch):
    files.put(state())
    meanwhile = state(low=NOON + timedelta(hours=2), revision=4)
    answer_after(monkeypatch, lambda: files.put(meanwhile))
    code, _, err = run("set", "orders", "2026-03-01T13:00:00Z")
    assert (code, files.get()) == (1, meanwhile.to_wire())
    assert "has come to 2026-03-01T14:00:00Z meanwhile" in err


@pytest.mark.parametrize("other", [state(epoch=2, revision=4).to_wire(), reset_wire(state().to_wire())])
def test_what_another_operator_has_done_meanwhile_stays(files, run, monkeypatch, other):
    files.put(state())
    answer_after(monkeypatch, lambda: files.put(other))
    code, _, err = run("rewind", "orders", "--to", "beginning")
    assert (code, files.get()) == (1, other)
    assert "changed by another writer" in err


class Gap(ObjectStorageStore):
    """Without compare-and-set: so often, a watcher that has read before a save writes after it."""

    def __init__(self, overwrites):
        super().__init__()
        self.compare_and_set = False
        self.overwrites = overwrites

    async def save(self, key, value, *, expected):
        await super().save(key, value, expected=expected)
        if self.overwrites:
            self.overwrites -= 1
            theirs = WatermarkState.from_wire(expected)
            later = replace(theirs, low=theirs.low + timedelta(hours=1), revision=theirs.revision + 1)
            await super().save(key, later.to_wire(), expected=value)


@pytest.mark.parametrize(
    "command",
    [
        ("rewind", "orders", "--to", "beginning"),
        ("reset", "orders"),
        ("set", "orders", "2027-01-01T00:00:00Z"),
    ],
)
@pytest.mark.parametrize("overwrites", [0, 2, 1000])
def test_what_a_watcher_overwrites_is_done_again_or_told(files, run, monkeypatch, command, overwrites):
    lasts = overwrites < 1000
    files.put(state())
    store = Gap(overwrites)
    monkeypatch.setattr(running, "configured_store", lambda _: store)
    monkeypatch.setattr(asset_watermark, "SETTLE_SECONDS", 0.01)
    code, _, err = run(*command, "--yes")
    assert code == (0 if lasts else 1)
    assert ("Done" in err) is lasts
    assert files.get()["epoch"] == (2 if lasts else 1)
    assert lasts or "was overwritten by another writer" in err


def answer_after(monkeypatch, action):
    """Let something happen between the question and the answer."""

    def answer(_):
        # The command's own loop runs in this thread.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(action).result()
        return "y"

    monkeypatch.setattr(running.sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("builtins.input", answer)


# --- delete -------------------------------------------------------------------------------------------------


def test_one_watermark_of_an_asset_that_stays_is_deleted(files, run):
    wire, other = files.put(state()), KEY._replace(key="another_prefix")
    files.put(state(), other)
    assert run("delete", "orders", "--yes")[0] == 1
    code, _, err = run("delete", "orders", "--key", "another_prefix", "--yes")
    assert code == 0
    assert "orders/s3/another_prefix" in err
    assert (files.get(), files.get(other)) == (wire, None)


def test_what_a_watcher_is_at_work_on_is_not_deleted(files, run, monkeypatch):
    files.put(state())
    meanwhile = state(revision=4)
    answer_after(monkeypatch, lambda: files.put(meanwhile))
    code, _, err = run("delete", "orders")
    assert (code, files.get()) == (1, meanwhile.to_wire())
    assert "changed by another writer" in err


def test_the_low_watermark_that_is_discarded_is_told(files, run, monkeypatch):
    monkeypatch.setattr(moving, "_assets_in_use", frozenset)
    files.put(state())
    for command in ("reset orders", "delete orders", "prune"):
        code, _, err = run(*command.split(), "--dry-run")
        assert code == 0
        assert "low watermark is 2026-03-01T12:00:00Z" in err
    files.put({"version": 1, "revision": 5})
    for command in ("reset orders", "delete orders", "prune"):
        assert "low watermark is (damaged)" in run(*command.split(), "--dry-run")[2]


def test_what_cannot_be_read_keeps_no_other_from_being_pruned(files, run, monkeypatch):
    monkeypatch.setattr(moving, "_assets_in_use", lambda: frozenset({"used"}))
    wire = files.put(state(), KEY._replace(asset_name="used"))
    files.put(state())
    files.put(state(), KEY._replace(namespace="gcs"))
    (damaged,) = (files.path / "gcs").rglob("*.json")
    damaged.write_text("{")
    code, _, err = run("prune", "--yes")
    assert code == 1
    assert "1 watermarks were deleted" in err
    assert "1 watermarks were not deleted" in err
    assert (files.get(), files.get(KEY._replace(asset_name="used"))) == (None, wire)
    assert damaged.read_text() == "{"


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


@pytest.mark.parametrize(
    ("there", "copied"),
    [
        ({"low": NOON + timedelta(days=60)}, False),
        ({"low": NOON - timedelta(days=60)}, True),
        ({"low": NOON}, True),
        ({"low": BEGINNING}, True),
        ({"low": NOON + timedelta(days=60), "epoch": 1}, True),
        ({"low": 7}, True),
    ],
)
def test_a_watermark_that_is_further_ahead_is_not_overwritten_whatever_the_revisions(
    files, run, there, copied
):
    """Two stores count their revisions each by itself."""
    new = KEY._replace(asset_name="orders_v2")
    wire = files.put(state(epoch=2, revision=50_000))
    old = files.put(state(**{"epoch": 2, "revision": 40, **there}), new)
    code, _, err = run("copy", "orders", "--as", "orders_v2", "--yes")
    assert files.get(new) == (wire if copied else old)
    assert code == (0 if copied else 1)
    assert "that of the copy 2026-03-01T12:00:00Z" in err
    assert ("further ahead" in err) is not copied


@pytest.mark.parametrize("there", [{"version": 1, "revision": 2}, reset_wire({"epoch": 0, "revision": 1})])
def test_over_what_has_no_low_watermark_is_copied_as_ever(files, run, there):
    new = KEY._replace(asset_name="orders_v2")
    wire = files.put(state())
    files.put(there, new)
    assert run("copy", "orders", "--as", "orders_v2", "--yes")[0] == 0
    assert files.get(new) == wire


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


# --- check --------------------------------------------------------------------------------------------------

DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

trigger = S3PrefixTrigger(bucket_name="lake", watermark_key="k")
with DAG("load", schedule=watch("orders", trigger, watcher_name="w")):
    pass
"""


@pytest.fixture
def dag_file(tmp_path, monkeypatch):
    """A Dag file; its server answers."""
    file = tmp_path / "load.py"
    file.write_text(DAG)
    with StubS3() as stub:
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", stub.airflow_connection_json())
        yield str(file)


def test_a_watermark_that_its_watcher_refuses_is_refused_by_a_check(files, run, dag_file):
    assert run("check", "orders", "-f", dag_file)[0] == 0
    files.put(state(), KEY._replace(key="k"))
    code, out, err = run("check", "orders", "-f", dag_file)
    assert (code, out) == (1, "")
    assert "belongs to another source" in err


def test_a_watcher_that_there_is_not_is_told_with_those_that_there_are(files, run, dag_file):
    assert run("check", "orders", "-f", dag_file, "--watcher", "w")[0] == 0
    code, _, err = run("check", "orders", "-f", dag_file, "--watcher", "x")
    assert code == 1
    assert "has 1 watchers, of which 0 are named 'x'; name one with --watcher: w" in err


def test_a_server_that_is_stopped_is_an_error_in_a_line_and_no_promise(files, run, dag_file, monkeypatch):
    with StubS3() as stub:
        gone = stub.airflow_connection_json()
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", gone)
    code, out, err = run("check", "orders", "-f", dag_file)
    assert (code, out) == (1, "")
    assert err.strip().splitlines()[-1].endswith("failed (EndpointConnectionError)")


def test_a_named_file_is_a_dag_file_whatever_it_looks_like(files, run, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("a mistake(")
    code, _, err = run("check", "orders", "-f", str(file))
    assert code == 1
    assert "broken.py cannot be imported: SyntaxError" in err


def test_a_dag_file_that_is_not_there_is_named(run, tmp_path):
    code, out, err = run("check", "orders", "--dag-file", str(tmp_path / "none.py"))
    assert (code, out) == (1, "")
    assert "none.py" in err


@pytest.mark.parametrize("argv", [("--to", "object_storage"), ("orders",), ("orders", "--as", "orders"), ()])
def test_a_store_is_not_copied_to_itself(files, run, argv):
    """The configured store may have been changed already: then what is there already is no copy."""
    files.put(state())
    code, _, err = run("copy", *argv, "--yes")
    assert code == 1
    assert "both are the ObjectStorageStore" in err


@pytest.mark.parametrize(
    "argv", [("copy", "sales", "--as", "x"), ("copy", "--as", "x"), ("copy", "orders", "--as", "")]
)
def test_there_has_to_be_something_to_copy(files, run, argv):
    assert run(*argv, "--yes")[0] == 1
