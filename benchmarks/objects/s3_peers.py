"""Other ways to find what is new in S3: each as its documentation shows it, followed by a filter."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, ClassVar

from benchmarks.objects.ours import use_aws_connection
from benchmarks.objects.target import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    BlockingClient,
    Client,
    Target,
    row,
)


def arguments(target: Target) -> dict[str, Any]:
    """Give the arguments of botocore's clients."""
    from botocore.config import Config

    return {
        "endpoint_url": target.endpoint,
        "region_name": REGION,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "config": Config(s3={"addressing_style": "path"}, proxies={}, max_pool_connections=50),
    }


def rows_of(entries: list[dict[str, Any]], cut: datetime) -> list[dict[str, Any]]:
    """Filter a page of S3's entries."""
    return [
        row(entry["Key"], entry["Size"], entry["ETag"], entry["LastModified"])
        for entry in entries
        if entry["LastModified"] > cut
    ]


class AiobotocorePaginator(Client):
    """The baseline: what a deferred operator of the amazon provider does."""

    packages: ClassVar[tuple[str, ...]] = ("aiobotocore", "botocore", "aiohttp")

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._stack = AsyncExitStack()
        self._client: Any = None

    async def open(self) -> None:
        """Build a session and a client."""
        from aiobotocore.session import get_session

        creator = get_session().create_client("s3", **arguments(self.target))
        self._client = await self._stack.enter_async_context(creator)

    async def sweep(self) -> int:
        """Page through, and filter each page."""
        target, found = self.target, 0
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=target.bucket, Prefix=target.prefix
        )
        async for page in pages:
            found += len(rows_of(page.get("Contents", []), target.cut))
        return found

    async def close(self) -> None:
        """Close the client."""
        await self._stack.aclose()


class AiobotocoreWatchers(Client):
    """
    Many at once, each with a session, a client and a paginator of its own.

    :param prefixes: One for each.
    """

    packages: ClassVar[tuple[str, ...]] = AiobotocorePaginator.packages

    def __init__(self, target: Target, prefixes: list[str]) -> None:
        super().__init__(target)
        self._prefixes = prefixes

    async def sweep(self) -> int:
        """Start all together."""
        return sum(await asyncio.gather(*map(self._watch, self._prefixes)))

    async def warm_up(self) -> None:
        """Have another one imported, used and closed: the start of these is what is measured."""
        await self._watch(self.target.small_prefix)

    async def _watch(self, prefix: str) -> int:
        one = AiobotocorePaginator(dataclasses.replace(self.target, prefix=prefix))
        await one.open()
        found = await one.sweep()
        await one.close()
        return found


class Boto3(BlockingClient):
    """The synchronous client, in a thread."""

    packages: ClassVar[tuple[str, ...]] = ("boto3", "botocore")

    async def open(self) -> None:
        """Build a client."""
        import boto3

        self._client: Any = boto3.session.Session().client("s3", **arguments(self.target))

    def find(self) -> int:
        """Page through, and filter each page."""
        target = self.target
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=target.bucket, Prefix=target.prefix
        )
        return sum(len(rows_of(page.get("Contents", []), target.cut)) for page in pages)


class DagsterHelper(Boto3):
    """Dagster's helper for S3 sensors, in a thread."""

    packages: ClassVar[tuple[str, ...]] = ("dagster-aws", "dagster", "boto3")

    def find(self) -> int:
        """Have it list and filter."""
        from dagster_aws.s3.sensor import get_objects

        target = self.target
        found = get_objects(
            target.bucket, prefix=target.prefix, since_last_modified=target.cut, client=self._client
        )
        return len(rows_of([dict(entry) for entry in found], target.cut))


class AirflowS3Hook(BlockingClient):
    """``S3Hook.list_keys`` of the amazon provider, in a thread."""

    packages: ClassVar[tuple[str, ...]] = ("apache-airflow-providers-amazon", "boto3")

    async def open(self) -> None:
        """Build the hook and its client."""
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook

        use_aws_connection(self.target)
        self._hook = S3Hook(aws_conn_id="aws_default")
        await asyncio.to_thread(self._hook.get_conn)

    def find(self) -> int:
        """Have it list and filter; keys are all it gives."""
        target = self.target
        return len(
            self._hook.list_keys(
                target.bucket,
                prefix=target.prefix,
                # Inclusive, other than everything else here.
                object_filter=lambda keys, since, until: [  # noqa: ARG005
                    entry["Key"] for entry in keys if entry["LastModified"] > target.cut
                ],
                from_datetime=target.cut,
            )
        )


class S3fs(Client):
    """``find`` of s3fs, in its asynchronous mode."""

    packages: ClassVar[tuple[str, ...]] = ("s3fs", "fsspec", "aiobotocore")

    async def open(self) -> None:
        """Build the file system."""
        import s3fs

        options = arguments(self.target)
        self._files: Any = s3fs.S3FileSystem(
            asynchronous=True,
            key=ACCESS_KEY,
            secret=SECRET_KEY,
            endpoint_url=options["endpoint_url"],
            client_kwargs={"region_name": REGION},
            config_kwargs={"s3": {"addressing_style": "path"}, "proxies": {}},
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._session = await self._files.set_session()

    async def sweep(self) -> int:
        """Have it find everything, and filter that."""
        target = self.target
        found = await self._files._find(f"{target.bucket}/{target.prefix}", detail=True)  # noqa: SLF001 - its way
        return len(rows_of(list(found.values()), target.cut))

    async def close(self) -> None:
        """Close its session."""
        await self._session.close()


class DltFilesystem(BlockingClient):
    """dlt's filesystem source with an incremental ``modification_date``, in a thread."""

    packages: ClassVar[tuple[str, ...]] = ("dlt", "s3fs", "fsspec")

    async def open(self) -> None:
        """Import it."""
        import dlt.sources.filesystem  # noqa: F401

    def find(self) -> int:
        """Read the resource: it lists, and drops what is not new."""
        import dlt
        from dlt.common.configuration.specs import AwsCredentials
        from dlt.sources.filesystem import filesystem

        target = self.target
        credentials = AwsCredentials(
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            endpoint_url=target.endpoint,
            region_name=REGION,
            s3_url_style="path",
        )
        resource = filesystem(
            bucket_url=f"s3://{target.bucket}/{target.prefix.rstrip('/')}",
            credentials=credentials,
            file_glob="**",
            files_per_page=1000,
            incremental=dlt.sources.incremental(
                "modification_date", initial_value=target.cut, range_start="open"
            ),
        )
        return sum(1 for _ in resource)
