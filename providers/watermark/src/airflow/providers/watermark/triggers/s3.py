"""Watch a prefix in an S3 bucket."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from urllib.parse import unquote_plus

from airflow.providers.watermark.change import HighWatermark, Page
from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    SourceError,
    ThrottledError,
    WatermarkError,
)
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing
from airflow.providers.watermark.s3.clients import Account, S3Client
from airflow.providers.watermark.s3.pages import ScannedPage
from airflow.providers.watermark.s3.parsing import SCANNED, asking
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger, parse_date
from airflow.providers.watermark.watermark import Sweep

__all__ = ["S3PrefixTrigger"]

STEP: Final = timedelta(seconds=1)
"""S3 lists whole seconds. Some servers list finer ones, but HTTP dates are whole seconds everywhere."""

_ADVICE: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket, or correct bucket_name or the connection's endpoint",
    "AccessDenied": "allow s3:ListBucket on the bucket to the connection's identity",
    "AllAccessDisabled": "allow s3:ListBucket on the bucket to the connection's identity",
    "403": "allow s3:ListBucket on the bucket to the connection's identity",
    "InvalidAccessKeyId": "correct the connection's access key",
    "SignatureDoesNotMatch": "correct the connection's secret key",
    "ExpiredToken": "renew the connection's credentials",
    "ExpiredTokenException": "renew the connection's credentials",
    "InvalidToken": "renew the connection's credentials",
    "TokenRefreshRequired": "renew the connection's credentials",
    "RequestTimeTooSkewed": "set this machine's clock: S3 refuses requests that are signed 15 minutes off",
    "PermanentRedirect": "set region_name, or the connection's, to the bucket's region",
    "AuthorizationHeaderMalformed": "set region_name, or the connection's, to the bucket's region",
    "IllegalLocationConstraintException": "set region_name, or the connection's, to the bucket's region",
    "InvalidBucketName": "correct bucket_name",
    "NoCredentialsError": "give the connection credentials",
    "PartialCredentialsError": "give the connection credentials",
    "CredentialRetrievalError": "give the connection credentials",
}
"""What to do about the errors that do not go away by waiting."""

_REFUSED: Final = frozenset(
    {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException"),
        *("InvalidToken", "TokenRefreshRequired", "NoCredentialsError", "PartialCredentialsError"),
        "CredentialRetrievalError",
    }
)
"""Other credentials are needed, which a client that exists does not look for."""

_THROTTLED: Final = frozenset(
    {
        *("SlowDown", "ServiceUnavailable", "503", "TooManyRequests", "429", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
    }
)

_NO_UPLOAD_LISTS: Final = frozenset(
    {"AccessDenied", "AllAccessDisabled", "403", "NotImplemented", "MethodNotAllowed", "501", "405"}
)


class S3PrefixTrigger(ObjectStoreTrigger):
    """
    Deliver each new or overwritten object under a prefix.

    An object is news when it has a new etag or a newer ``LastModified``. Deletions are not delivered, and
    neither are folder markers (keys that end in ``/`` and hold no bytes) nor a version that was replaced
    before it was listed. A prefix is plain text: ``a/b`` also matches ``a/bc``.

    Multipart uploads appear with the time at which they were *begun* (`S3 API, CompleteMultipartUpload`).
    Each sweep therefore asks for the uploads in progress, and delivers what becomes of them however long
    they take, up to ``max_upload_age``. Without the permission ``s3:ListBucketMultipartUploads`` only
    uploads that take less than ``late_arrival`` are safe; the log says so.

    Each sweep lists the whole prefix: one request per 1,000 objects, and one for the uploads.

    :param bucket_name: The bucket, without ``s3://``. Directory buckets (``--x-s3``) do not list in order
        and are refused; of access points, use the alias.
    :param aws_conn_id: The Airflow connection, which also holds the endpoint, role, proxies and botocore
        settings; ``None`` means boto's own search for credentials.
    :param region_name: Overrides the connection's region.
    :param verify: Overrides the connection's TLS verification: ``False``, or the path of a CA bundle.
    :param max_upload_age: Seconds, at least 0: multipart uploads begun longer ago are not watched for.
    :param request_payer: ``"requester"`` if the caller pays.
    :param expected_bucket_owner: The account that must own the bucket.

    See :class:`~airflow.providers.watermark.triggers.object_store.ObjectStoreTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "s3"
    version_name: ClassVar[str] = "etag"
    source_fields: ClassVar[tuple[str, ...]] = ("bucket_name", "prefix", "pattern", "exclude")

    bucket_name: str = ""
    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    verify: bool | str | None = None
    max_upload_age: float = 86400.0
    request_payer: str | None = None
    expected_bucket_owner: str | None = None

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
        self._client: S3Client | None = None
        self._resources = AsyncExitStack()
        self._order_is_known = False

    @property
    def source(self) -> str:
        """The prefix as a URI."""
        return f"s3://{self.bucket_name}/{self.prefix}"

    @property
    def where(self) -> str:
        """Name the bucket in an error."""
        return f"S3 bucket {self.bucket_name!r}"

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from _bucket_problems(self.bucket_name)
        for name in ("aws_conn_id", "region_name", "expected_bucket_owner"):
            yield from arguments.text(name, getattr(self, name), optional=True)
        verify: object = self.verify
        if verify == "" or not isinstance(verify, bool | str | None):
            yield f"verify={self.verify!r}: must be True, False, None or the path of a CA bundle"
        yield from arguments.number("max_upload_age", self.max_upload_age)
        if self.request_payer not in (None, "requester"):
            yield f"request_payer={self.request_payer!r}: must be 'requester' or None"

    # -- The client -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the Airflow connection and take the client that all its watchers share."""
        await super().open()
        account = Account(self.aws_conn_id, self.region_name, self.verify)
        try:
            self._client = await self._resources.enter_async_context(S3Client.use(account))
        except WatermarkError:
            raise
        except Exception as error:
            raise self._error("the client", error) from error

    async def close(self) -> None:
        """Give the client back."""
        self._client = None
        try:
            await self._resources.aclose()
        except Exception as error:  # noqa: BLE001 - it is gone anyway
            self.log.debug("The client could not be closed: %s", type(error).__name__)

    async def _call(self, operation: str, **kwargs: Any) -> dict[str, Any]:
        """Send a request; all errors become ours, here."""
        client = self._client
        assert client is not None  # noqa: S101 - it is open
        if self.expected_bucket_owner is not None:
            kwargs["ExpectedBucketOwner"] = self.expected_bucket_owner
        if self.request_payer is not None:
            kwargs["RequestPayer"] = self.request_payer
        try:
            answer: dict[str, Any] = await getattr(client.api, operation)(Bucket=self.bucket_name, **kwargs)
        except Exception as error:
            self.requests += _requests(getattr(error, "response", None))
            if _error_code(error) in _REFUSED:
                client.retire()
            raise self._error(operation, error) from error
        self.requests += _requests(answer)
        # A page for people, from a proxy, would be taken for an empty listing.
        if "IsTruncated" not in answer:
            msg = (
                f"S3 bucket {self.bucket_name!r}, connection {self.aws_conn_id!r}: the answer to {operation} "
                "is no page of a listing; something else may answer in S3's place, such as a proxy. It is "
                "tried again, and nothing is lost"
            )
            raise SourceError(msg)
        return answer

    def _error(self, operation: str, error: Exception) -> WatermarkError:
        """Wrap an error of boto's: what happened, where, and what to do."""
        code = _error_code(error)
        where = f"S3 bucket {self.bucket_name!r}, connection {self.aws_conn_id!r}: {operation} failed"
        if advice := _ADVICE.get(code):
            return ConfigurationError(f"{where} ({code}); {advice}")
        kind = ThrottledError if code in _THROTTLED else SourceError
        return kind(f"{where} ({code}); it is tried again, and nothing is lost")

    # -- The two questions ----------------------------------------------------------------------------

    async def get_high_watermark(self) -> HighWatermark:
        """Read S3's clock and the uploads in progress."""
        now, late = await self._uploads()
        return self.make_bounds(now, step=STEP, late=late)

    async def _uploads(self) -> tuple[datetime, list[tuple[str, datetime]] | None]:
        """
        List the uploads in progress.

        :return: S3's clock; and each upload's key and second, or ``None`` if they are not told.
        """
        pages = self._upload_pages()
        late: list[tuple[str, datetime]] = []
        stale = 0
        try:
            first = await anext(pages)
        except (ConfigurationError, SourceError) as error:
            code = _error_code(error.__cause__)
            if code not in _NO_UPLOAD_LISTS:
                raise
            self.say_once(
                "uploads",
                f"S3 does not list multipart uploads ({code}): uploads that take longer than "
                f"late_arrival={self.late_arrival:g} s may be lost. Allow s3:ListBucketMultipartUploads",
            )
            return await self.confirm_clock(await self.read_clock()), None
        self.say_once("uploads", False)  # noqa: FBT003
        now = await self.confirm_clock(self._date(first))
        oldest = now - timedelta(seconds=self.max_upload_age)
        page: dict[str, Any] | None = first
        while page is not None:
            for upload in page.get("Uploads", ()):
                key: str = upload["Key"]
                begun = upload["Initiated"].astimezone(UTC).replace(microsecond=0)
                if begun < oldest:
                    stale += 1
                elif self.wants(key):
                    late.append((key, begun))
            page = await anext(pages, None)
        self.say_once(
            "stale uploads",
            stale > 0
            and f"{stale} multipart uploads are older than max_upload_age={self.max_upload_age:g} s and are "
            "not watched for; abort them with a lifecycle rule, they also cost storage",
        )
        return now, late

    async def read_clock(self) -> datetime:
        """Read S3's clock with a small request."""
        return self._date(await self._call("list_objects_v2", Prefix=self.head, MaxKeys=1))

    def _date(self, answer: Mapping[str, Any]) -> datetime:
        return parse_date(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), "S3")

    async def _upload_pages(self) -> AsyncGenerator[dict[str, Any], None]:
        """List the uploads in progress, page by page, with keys as they are."""
        # Without url-encoding a control character in a key makes the answer unreadable. Other than for
        # listings of objects, botocore does not see to it; some servers ignore it.
        start: dict[str, str] = {}
        starts: list[dict[str, str]] = []
        while True:
            starts.append(start)
            page = await self._call("list_multipart_uploads", Prefix=self.head, EncodingType="url", **start)
            decode = unquote_plus if page.get("EncodingType") == "url" else str
            for upload in page.get("Uploads", ()):
                upload["Key"] = decode(upload["Key"])
            yield page
            if not page.get("IsTruncated"):
                return
            following = {}
            if page.get("NextKeyMarker"):
                following["KeyMarker"] = decode(page["NextKeyMarker"])
            if page.get("NextUploadIdMarker"):
                following["UploadIdMarker"] = page["NextUploadIdMarker"]
            if not following or following in starts:
                msg = f"S3 bucket {self.bucket_name!r}: the list of uploads breaks off; it is tried again"
                raise SourceError(msg)
            start = following

    async def list_page(
        self,
        keys: KeyRange,
        interest: Interest,
        *,
        token: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        """List a page, sending one request."""
        asked: dict[str, Any] = {"Prefix": keys.prefix}
        if token is not None:
            asked["ContinuationToken"] = token
        elif keys.after is not None and keys.after >= keys.prefix:
            # What sorts before the prefix says nothing, and older releases of MinIO would answer it with an
            # empty page, as if there were no more keys.
            asked["StartAfter"] = keys.after
        if limit is not None:
            asked["MaxKeys"] = limit
        with asking(interest, whole=not self._order_is_known):
            answer = await self._call("list_objects_v2", **asked)
        token = answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else None
        page: ScannedPage | None = answer.get(SCANNED)
        if page is not None:
            return Listing(
                objects=page.objects, first=page.first, last=page.last, count=page.count, token=token
            )
        found = [_listed(entry) for entry in answer.get("Contents", ())]
        if answer.get("KeyCount", 0) > len(found):
            msg = (
                f"{self.where}: a page of a listing tells of {answer['KeyCount']} keys and has {len(found)}; "
                "it is tried again, and nothing is lost"
            )
            raise SourceError(msg)
        return Listing(
            objects=found,
            first=found[0].key if found else None,
            last=found[-1].key if found else None,
            count=len(found),
            token=token,
        )

    async def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """List the prefix in key order."""
        async with aclosing(super().read_changes(sweep)) as pages:
            async for page in pages:
                yield page
        # All keys have been looked at. From now on a page's first and last one are, and its news: the others
        # were when they were news, or in that first sweep.
        self._order_is_known = True


def _listed(entry: Mapping[str, Any]) -> ListedObject:
    return ListedObject(
        key=entry["Key"],
        modified=entry["LastModified"].astimezone(UTC),
        size=entry["Size"],
        version=entry.get("ETag", "").strip('"'),
    )


def _requests(answer: Mapping[str, Any] | None) -> int:
    """Tell how many requests it took, those included that botocore sent again by itself."""
    return 1 + int(((answer or {}).get("ResponseMetadata") or {}).get("RetryAttempts", 0))


def _error_code(error: BaseException | None) -> str:
    """Name an error of boto's: S3's own code for it, or else its class. Its text may hold secrets."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        return str(answer.get("Error", {}).get("Code") or type(error).__name__)
    return type(error).__name__


def _bucket_problems(bucket: object) -> Iterator[str]:
    shown = f"bucket_name={bucket!r}"
    if not isinstance(bucket, str) or not bucket:
        yield f"{shown}: must be a bucket's name"
    elif "://" in bucket or "/" in bucket or bucket.startswith("arn:"):
        yield f"{shown}: must be a bucket's name alone, without 's3://' and without a prefix or an ARN"
    elif bucket.endswith("--x-s3"):
        yield f"{shown}: directory buckets do not list in key order and cannot be watched"
    elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", bucket):
        yield f"{shown}: must be a bucket's name: 3 to 255 letters, digits, dots, hyphens or underscores"
