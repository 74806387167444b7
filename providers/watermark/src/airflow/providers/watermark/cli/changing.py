"""``set``, ``rewind`` and ``reset``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from airflow.providers.watermark.cli.looking import text_of
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
        if is_after(position, state.low):
            if not ahead:
                msg = f"{new} is after the low watermark, {old}; to skip what lies between, use `set`"
                raise CommandError(msg)
            say(f"What lies after {old} and at or before {new} is skipped, and never delivered.")
        elif position == state.low and not state.seen and state.high is None:
            say(f"The low watermark is {old} already.")
            return
        else:
            again = f"at or before {old} " if position != state.low else ""
            more = f", and {len(state.seen)} changes after that" if state.seen else ""
            say(f"What lies after {new} {again}is delivered again, in epoch {moved.epoch}{more}.")
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
    :raises WatermarkConflictError: Somebody else has set or reset it, or the watcher saves all the time.
    """
    epoch = stored.get("epoch")
    for tries_left in reversed(range(_TRIES)):
        try:
            await store.save(key, change(stored), expected=stored)
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
    known = (each for each in (state.low, state.high, *state.seen.values()) if each is not None)
    kind = next((position_type(each) for each in known if each is not BEGINNING), None)
    try:
        if kind in {None, "timestamp"}:
            return parse_timestamp(text)
        if kind == "naive-timestamp":
            return _naive(text)
        return decode_position({"type": kind, "value": text})
    except (ValueError, TypeError, StateError) as error:
        what = {
            None: "a time with a UTC offset, such as 2026-01-31T00:00:00Z",
            "timestamp": "a time with a UTC offset, such as 2026-01-31T00:00:00Z",
            "naive-timestamp": "a time without a UTC offset, such as 2026-01-31T00:00:00",
        }.get(kind, f"a position of the type {kind}")
        msg = f"{text!r} is not {what}, and not 'beginning'; the low watermark is {text_of(state.low)}"
        raise CommandError(msg) from error


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
        if confirm(args, f"Reset the watermark of {key.asset_name!r}?"):
            await _save(store, key, stored, reset_wire)
            say("Done. A running watcher starts anew with its next poll.")
