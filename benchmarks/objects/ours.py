"""Our watchers, as Airflow's triggerer runs them: one loop, connections from Airflow, a store in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from contextlib import aclosing
from typing import Any, ClassVar

from benchmarks.objects.target import ACCESS_KEY, REGION, SECRET_KEY, Client, NotAvailableError, Target

PACKAGE = "airflow-provider-watermark"
COMMIT_DELAY = 0.01
"""Seconds. The default of several makes a backlog wait for Airflow's database, which is not there."""


def use_aws_connection(target: Target, conn_id: str = "aws_default") -> None:
    """Name the server in an Airflow connection."""
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(
        {
            "conn_type": "aws",
            "login": ACCESS_KEY,
            "password": SECRET_KEY,
            "extra": {
                "endpoint_url": target.endpoint,
                "region_name": REGION,
                "config_kwargs": {"s3": {"addressing_style": "path"}, "proxies": {}},
            },
        }
    )


def use_gcp_connection(target: Target) -> None:
    """Name the server as an emulator, in the connection ``google_cloud_default``."""
    os.environ["STORAGE_EMULATOR_HOST"] = target.endpoint
    os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps(
        {"conn_type": "google_cloud_platform", "extra": {"project": "benchmark", "is_anonymous": True}}
    )


class Watcher(Client):
    """
    A sweep of a watcher: the clock, the listing, and each change that is news.

    :param prefix: Overrides the target's.
    :param arguments: Those of the trigger.
    """

    packages: ClassVar[tuple[str, ...]] = (PACKAGE, "apache-airflow")

    def __init__(self, target: Target, prefix: str | None = None, **arguments: Any) -> None:
        super().__init__(target)
        self._arguments = {
            "asset_name": "benchmark",
            "bucket_name": target.bucket,
            "prefix": target.prefix if prefix is None else prefix,
            **arguments,
        }
        self._trigger: Any = None

    def trigger_class(self) -> Any:
        """Import the trigger."""
        raise NotImplementedError

    def make_trigger(self) -> Any:
        """
        Build the trigger.

        :raises NotAvailableError: It has not got an argument.
        """
        cls = self.trigger_class()
        known = {field.name for field in dataclasses.fields(cls)}
        if missing := sorted(self._arguments.keys() - known):
            raise NotAvailableError(f"{cls.__name__} has no {', '.join(missing)}")
        trigger = cls(**self._arguments)
        if problems := list(trigger.problems()):
            raise NotAvailableError("; ".join(problems))
        return trigger

    async def open(self) -> None:
        """Build the trigger and connect."""
        self._trigger = self.make_trigger()
        await self._trigger.open()

    async def sweep(self) -> int:
        """Do what :class:`~airflow.providers.watermark.triggers.watching.Watch` does in a sweep."""
        from airflow.providers.watermark.watermark import Sweep, WatermarkState

        trigger, found = self._trigger, 0
        state = WatermarkState(source=trigger.fingerprint, low=self.target.cut)
        sweep = Sweep(state, await trigger.get_high_watermark(), trigger.max_seen)
        async with aclosing(trigger.read_changes(sweep)) as pages:
            async for page in pages:
                for change in page.changes:
                    if sweep.admits(change):
                        sweep.take(change)
                        found += 1
                sweep.read_to(page)
        sweep.finish()
        return found

    async def warm_up(self) -> None:
        """Sweep once, as a watch has done: a poll is what is measured, not the first one after a start."""
        # Not above: peers in an environment without Airflow import this module.
        from airflow.providers.watermark.heap import freeze

        await self.sweep()
        freeze()

    async def close(self) -> None:
        """Disconnect."""
        await self._trigger.close()


class S3Watcher(Watcher):
    """A sweep of ``S3PrefixTrigger``."""

    packages: ClassVar[tuple[str, ...]] = (
        *Watcher.packages,
        "apache-airflow-providers-amazon",
        "aiobotocore",
    )

    def trigger_class(self) -> Any:
        """Import the trigger, and what it would import when it is opened."""
        from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger

        use_aws_connection(self.target)
        return S3PrefixTrigger


class GCSWatcher(Watcher):
    """A sweep of ``GCSPrefixTrigger``."""

    packages: ClassVar[tuple[str, ...]] = (*Watcher.packages, "apache-airflow-providers-google", "aiohttp")

    def trigger_class(self) -> Any:
        """Import the trigger, and what it would import when it is opened."""
        try:
            from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
        except ImportError as error:
            raise NotAvailableError(f"there is no GCSPrefixTrigger: {error}") from error
        use_gcp_connection(self.target)
        return GCSPrefixTrigger


class S3Delivery(S3Watcher):
    """The whole watch of ``S3PrefixTrigger``, with state, events and commits, until all is delivered."""

    def __init__(self, target: Target, **arguments: Any) -> None:
        super().__init__(target, start_from="beginning", commit_delay=COMMIT_DELAY, **arguments)
        self._neighbour = S3Watcher(target, prefix=target.small_prefix, start_from="beginning")

    async def open(self) -> None:
        """Build the trigger; the watch connects, with the client of a watcher that is there already."""
        self._trigger = self.make_trigger()
        await self._neighbour.open()

    async def warm_up(self) -> None:
        """Have the other one deliver something: this one has never been there, or there were no backlog."""
        await _deliver(self._neighbour.make_trigger(), 1)

    async def sweep(self) -> int:
        """Deliver the backlog."""
        return await _deliver(self._trigger, self.target.news)

    async def close(self) -> None:
        """Disconnect; the watch itself has done so."""
        await self._neighbour.close()


async def _deliver(trigger: Any, until: int) -> int:
    """Watch, acknowledging each event at once, until so many changes have come."""
    from airflow.providers.watermark.delivery import Committer
    from airflow.providers.watermark.stores.memory import MemoryStore
    from airflow.providers.watermark.triggers.watching import Watch

    store, found = MemoryStore(), 0
    committer = Committer(
        lambda: store,
        trigger.key,
        source=trigger.fingerprint,
        commit_delay=COMMIT_DELAY,
        log=trigger.log,
    )
    async with aclosing(Watch(trigger, committer).run()) as emissions:
        async for emission in emissions:
            if emission.payload is not None:
                found += emission.payload["count"]
            committer.acknowledge(emission)
            if found >= until:
                break
    return found


class S3Watchers(S3Watcher):
    """
    Many watchers that start together in one loop.

    :param prefixes: One for each.
    """

    def __init__(self, target: Target, prefixes: list[str]) -> None:
        super().__init__(target)
        self._watchers = [S3Watcher(target, prefix=prefix) for prefix in prefixes]

    async def open(self) -> None:
        """Find out whether there can be watchers."""
        self.make_trigger()

    async def sweep(self) -> int:
        """Start all together: connect and sweep."""

        async def start(watcher: S3Watcher) -> int:
            await watcher.open()
            return await watcher.sweep()

        found = await asyncio.gather(*map(start, self._watchers))
        return sum(found)

    async def warm_up(self) -> None:
        """Have another connection imported, used and closed: the start of these is what is measured."""
        use_aws_connection(self.target, "aws_other")
        other = S3Watcher(self.target, prefix=self.target.small_prefix, aws_conn_id="aws_other")
        await other.open()
        await other.sweep()
        await other.close()

    async def close(self) -> None:
        """Disconnect."""
        for watcher in self._watchers:
            await watcher.close()
