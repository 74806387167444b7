"""
From listed objects to changes: a page at a time.

A backlog may have millions of objects, all of which are delivered: what they have in common is made once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from airflow.providers.watermark.change import Change, change_ids
from airflow.providers.watermark.objects.listing import ListedObject
from airflow.providers.watermark.position import format_timestamps

__all__ = ["object_changes"]

_ENTRY_BYTES: Final = len('{"id": "5KagV3R5srQ", "key": "", "size": , "": "", "last_modified": ""}')
"""Bytes of JSON that a change takes beside what is different in each."""


def object_changes(
    found: Sequence[ListedObject],
    version_name: str,
    is_stray: Callable[[str, datetime], bool] | None = None,
) -> list[Change]:
    """
    Make changes of listed objects.

    :param found: In key order.
    :param version_name: What consumers know a version as, such as ``etag``.
    :param is_stray: Tells by its key and time whether an object is a stray; ``None``: none is.
    """
    if not found:
        return []
    keys, times, _, versions = zip(*found, strict=True)
    stamps = format_timestamps(times)
    names = change_ids(keys, versions, "timestamp", stamps)
    # JSON writes most texts as they are. If it does so with all of these, the bytes of each are known by its
    # length; if not, they are left to be counted one by one.
    texts = "".join((version_name, *keys, *versions))
    is_plain = len(json.dumps(texts)) == len(texts) + len('""')
    changes = []
    for (key, time, size, version), name, stamp in zip(found, names, stamps, strict=True):
        detail = {"key": key, "size": size, version_name: version, "last_modified": stamp}
        width = _ENTRY_BYTES + len(key) + len(str(size)) + len(version_name) + len(version) + len(stamp)
        change = Change(
            identity=key,
            version=version,
            position=time,
            detail=detail,
            stray=is_stray is not None and is_stray(key, time),
            id=name,
            size=width if is_plain else None,
        )
        changes.append(change)
    return changes
