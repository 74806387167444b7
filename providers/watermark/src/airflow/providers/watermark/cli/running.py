"""What all commands share: how they run, choose a watermark, ask and print."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TextIO

from airflow.providers.watermark.exceptions import StoreError, WatermarkError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store

__all__ = ["CommandError", "Store", "choose", "confirm", "load", "print_rows", "run_command", "say", "told"]

_STORES: Final = {
    "variable": "airflow.providers.watermark.stores.variable.VariableStore",
    "sql": "airflow.providers.watermark.stores.sql.SqlStore",
    "object_storage": "airflow.providers.watermark.stores.object_storage.ObjectStorageStore",
    "asset_state": "airflow.providers.watermark.stores.asset_state.AssetStateStore",
}
_PROMISE: Final = re.compile(
    r"[.;] (nothing is lost: )?it is tried again(, and nothing is lost)?\.?$", re.IGNORECASE
)

_output: ContextVar[TextIO | None] = ContextVar("_output")


class CommandError(WatermarkError):
    """What was asked for cannot be done; the text says why, and what to do."""


def run_command(command: Callable[[argparse.Namespace], Awaitable[None]], args: argparse.Namespace) -> None:
    """
    Run a command; what it cannot do is told in a line on the standard error, without a traceback.

    :raises SystemExit: With 1, after an error was told, or if nobody reads what is printed; with 130, after
        Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as it is on the standard error
    # Else the task SDK, through which hooks read connections, would not look into the metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    try:
        _require_text(args)
        with _rows_alone():
            asyncio.run(command(args))  # type: ignore[arg-type]
    except WatermarkError as error:
        say(f"error: {told(error)}")
        sys.exit(1)
    except RecursionError:
        say("error: what is stored is nested too deeply to be read or shown; repair it, or `reset` it")
        sys.exit(1)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def _drop_output() -> None:
    """Let nobody have what could not be printed: Python flushes once more at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _require_text(args: argparse.Namespace) -> None:
    """
    See to it that names can be stored at all; the name of a file may be of any bytes.

    :raises CommandError: One is no valid UTF-8.
    """
    for name, value in vars(args).items():
        if isinstance(value, str) and name != "dag_file":
            try:
                value.encode()
            except UnicodeEncodeError as error:
                msg = f"{name} {value!r} is no valid UTF-8, which no watermark has in its name"
                raise CommandError(msg) from error


@contextlib.contextmanager
def _rows_alone() -> Iterator[None]:
    """Keep the standard output for rows, which programs read: Airflow logs there, and Dag files print."""
    output = sys.stdout
    token = _output.set(output)
    with contextlib.redirect_stdout(sys.stderr):
        handlers = [
            each for each in logging.root.handlers if output and getattr(each, "stream", None) is output
        ]
        for handler in handlers:
            handler.setStream(sys.stderr)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for handler in handlers:
                handler.setStream(output)  # type: ignore[attr-defined]
            _output.reset(token)


class Store:
    """
    Opens a store for a command, and closes it behind it.

    :param name: A short name or a class path; ``None``: the configured one.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name

    async def __aenter__(self) -> BaseWatermarkStore:
        name = self._name
        if name is not None and "." not in name and name not in _STORES:
            msg = f"there is no store {name!r}; name {', '.join(_STORES)} or a class path"
            raise CommandError(msg)
        self._store = configured_store(_STORES.get(name or "", name))
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


async def load(store: BaseWatermarkStore, key: WatermarkKey) -> dict[str, Any] | None:
    """
    Read a watermark, which anybody may have written.

    :raises StoreError: It cannot be read.
    """
    try:
        return await store.load(key)
    except RecursionError as error:
        msg = (
            f"the watermark {'/'.join(key)} is nested too deeply to be read; repair or delete it where the "
            f"{type(store).__name__} keeps it"
        )
        raise StoreError(msg) from error


