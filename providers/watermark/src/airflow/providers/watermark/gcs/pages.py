"""Pages of a listing, as Google Cloud Storage writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing

__all__ = ["list_params", "read_page"]

MAX_KEY_BYTES: Final = 1024

_FIELDS: Final = "kind,items(name,timeCreated,generation,size),nextPageToken"

# A page as the service writes it, in bytes.
_HEAD: Final = re.compile(
    rb'\{"kind": ?"storage#objects", ?(?:"nextPageToken": ?"([^"]*)", ?)?"items": ?\[(?=\{"name":"([^"]+)",)'
)
_TAIL: Final = re.compile(rb'\{"name":"([^"]+)",[^][{}]*(\}\])(?:, ?"nextPageToken": ?"([^"]*)")?\}\s*')
_NAME: Final = b'{"name":"'
_TIME: Final = b'"timeCreated":"'
_STAMP: Final = b'0000-00-00T00:00:00.000Z"'
_MANY: Final = 50
"""Items of interest on a page, from which on it is parsed sooner as a whole than one by one."""

_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")


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
        if (old := _skim(body, keys, interest)) is not None:
            return old
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


def _skim(body: bytes, keys: KeyRange, interest: Interest) -> Listing | None:
    """
    Read a page with little news, of which only the stamps are looked at: a JSON parser takes longer.

    :return: ``None``: it has much news, or is unusual in some way, and a parser says what it is.
    :raises ValueError: A name is no UTF-8.
    """
    # Without escapes a string ends at its first quote, so what looks like a field's name and colon is one.
    if b"\\" in body or interest.keys is None or interest.keys or not isinstance(interest.since, datetime):
        return None
    head, tail = _HEAD.match(body), _TAIL.fullmatch(body, max(body.rfind(_NAME), 0))
    if head is None or tail is None or None not in (head[1], tail[3]):
        return None
    stamps = [part[: len(_STAMP)] for part in body.split(_TIME)[1:]]
    count = body.count(b"},{") + 1
    if len(stamps) != count or b"".join(stamps).translate(_DIGITS) != _STAMP * count:
        return None
    since = interest.since.astimezone(UTC).isoformat()[: len("2026-03-01T12:00:00")].encode()
    first, last, token = head[2].decode(), tail[1].decode(), (head[1] or tail[3] or b"").decode()
    fresh = [index for index, stamp in enumerate(stamps) if stamp >= since]
    if len(fresh) > _MANY or first == keys.after:
        return None
    texts = body[head.end() + 1 : tail.start(2)].split(b"},{") if fresh else []
    items = [json.loads(b"{%b}" % texts[index]) for index in fresh]
    if any(
        item["timeCreated"] != stamps[index][:-1].decode() for index, item in zip(fresh, items, strict=True)
    ):
        return None
    return Listing(
        objects=list(map(_listed, items)), first=first, last=last, count=count, token=token or None
    )


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
