"""Watch a prefix in a Google Cloud Storage bucket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import ClassVar, Final

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.exceptions import WatermarkError
from airflow.providers.watermark.gcs.client import Answer, GcsClient
from airflow.providers.watermark.gcs.errors import explain, is_refused_identity
from airflow.providers.watermark.gcs.pages import list_params, read_page
from airflow.providers.watermark.objects.listing import Interest, KeyRange, Listing
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger, parse_date

__all__ = ["GCSPrefixTrigger"]

STEP: Final = timedelta(seconds=1)
"""Objects are stamped to the millisecond, but the clock, an HTTP date, has whole seconds."""


class GCSPrefixTrigger(ObjectStoreTrigger):
    """
    Deliver each new or overwritten object under a prefix.

    An object is news when it has a new generation, dated by ``timeCreated``, the moment at which that
    generation was finished: uploads may take however long they like. A change of metadata, of access or, by a
    lifecycle rule, of the storage class makes no new generation and is no news. Deletions are not delivered,
    and neither are folder markers (keys that end in ``/`` and hold no bytes), noncurrent and soft-deleted
    versions, nor a version that was replaced before it was listed. A prefix is plain text: ``a/b`` also
    matches ``a/bc``.

    Two things can appear with an old date and are not promised: objects under a *folder* that is renamed, in
    a bucket with a hierarchical namespace, and what is appended to an unfinished object in a zonal bucket.
    Managed folders are no objects.

    Each sweep lists the whole prefix: one request per 1,000 objects, and one for the clock. The connection's
    identity needs ``storage.objects.list`` on the bucket.

    While the environment variable ``STORAGE_EMULATOR_HOST`` is set, for tests, its address is asked in place
    of Google's, without credentials.

    :param bucket_name: The bucket, without ``gs://``.
    :param gcp_conn_id: The Airflow connection; one without a key means the machine's own identity, one with
        ``is_anonymous`` nobody's.
    :param impersonation_chain: A service account to act as, or a list of them, each of which may act as the
        next; overrides the connection's.
    :param user_project: The project that pays for the requests, if the bucket says that the requester pays.

    See :class:`~airflow.providers.watermark.triggers.object_store.ObjectStoreTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "gcs"
    version_name: ClassVar[str] = "generation"
    source_fields: ClassVar[tuple[str, ...]] = ("bucket_name", "prefix", "pattern", "exclude")

    bucket_name: str = ""
    gcp_conn_id: str = "google_cloud_default"
    impersonation_chain: str | list[str] | None = None
    user_project: str | None = None

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
        self._client: GcsClient | None = None
        self._resources = AsyncExitStack()

    @property
    def source(self) -> str:
        """The prefix as a URI."""
        return f"gs://{self.bucket_name}/{self.prefix}"

    @property
    def where(self) -> str:
        """Name the bucket in an error."""
        return f"GCS bucket {self.bucket_name!r}"

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from _bucket_problems(self.bucket_name)
        yield from arguments.text("gcp_conn_id", self.gcp_conn_id)
        yield from arguments.text("user_project", self.user_project, optional=True)
        if isinstance(self.impersonation_chain, list):
            yield from arguments.flat_list("impersonation_chain", self.impersonation_chain)
        else:
            yield from arguments.text("impersonation_chain", self.impersonation_chain, optional=True)

    # -- The client -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the Airflow connection and take the client that all its watchers share."""
        await super().open()
        try:
            self._client = await self._resources.enter_async_context(
                GcsClient.use(self.gcp_conn_id, self.impersonation_chain)
            )
        except Exception as error:
            raise self._explain(error) from error

    async def close(self) -> None:
        """Give the client back."""
        self._client = None
        try:
            await self._resources.aclose()
        except Exception as error:  # noqa: BLE001 - it is gone anyway
            self.log.debug("The client could not be closed: %s", type(error).__name__)

    async def _list(self, params: dict[str, str]) -> tuple[GcsClient, Answer]:
        """Send a request; all errors become ours, here."""
        client = self._client
        assert client is not None  # noqa: S101 - it is open
        if self.user_project is not None:
            params["userProject"] = self.user_project
        self.requests += 1
        try:
            return client, await client.list_objects(self.bucket_name, params)
        except Exception as error:
            if is_refused_identity(error):
                client.retire()
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> WatermarkError:
        return explain(error, f"{self.where}, connection {self.gcp_conn_id!r}")

    # -- The two questions ----------------------------------------------------------------------------

    async def get_high_watermark(self) -> HighWatermark:
        """Read the store's clock."""
        now = await self.confirm_clock(await self.read_clock())
        return self.make_bounds(now, step=STEP)

    async def read_clock(self) -> datetime:
        """Read the store's clock with a small request."""
        _, answer = await self._list(list_params(KeyRange(prefix=self.head), limit=1))
        return parse_date(answer.date, self.where)

    async def list_page(
        self, keys: KeyRange, interest: Interest, *, token: str | None = None, limit: int | None = None
    ) -> Listing:
        """List a page, sending one request."""
        client, answer = await self._list(list_params(keys, token=token, limit=limit))
        async with client.parsing:
            page = read_page(answer.body, keys, interest, self.where)
            await asyncio.sleep(0)
        return page


def _bucket_problems(bucket: object) -> Iterator[str]:
    shown = f"bucket_name={bucket!r}"
    if not isinstance(bucket, str) or not bucket:
        yield f"{shown}: must be a bucket's name"
    elif "/" in bucket:
        yield f"{shown}: must be a bucket's name alone, without 'gs://' and without a prefix"
    elif not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
        yield (
            f"{shown}: must be a bucket's name: 3 to 222 lower-case letters, digits, dots, "
            "hyphens or underscores"
        )
