"""Other ways to find what is new in GCS."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, cast

from benchmarks.objects.target import BlockingClient, Client, row


class GcloudAio(Client):
    """The baseline: the listing of gcloud-aio, which is Airflow's asynchronous client, and a filter."""

    packages: ClassVar[tuple[str, ...]] = ("gcloud-aio-storage", "aiohttp")

    async def open(self) -> None:
        """Build a session and a client."""
        from aiohttp import ClientSession
        from gcloud.aio.storage import Storage

        self._session = ClientSession()
        self._storage: Any = Storage(session=cast("Any", self._session), api_root=self.target.endpoint)

    async def sweep(self) -> int:
        """Page through as ``list_blobs`` does, which itself gives names alone, and filter each page."""
        target, found = self.target, 0
        params = {"prefix": target.prefix, "pageToken": ""}
        while True:
            page = await self._storage.list_objects(target.bucket, params=params)
            rows = [
                row(entry["name"], int(entry["size"]), entry["generation"], created)
                for entry in page.get("items", [])
                if (created := datetime.fromisoformat(entry["timeCreated"])) > target.cut
            ]
            found += len(rows)
            params["pageToken"] = page.get("nextPageToken", "")
            if not params["pageToken"]:
                return found

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()


class GcloudAioNames(GcloudAio):
    """``list_blobs`` of gcloud-aio, as Airflow's own trigger for prefixes uses it: names, nothing else."""

    tells_news = False

    async def sweep(self) -> int:
        """Have it list."""
        bucket = self._storage.get_bucket(self.target.bucket)
        return len(await bucket.list_blobs(prefix=self.target.prefix))


class GoogleCloudStorage(BlockingClient):
    """``list_blobs`` of google-cloud-storage, in a thread, and a filter."""

    packages: ClassVar[tuple[str, ...]] = ("google-cloud-storage", "requests")

    async def open(self) -> None:
        """Build a client."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client as StorageClient

        self._client: Any = StorageClient(
            project="benchmark",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": self.target.endpoint},
        )

    def find(self) -> int:
        """List, and filter."""
        target = self.target
        blobs = self._client.list_blobs(target.bucket, prefix=target.prefix)
        rows = [
            row(blob.name, blob.size, str(blob.generation), blob.time_created)
            for blob in blobs
            if blob.time_created > target.cut
        ]
        return len(rows)
