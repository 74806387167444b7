"""``copy``, ``prune`` and ``migrate``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from airflow.providers.watermark.cli.running import CommandError, Store, confirm, say
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey

__all__ = ["copy", "migrate", "prune"]


async def copy(args: argparse.Namespace) -> None:
    """Copy watermarks to another store, or to an asset's new name."""
    if args.new_name is not None and args.asset is None:
        msg = "--as gives one asset a new name; name the asset"
        raise CommandError(msg)
    async with Store(args.source) as source, Store(args.target) as target:
        keys = sorted(key for key in await source.keys() if args.asset in (None, key.asset_name))
        if not keys:
            msg = f"nothing is stored of {args.asset!r}" if args.asset else "there is nothing to copy"
            raise CommandError(msg)
        plan, refused = [], 0
        for key in keys:
            new = key._replace(asset_name=args.new_name) if args.new_name else key
            value, there = await source.load(key), await target.load(new)
            name = "/".join(new)
            if value is None or value == there:
                say(f"{name}: is there already" if value is not None else f"{name}: has vanished")
            elif there is not None and _age(there) >= _age(value):
                refused += 1
                say(f"{name}: a newer one is there, and stays (epoch and revision {_age(there)})")
            else:
                plan.append((new, value, there))
                say(f"{name}: to be copied" + ("" if there is None else ", over an older one"))
        if plan and confirm(args, f"Copy {len(plan)} watermarks?"):
            for new, value, there in plan:
                await _copy(target, new, value, there)
            say(f"{len(plan)} watermarks were copied and read back.")
    if refused:
        msg = f"{refused} watermarks were not copied: a newer one is there"
        raise CommandError(msg)


async def _copy(
    target: BaseWatermarkStore, key: WatermarkKey, value: dict[str, Any], there: dict[str, Any] | None
) -> None:
    await target.save(key, value, expected=there)
    if await target.load(key) != value:
        msg = f"{'/'.join(key)} was copied, but is not what was written; is a watcher at work on it?"
        raise CommandError(msg)


def _age(wire: Mapping[str, Any]) -> tuple[int, int]:
    epoch, revision = (
        value if isinstance(value := wire.get(name), int) else 0 for name in ("epoch", "revision")
    )
    return epoch, revision


async def prune(args: argparse.Namespace) -> None:
    """Delete the watermarks of assets that no Dag uses."""
    async with Store(args.store) as store:
        used = _assets_in_use()
        gone = sorted(key for key in await store.keys() if key.asset_name not in used)
        for key in gone:
            say(f"{'/'.join(key)}: no Dag uses this asset")
        if not gone:
            say("Each watermark's asset is used by a Dag.")
        elif confirm(args, f"Delete {len(gone)} watermarks?"):
            for key in gone:
                if (value := await store.load(key)) is not None:
                    await store.delete(key, expected=value)
            say(f"{len(gone)} watermarks were deleted.")


def _assets_in_use() -> frozenset[str]:
    """Give the names of the assets that are active, as Airflow has them in its database."""
    from sqlalchemy import select

    from airflow.models.asset import AssetActive
    from airflow.utils.session import create_session

    with create_session() as session:
        return frozenset(session.scalars(select(AssetActive.name)))


async def migrate(_: argparse.Namespace) -> None:
    """Create or upgrade the table of the sql store."""
    from airflow.providers.watermark.stores.sql import migrate as migrate_table

    revision = await asyncio.to_thread(migrate_table)  # it runs a loop of its own
    say(f"The table asset_watermarks has the revision {revision}.")