async def choose(store: BaseWatermarkStore, args: argparse.Namespace) -> tuple[WatermarkKey, dict[str, Any]]:
    """
    Find the one watermark that is meant.

    :return: Its key, and what is stored.
    :raises CommandError: There is none, or there are several.
    :raises StoreError: The store cannot tell.
    """
    if args.namespace is not None and args.key is not None:
        keys = [WatermarkKey(args.asset, args.namespace, args.key)]
    else:
        keys = sorted(
            key
            for key in await store.keys()
            if key.asset_name == args.asset
            and args.namespace in (None, key.namespace)
            and args.key in (None, key.key)
        )
    found = [(key, value) for key in keys if (value := await load(store, key)) is not None]
    if not found:
        msg = (
            f"no such watermark of the asset {args.asset!r} is stored; see `watermarks list`, and name the "
            "watcher's store with --store if it is not the configured one"
        )
        raise CommandError(msg)
    if len(found) > 1:
        names = "; ".join(f"--namespace {key.namespace} --key {key.key}" for key, _ in found)
        msg = f"the asset {args.asset!r} has {len(found)} watermarks, name one: {names}"
        raise CommandError(msg)
    return found[0]


def confirm(args: argparse.Namespace, question: str) -> bool:
    """
    Ask before something is changed.

    :return: Whether to go on; never with ``--dry-run``.
    :raises CommandError: There is nobody to ask.
    :raises KeyboardInterrupt: Ctrl-C was the answer.
    """
    if args.dry_run:
        say("Nothing was changed.")
        return False
    if args.yes:
        return True
    if sys.stdin is None or sys.stderr is None or not sys.stdin.isatty():
        msg = "there is nobody to ask; say --yes, or --dry-run to be told only"
        raise CommandError(msg)
    with contextlib.suppress(EOFError), _interruptible():
        if input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}:
            return True
    say("Nothing was changed.")
    return False


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end what waits here: asyncio would only cancel the task, which does not wait for it."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def told(error: Exception) -> str:
    """Tell an error of a store or a source without what a watcher does about it: here nobody tries again."""
    return _PROMISE.sub("", str(error))


def say(text: str) -> None:
    """Tell a person; what a program reads goes to the standard output."""
    if sys.stderr is not None:  # else it would go where the rows go
        print(_printable(text), file=sys.stderr)  # noqa: T201 - it is a command


def _printable(text: str) -> str:
    """Show line breaks and whatever else acts on a terminal: names and errors may hold anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_rows(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """
    Print rows for a person, or as JSON or YAML with their own types for a program.

    :raises CommandError: There is no place to print to.
    :raises BrokenPipeError: Nobody reads any more.
    """
    target = _output.get(sys.stdout)
    if target is None:
        msg = "the standard output is closed, so nothing can be shown"
        raise CommandError(msg)
    try:
        with contextlib.redirect_stdout(target):
            if output == "json":
                # What is stored may hold a NaN, which JSON has not: it becomes a text.
                strict = json.loads(json.dumps(rows), parse_constant=str)
                print(json.dumps(strict, indent=2))  # noqa: T201
            elif output == "yaml":
                import yaml  # type: ignore[import-untyped]

                is_utf = (target.encoding or "").lower().startswith("utf")
                print(yaml.safe_dump(list(map(dict, rows)), sort_keys=False, allow_unicode=is_utf), end="")  # noqa: T201
            else:
                _print_table(rows, output)
            target.flush()  # so that a closed pipe or a full disk is met here
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.redirect_stdout(target):
            _drop_output()
        msg = f"the standard output cannot be written ({error.strerror})"
        raise CommandError(msg) from error


def _print_table(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    from rich.markup import escape

    from airflow.cli.simple_table import AirflowConsole

    # Only the table takes "[red]" for a colour.
    shown = escape if output == "table" else str
    texts = [
        {name: "" if value is None else shown(_printable(str(value))) for name, value in row.items()}
        for row in rows
    ]
    AirflowConsole().print_as(data=texts, output=output)
