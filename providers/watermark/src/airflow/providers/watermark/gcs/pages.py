"""Pages of a listing, as Google Cloud Storage writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing

__all__ = ["list_params", "read_page"]

MAX_KEY_BYTES: Final = 1024

_FIELDS: Final = "kind,items(name,timeCreated,generation,size),nextPageToken"


def list_params(keys: KeyRange, *, token: str | None = None, limit: int | None = None) -> dict[str, str]:
    """
    Say which page is asked for.

    Old versions and deleted objects are not: they would have to be asked for.
    """
    params = {"fields": _FIELDS, "prefix": keys.prefix, "prettyPrint": "false"}
    if keys.after is not None:
        params["startOffset"] = keys.after  # inclusive: read_page leaves the key itself out
    if keys.until is not None and len(keys.until.encode()) < MAX_KEY_BYTES:
        # Exclusive. What comes between a key and this is cut off elsewhere.
        params["endOffset"] = keys.until + "!"
    if limit is not None:
        params["maxResults"] = str(limit)
    if token is not None:
        params["pageToken"] = token
    return params


def read_page(body: bytes, keys: KeyRange, interest: Interest, where: str) -> Listing:
    """
    Read a page.

    :param body: JSON, as it was answered.
    :param keys: What was asked for.
    :param interest: Which objects to give; older ones cost no more than a look at their stamps.
    :param where: Names the store in an error.
    :raises SourceError: It is no page of a listing: an end where none is would lose what comes after it.
    """
    try:
        page = json.loads(body)
        if page["kind"] != "storage#objects":
            raise ValueError(page["kind"])  # noqa: TRY301 - to be told as the others are
        items = page.get("items", [])
        if items and items[0]["name"] == keys.after:
            del items[0]
        return Listing(
            objects=[_listed(item) for item in _of_interest(items, interest)],
            first=items[0]["name"] if items else None,
            last=items[-1]["name"] if items else None,
            count=len(items),
            token=page.get("nextPageToken") or None,
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        msg = (
            f"{where} answered with something that is no page of a listing ({type(error).__name__}); it is "
            "tried again"
        )
        raise SourceError(msg) from error


def _of_interest(items: list[dict[str, Any]], interest: Interest) -> list[dict[str, Any]]:
    """Leave out what is too old to be news, by comparing texts."""
    if interest.keys is None or not isinstance(interest.since, datetime):
        return items
    # To the second: Google writes fractions with three digits, and others with however many.
    since = interest.since.astimezone(UTC).isoformat()[: len("2026-03-01T12:00:00")]
    pending = frozenset(interest.keys)
    return [
        item
        for item in items
        if (stamp := item["timeCreated"]) >= since
        or stamp[-1] != "Z"
        or (pending and item["name"] in pending)
    ]


def _listed(item: Mapping[str, Any]) -> ListedObject:
    modified = datetime.fromisoformat(item["timeCreated"])
    if modified.tzinfo is not UTC:  # which it is, if a Z was written
        if modified.tzinfo is None:
            raise ValueError(modified)
        modified = modified.astimezone(UTC)
    return ListedObject(item["name"], modified, int(item["size"]), str(item["generation"]))
