"""``set``, ``rewind`` and ``reset``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from airflow.providers.watermark.asset_watermark import save_lasting
from airflow.providers.watermark.cli.looking import low_of, text_of
from airflow.providers.watermark.cli.running import CommandError, Store, choose, confirm, say
from airflow.providers.watermark.exceptions import StateError, WatermarkConflictError
from airflow.providers.watermark.position import (
    BEGINNING,
    Position,
    decode_position,
    is_after,
    parse_timestamp,
    position_type,
)
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.watermark import WatermarkState, is_reset, reset_wire

__all__ = ["reset", "rewind", "set"]

_TRIES: Final = 10

_UNKNOWN_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "s3": ("timestamp",),
    "gcs": ("timestamp",),
    # Digits alone are a number, and a day alone is a date; what no text is, is not guessed.
    "sql": ("integer", "decimal", "date", "timestamp", "naive-timestamp", "uuid"),
}
"""As what a text is read, in this order, while no position is stored that would tell; by the watcher."""

_WITH_OFFSET: Final = "a time with a UTC offset, such as 2026-01-31T00:00:00Z"
_FORMS: Final = {
    "timestamp": _WITH_OFFSET,
    "s3": _WITH_OFFSET,
    "gcs": _WITH_OFFSET,
    "naive-timestamp": "a time without a UTC offset, such as 2026-01-31T00:00:00",
    "tuple": "a list as `list` shows it",
    "sql": "a number, a date, a time or a uuid, of which one could be told by how it is written",
}


async def set(args: argparse.Namespace) -> None:  # noqa: A001 - a command's function has its name
    """Set a low watermark, back or ahead."""
    await _move(args, args.position, ahead=True)


async def rewind(args: argparse.Namespace) -> None:
    """Set a low watermark back."""
    await _move(args, args.to, ahead=False)


async def _move(args: argparse.Namespace, text: str, *, ahead: bool) -> None:
    async with Store(args.store) as store:
        key, stored = await choose(store, args)
        if is_reset(stored):
            msg = "the watermark was reset, and its watcher has not started anew yet; wait for its next poll"
            raise CommandError(msg)
        state = WatermarkState.from_wire(stored)
        position = _position(text, state)
        moved = state.rewind(position)
        old, new = text_of(state.low), text_of(position)
        more = _repeats(state, position)
        if is_after(position, state.low):
            if not ahead:
                msg = f"{new} is after the low watermark, {old}; to skip what lies between, use `set`"
                raise CommandError(msg)
            say(f"What lies after {old} and at or before {new} is skipped, and never delivered.")
            if more:
                say(f"Delivered after {new} already, and again in epoch {moved.epoch}: {more}.")
        elif position == state.low and not state.seen and state.high is None:
            say(f"The low watermark is {old} already.")
            return
        else:
            again = f"at or before {old} " if position != state.low else ""
            say(
                f"What lies after {new} {again}is delivered again, in epoch {moved.epoch}"
                f"{more and f', and {more} after that'}."
            )
        if confirm(args, f"Set the low watermark of {key.asset_name!r} from {old} to {new}?"):
            is_ahead = is_after(position, state.low)

            def change(stored: dict[str, Any]) -> dict[str, Any]:
                state = WatermarkState.from_wire(stored)
                if is_ahead and not is_after(position, state.low):
                    msg = f"the watcher has come to {text_of(state.low)} meanwhile; nothing was changed"
                    raise CommandError(msg)
                wire = state.rewind(position).to_wire()
                return {**wire, "revision": wire["revision"] + 1}

            await _save(store, key, stored, change)
            say("Done. A running watcher adopts it with its next poll.")


def _repeats(state: WatermarkState, position: Position) -> str:
    """Tell what was delivered after both the low watermark and another position; empty if nothing was."""
    cut = position if is_after(position, state.low) else state.low
    count = sum(is_after(each, cut) for each in state.seen.values())
    swept = state.high is not None and is_after(state.high, cut)
    parts = (
        f"{count} changes" if count else "",
        f"what the sweep under way, up to {text_of(state.high)}, has delivered" if swept else "",  # type: ignore[arg-type]
    )
    return ", and ".join(filter(None, parts))


async def _save(
    store: BaseWatermarkStore,
    key: WatermarkKey,
    stored: dict[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """
    Save what was agreed to; a watcher that has gone on since is no reason to ask again.

    :param stored: What the question was about.
    :param change: Makes the new watermark from the stored one.
    :raises WatermarkConflictError: Somebody else has set, reset or deleted it, or the watcher saves all the
        time.
    """
    epoch = stored.get("epoch")
    for tries_left in reversed(range(_TRIES)):
        try:
            await save_lasting(store, key, change(stored), expected=stored)
        except WatermarkConflictError:
            newer = await store.load(key)
            if not tries_left or newer is None or is_reset(newer) or newer.get("epoch") != epoch:
                raise
            stored = newer
        else:
            return


def _position(text: str, state: WatermarkState) -> Position:
    """
    Read a position of the type that the watermark has.

    :raises CommandError: It is none.
    """
    if text == "beginning":
        return BEGINNING
    late = (slot.since for slot in state.pending.values())
    known = (each for each in (state.low, state.high, *state.seen.values(), *late) if each is not None)
    kind = next((position_type(each) for each in known if each is not BEGINNING), None)
    watcher = state.source.get("watcher")
    for each in (kind,) if kind is not None else _UNKNOWN_KINDS.get(str(watcher), ()):
        try:
            position = _read(text, each)
        except (ValueError, TypeError, RecursionError, StateError):
            continue
        if kind is None:
            say(f"{text} is taken for a position of the type {each}: the watermark has none yet to tell by.")
        return position
    low = text_of(state.low)
    if kind is None and watcher not in _UNKNOWN_KINDS:
        msg = (
            f"the low watermark is {low}, by which the type of its positions cannot be told; set it by "
            "AssetWatermark.set_value in Python, or let its watcher deliver first"
        )
        raise CommandError(msg)
    what = _FORMS.get(kind or str(watcher), f"a position of the type {kind}")
    msg = f"{text!r} is not {what}, and not 'beginning'; the low watermark is {low}"
    raise CommandError(msg)


def _read(text: str, kind: str) -> Position:
    if kind == "timestamp":
        return parse_timestamp(text)
    if kind == "naive-timestamp":
        return _naive(text)
    return decode_position({"type": kind, "value": json.loads(text) if kind == "tuple" else text})


def _naive(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError(text)
    return moment


async def reset(args: argparse.Namespace) -> None:
    """Let a watcher start anew."""
    async with Store(args.store) as store:
        key, stored = await choose(store, args)
        if is_reset(stored):
            say("It was reset already; its watcher starts anew with its next poll.")
            return
        wire = reset_wire(stored)
        say(
            f"The watcher of {key.asset_name!r} starts anew by its start_from, in epoch {wire['epoch']}: "
            "with 'now', what it has not delivered yet is skipped; with 'beginning', all is delivered again."
        )
        say(f"Its low watermark is {low_of(stored)}; once it has started anew, `set` brings that back.")
        if confirm(args, f"Reset the watermark of {key.asset_name!r}?"):
            await _save(store, key, stored, reset_wire)
            say("Done. A running watcher starts anew with its next poll.")
