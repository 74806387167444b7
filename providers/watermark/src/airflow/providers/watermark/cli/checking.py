"""``check``: try a watcher without delivering anything."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.cli.looking import text_of
from airflow.providers.watermark.cli.running import CommandError, print_rows, say
from airflow.providers.watermark.exceptions import InvalidArgumentError
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.stores import configured_store
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.watermark import Sweep, WatermarkState, is_reset

__all__ = ["check"]

_MAX_COUNTED: Final = 100_000


async def check(args: argparse.Namespace) -> None:
    """Try a watcher of a Dag."""
    trigger = _find(args)
    trigger.serialize()  # raises what is wrong with its arguments
    store = configured_store(trigger.store)  # not bound to the trigger, which does not run in a triggerer
    try:
        wire = await store.load(trigger.key)
        await trigger.open()
        try:
            bounds = await trigger.get_high_watermark()
            if wire is None or is_reset(wire):
                low = BEGINNING if trigger.start_from == "beginning" else await trigger.first_position(bounds)
                state = WatermarkState(source=trigger.fingerprint, low=low)
                stored = f"none yet; it begins by start_from={trigger.start_from!r}"
            else:
                state = WatermarkState.from_wire(wire)
                state.require_source(trigger.fingerprint, trigger.key)
                stored = text_of(state.low)
            count = await _count(trigger, state, bounds)
            facts = dict(trigger.facts)  # which a closed trigger may not know any more
        finally:
            await trigger.close()
    finally:
        await store.close()
    waiting = str(count) if count < _MAX_COUNTED else f"{_MAX_COUNTED} or more"
    row: dict[str, Any] = {
        "asset": trigger.asset_name,
        "source": trigger.source,
        "watermark": "/".join(trigger.key),
        "low_watermark": stored,
        "settled_bound": text_of(bounds.bound),
        "waiting": waiting,
        **facts,
    }
    if args.output in {"table", "plain"}:
        print_rows([{"": name, "value": value} for name, value in row.items()], args.output)
    else:
        print_rows([row], args.output)
    say("The watcher can connect and read.")


async def _count(trigger: BaseWatermarkTrigger, state: WatermarkState, bounds: HighWatermark) -> int:
    """Count what the next sweep would deliver, up to a limit."""
    count = 0
    if trigger.delivers_windows:
        low, high = state.low, state.high
        while count < _MAX_COUNTED and (window := await trigger.find_window(low, bounds.final, high)):
            count, low, high = count + window.count, window.high, None
        return count
    sweep = Sweep(state, bounds, trigger.max_seen if trigger.eager else 0)
    async with aclosing(trigger.read_changes(sweep)) as pages:
        async for page in pages:
            count += sum(1 for change in page.changes if sweep.admits(change))
            if count >= _MAX_COUNTED:
                break
    return count


def _find(args: argparse.Namespace) -> BaseWatermarkTrigger:
    """
    Find the trigger in the Dags.

    :raises CommandError: There is none, or there are several.
    """
    ours: dict[tuple[str, Any], BaseWatermarkTrigger] = {}
    for asset in _assets(args.dag_file):
        for watcher in asset.watchers:
            if asset.name == args.asset and isinstance(trigger := watcher.trigger, BaseWatermarkTrigger):
                ours[watcher.name, trigger.key] = trigger
    if not ours:
        where = "name its file with --dag-file" if args.dag_file is None else f"look into {args.dag_file}"
        msg = f"no Dag has an asset {args.asset!r} with one of our watchers; {where}"
        raise CommandError(msg)
    found = [trigger for (name, _), trigger in ours.items() if args.watcher in (None, name)]
    if len(found) != 1:
        names = ", ".join(sorted({name for name, _ in ours}))
        meant = "" if args.watcher is None else f", of which {len(found)} are named {args.watcher!r}"
        msg = f"the asset {args.asset!r} has {len(ours)} watchers{meant}; name one with --watcher: {names}"
        raise CommandError(msg)
    return found[0]


def _assets(dag_file: str | None) -> Iterator[Any]:
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # below Airflow 3.2
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    if dag_file is not None and not Path(dag_file).exists():
        msg = f"there is no Dag file or folder {dag_file!r}"
        raise CommandError(msg)
    # Of a folder, as Airflow does, only files that look like Dag files; one that is named is one.
    is_file = dag_file is not None and Path(dag_file).is_file()
    load = partial(DagBag, dag_folder=dag_file)
    with _quiet():
        bag = load(safe_mode=False) if is_file else load()
    for path, text in bag.import_errors.items():
        say(f"warning: {path} cannot be imported: {str(text).strip().splitlines()[-1]}")
    if bag.import_errors and not bag.dags:
        msg = "no Dag could be imported; mend what is told above"
        raise InvalidArgumentError(msg)
    for dag in bag.dags.values():
        yield from _within(dag.timetable.asset_condition)


def _within(condition: Any) -> Iterator[Any]:
    """Find the assets that a schedule is made of: ``a & (b | c)``."""
    if hasattr(condition, "watchers"):
        yield condition
    for part in getattr(condition, "objects", ()):
        yield from _within(part)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what is logged and printed while Dags are imported, with a traceback of each that cannot be."""
    hidden, disabled = io.StringIO(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(hidden), contextlib.redirect_stderr(hidden):
            yield
    finally:
        logging.disable(disabled)
