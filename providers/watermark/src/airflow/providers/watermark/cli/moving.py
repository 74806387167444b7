"""``copy``, ``delete``, ``prune`` and ``migrate``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.watermark.cli.looking import low_of
from airflow.providers.watermark.cli.running import CommandError, Store, choose, confirm, load, say, told
from airflow.providers.watermark.exceptions import StateError, StoreError
from airflow.providers.watermark.position import decode_position, is_after
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey

__all__ = ["copy", "delete", "migrate", "prune"]


async def copy(args: argparse.Namespace) -> None:
    """Copy watermarks to another store, or to an asset's new name."""
    async with Store(args.source) as source, Store(args.target) as target:
        _require_two_places(args, source, target)
        keys = sorted(key for key in await source.keys() if args.asset in (None, key.asset_name))
        if not keys:
            msg = f"nothing is stored of {args.asset!r}" if args.asset else "there is nothing to copy"
            raise CommandError(msg)
        plan, left = [], 0
        for key in keys:
            new = key._replace(asset_name=args.new_name) if args.new_name else key
            try:
                value, there = await load(source, key), await load(target, new)
                if value is None:
                    say(f"{'/'.join(new)}: has vanished")
                elif _is_due(new, value, there):
                    plan.append((new, value, there))
            except (StoreError, CommandError) as error:  # which keeps no other from being copied
                left += 1
                say(f"{'/'.join(new)}: {told(error)}")
        if plan and confirm(args, f"Copy {len(plan)} watermarks?"):
            left += await _copy_all(target, plan)
    if left:
        msg = f"{left} watermarks were not copied; why is told above"
        raise CommandError(msg)


def _require_two_places(
    args: argparse.Namespace, source: BaseWatermarkStore, target: BaseWatermarkStore
) -> None:
    """
    See to it that something can be copied from one place to another.

    :raises CommandError: It cannot, and an operator would take what is there already for a copy.
    """
    if args.new_name is not None and not (args.asset and args.new_name):
        msg = "--as gives one asset a new name; name the asset, and its new name"
        raise CommandError(msg)
    # Each store is configured in one way only: of one kind there is but one.
    if type(source) is type(target) and args.new_name in (None, args.asset):
        msg = (
            f"both are the {type(source).__name__}, and nothing would be copied; name another store with "
            "--from or --to, or the asset's new name with --as"
        )
        raise CommandError(msg)


def _is_due(key: WatermarkKey, value: dict[str, Any], there: dict[str, Any] | None) -> bool:
    """
    Tell whether a watermark is to be copied, and say so.

    :raises CommandError: A newer one is there.
    """
    name = "/".join(key)
    if value == there:
        say(f"{name}: is there already")
        return False
    if there is None:
        say(f"{name}: to be copied, with the low watermark {low_of(value)}")
        return True
    lows = f"its low watermark is {low_of(there)}, that of the copy {low_of(value)}"
    if _age(there) >= _age(value):
        msg = f"a newer one is there, and stays (epoch and revision {_age(there)}; {lows})"
        raise CommandError(msg)
    # Each store counts its own revisions, so they do not tell which of the two has come further.
    if _age(there)[0] == _age(value)[0] and _is_ahead(there, value):
        msg = f"one that is further ahead is there, and stays ({lows}); to have it back there, use `rewind`"
        raise CommandError(msg)
    say(f"{name}: to be copied, over an older one ({lows})")
    return True


def _is_ahead(there: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    try:
        return is_after(decode_position(there.get("low")), decode_position(value.get("low")))
    except StateError:  # one is damaged, or was reset, or is of another type: nothing to compare
        return False


async def _copy_all(
    target: BaseWatermarkStore, plan: Sequence[tuple[WatermarkKey, dict[str, Any], dict[str, Any] | None]]
) -> int:
    """Copy, and read back; give the number of those that could not be copied."""
    left = 0
    for key, value, there in plan:
        try:
            await target.save(key, value, expected=there)
            if await load(target, key) != value:
                left += 1
                say(f"{'/'.join(key)}: it is not what was written; is a watcher at work on it?")
        except StoreError as error:
            left += 1
            say(f"{'/'.join(key)}: {told(error)}")
    say(f"{len(plan) - left} watermarks were copied and read back.")
    return left


def _age(wire: Mapping[str, Any]) -> tuple[int, int]:
    epoch, revision = (
        value if isinstance(value := wire.get(name), int) else 0 for name in ("epoch", "revision")
    )
    return epoch, revision


async def delete(args: argparse.Namespace) -> None:
    """Delete the watermark of a watcher that is no more, though its asset is."""
    async with Store(args.store) as store:
        key, stored = await choose(store, args)
        name = "/".join(key)
        say(
            f"{name}: a watcher that is at work on it stores it again. One that comes back later starts "
            "anew, by its start_from."
        )
        say(f"Its low watermark is {low_of(stored)}.")
        if confirm(args, f"Delete the watermark {name}?"):
            await store.delete(key, expected=stored)
            say("Done.")


async def prune(args: argparse.Namespace) -> None:
    """Delete the watermarks of assets that no Dag uses."""
    async with Store(args.store) as store:
        used = _assets_in_use()
        gone = sorted(key for key in await store.keys() if key.asset_name not in used)
        found, left = [], 0
        for key in gone:
            name = "/".join(key)
            try:
                value = await load(store, key)
            except StoreError as error:  # one that is damaged keeps no other from being deleted
                left += 1
                say(f"{name}: no Dag uses this asset; {told(error)}")
            else:
                if value is not None:
                    found.append((key, value))
                    say(f"{name}: no Dag uses this asset; its low watermark is {low_of(value)}")
        if not gone:
            say("Each watermark's asset is used by a Dag.")
        elif found and confirm(args, f"Delete {len(found)} watermarks?"):
            deleted = 0
            for key, value in found:
                try:
                    await store.delete(key, expected=value)
                    deleted += 1
                except StoreError as error:
                    left += 1
                    say(f"{'/'.join(key)}: {told(error)}")
            say(f"{deleted} watermarks were deleted.")
        if left:
            msg = f"{left} watermarks were not deleted, see above"
            raise CommandError(msg)


def _assets_in_use() -> frozenset[str]:
    """
    Give the names of the assets that are active, as Airflow has them in its database.

    :raises CommandError: Airflow does not know: assets of Dags that it cannot import look unused.
    """
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    from airflow.models.asset import AssetActive
    from airflow.models.errors import ParseImportError
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            broken = sorted({name or "?" for name in session.scalars(select(ParseImportError.filename))})
            used = frozenset(session.scalars(select(AssetActive.name)))
    except SQLAlchemyError as error:
        msg = f"Airflow's metadata database cannot be asked ({type(error).__name__}); nothing was changed"
        raise CommandError(msg) from error
    if broken:
        msg = f"the assets of Dag files that cannot be imported look unused; mend first: {', '.join(broken)}"
        raise CommandError(msg)
    if not used:
        msg = "Airflow knows of no Dag with an asset; wait until the Dag processor has read the Dags"
        raise CommandError(msg)
    return used


async def migrate(_: argparse.Namespace) -> None:
    """Create or upgrade the table of the sql store."""
    from airflow.providers.watermark.stores.sql import migrate as migrate_table

    revision = await asyncio.to_thread(migrate_table)  # it runs a loop of its own
    say(f"The table asset_watermarks has the revision {revision}.")
