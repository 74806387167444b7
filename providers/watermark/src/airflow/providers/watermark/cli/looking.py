"""``list`` and ``show``."""

from __future__ import annotations

import argparse
import builtins
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.providers.watermark.cli.running import Store, choose, load, print_rows, told
from airflow.providers.watermark.exceptions import StateError, StoreError
from airflow.providers.watermark.position import BEGINNING, Position, decode_position, encode_position
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.triggers.health import age_of
from airflow.providers.watermark.watermark import WatermarkState, is_reset

__all__ = ["list", "low_of", "show", "text_of"]

_MAX_DEPTH: Final = 50


async def list(args: argparse.Namespace) -> None:  # noqa: A001 - a command's function has its name
    """List the watermarks."""
    async with Store(args.store) as store:
        rows = [await _row(store, key) for key in sorted(await store.keys())]
    if args.output in {"table", "plain"}:
        for row in rows:
            # The watcher's name is in a column of its own.
            facts = {name: value for name, value in (row["source"] or {}).items() if name != "watcher"}
            row["source"] = " ".join(f"{name}={value}" for name, value in facts.items())
            row["age"] = _age_text(row["age"])
    print_rows(rows, args.output)


async def _row(store: BaseWatermarkStore, key: WatermarkKey) -> dict[str, Any]:
    row: dict[str, Any] = {
        "asset": key.asset_name,
        "watcher": key.namespace,
        "key": key.key,
        "source": None,
        "low_watermark": None,
        "age": None,
        "bytes": None,
        "last_poll": None,
        "last_error": None,
    }
    try:
        wire = await load(store, key)
        if wire is None:
            return {**row, "last_error": "it was deleted just now"}
        row["bytes"] = _size(wire)
        if is_reset(wire):
            return {**row, "low_watermark": "(reset)"}
        state = WatermarkState.from_wire(wire)
        if _is_deep(state.source):
            return {**row, "last_error": "its source is nested too deeply to be shown; reset it"}
    except (StateError, StoreError) as error:
        return {**row, "last_error": told(error)}
    status = state.status or {}
    return {
        **row,
        "source": {name: value for name, value in state.source.items() if value not in (None, "", [])},
        "low_watermark": text_of(state.low),
        "age": age_of(state.low),
        "last_poll": status.get("polled"),
        "last_error": status.get("error"),
    }


async def show(args: argparse.Namespace) -> None:
    """Show a watermark."""
    async with Store(args.store) as store:
        key, wire = await choose(store, args)
    if args.output in {"json", "yaml"}:
        print_rows([{**key._asdict(), "value": wire}], args.output)
        return
    print_rows([{"": name, "value": value} for name, value in _facts(key, wire).items()], args.output)


def _facts(key: WatermarkKey, wire: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "asset": key.asset_name,
        "namespace": key.namespace,
        "key": key.key,
        "bytes": _size(wire),
    }
    if is_reset(wire):
        return {**facts, "state": "reset; its watcher starts anew", "epoch": wire["epoch"]}
    try:
        state = WatermarkState.from_wire(wire)
    except StateError as error:
        return {**facts, "state": told(error)}
    sweep = "none" if state.high is None else f"up to {text_of(state.high)}, read up to {state.cursor!r}"
    return {
        **facts,
        **{f"source {name}": value for name, value in state.source.items()},
        "low watermark": text_of(state.low),
        "age": _age_text(age_of(state.low)),
        "sweep under way": sweep,
        "delivered after the low watermark": len(state.seen),
        "uploads watched for": len(state.pending),
        "epoch": state.epoch,
        "revision": state.revision,
        **{f"status {name}": text for name, text in (state.status or {}).items()},
    }


def _size(wire: Mapping[str, Any]) -> int | None:
    """Count the bytes of a watermark as stores write it, be it damaged; ``None``: nested too deeply."""
    return None if _is_deep(wire) else len(json.dumps(wire, separators=(",", ":")))


def _is_deep(value: Any) -> bool:
    """Tell whether JSON is nested so deeply, as no watermark is, that to write it may be refused."""
    layer = [value]
    for _ in range(_MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in layer if _is_nested(each)]
        layer = [each for values in inner for each in values]
    return bool(layer)


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, builtins.list))


def _age_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    text = str(timedelta(seconds=round(abs(seconds))))
    return text if seconds >= 0 else f"{text} ahead"


def text_of(position: Position) -> str:
    """Show a position as ``set`` takes it."""
    if position is BEGINNING:
        return "beginning"
    wire = encode_position(position)
    return wire["value"] if isinstance(wire["value"], str) else json.dumps(wire["value"])


def low_of(wire: Mapping[str, Any]) -> str:
    """Show the low watermark of what is stored, be it damaged otherwise."""
    try:
        return text_of(decode_position(wire.get("low")))
    except (StateError, RecursionError):
        return "(reset)" if is_reset(wire) else "(damaged)"
