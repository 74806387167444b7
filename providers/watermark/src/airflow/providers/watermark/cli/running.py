"""What all commands share: how they run, choose a watermark, ask and print."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TextIO

from airflow.providers.watermark.exceptions import WatermarkError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store

__all__ = ["CommandError", "Store", "choose", "confirm", "print_rows", "run_command", "say", "told"]

_STORES: Final = {
    "variable": "airflow.providers.watermark.stores.variable.VariableStore",
    "sql": "airflow.providers.watermark.stores.sql.SqlStore",
    "object_storage": "airflow.providers.watermark.stores.object_storage.ObjectStorageStore",
    "asset_state": "airflow.providers.watermark.stores.asset_state.AssetStateStore",
}
_PROMISE: Final = re.compile(
    r"[.;] (nothing is lost: )?it is tried again(, and nothing is lost)?\.?$", re.IGNORECASE
)

_output: ContextVar[TextIO] = ContextVar("_output")


class CommandError(WatermarkError):
    """What was asked for cannot be done; the text says why, and what to do."""


def run_command(command: Callable[[argparse.Namespace], Awaitable[None]], args: argparse.Namespace) -> None:
    """
    Run a command; what it cannot do is told in a line on the standard error, without a traceback.

    :raises SystemExit: With 1, after an error was told, or if nobody reads what is printed; with 130, after
        Ctrl-C.
    """
    # Else the task SDK, through which hooks read connections, would not look into the metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    try:
        with _rows_alone():
            asyncio.run(command(args))  # type: ignore[arg-type]
    except WatermarkError as error:
        say(f"error: {told(error)}")
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


@contextlib.contextmanager
def _rows_alone() -> Iterator[None]:
    """Keep the standard output for rows, which programs read: Airflow logs there, and Dag files print."""
    output = sys.stdout
    token = _output.set(output)
    with contextlib.redirect_stdout(sys.stderr):
        handlers = [each for each in logging.root.handlers if getattr(each, "stream", None) is output]
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
    found = [(key, value) for key in keys if (value := await store.load(key)) is not None]
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
    """
    if args.dry_run:
        say("Nothing was changed.")
        return False
    if args.yes:
        return True
    if not sys.stdin.isatty():
        msg = "there is nobody to ask; say --yes, or --dry-run to be told only"
        raise CommandError(msg)
    with contextlib.suppress(EOFError):
        if input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}:
            return True
    say("Nothing was changed.")
    return False


def told(error: Exception) -> str:
    """Tell an error of a store or a source without what a watcher does about it: here nobody tries again."""
    return _PROMISE.sub("", str(error))


def say(text: str) -> None:
    """Tell a person; what a program reads goes to the standard output."""
    print(_printable(text), file=sys.stderr)  # noqa: T201 - it is a command


def _printable(text: str) -> str:
    """Show line breaks and whatever else acts on a terminal: names and errors may hold anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_rows(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print rows for a person, or as JSON or YAML with their own types for a program."""
    with contextlib.redirect_stdout(_output.get(sys.stdout)):
        if output == "json":
            print(json.dumps(rows, indent=2))  # noqa: T201
        elif output == "yaml":
            import yaml  # type: ignore[import-untyped]

            print(yaml.safe_dump(list(map(dict, rows)), sort_keys=False, allow_unicode=True), end="")  # noqa: T201
        else:
            _print_table(rows, output)
        sys.stdout.flush()  # so that a closed pipe is met here


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
