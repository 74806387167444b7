"""What Google Cloud Storage looks like on the wire, for :mod:`devtools.gcs_stub`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import http
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

PARAMETERS = {
    *("prefix", "startOffset", "endOffset", "pageToken", "maxResults"),
    *("fields", "prettyPrint", "userProject"),
}
"""What ``objects.list`` may be asked; there is more at Google's."""


class Request(NamedTuple):
    """One line of the access log; the names of headers are in lower case."""

    path: str
    params: dict[str, str]
    headers: dict[str, str]


@dataclass(slots=True)
class Stored:
    """A live object."""

    created: float
    generation: int
    size: int
    metageneration: int = 1
    updated: float = 0.0

    def describe(self, name: str) -> dict[str, Any]:
        """Describe it as the API does."""
        return {
            "kind": "storage#object",
            "name": name,
            "size": str(self.size),
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "timeCreated": stamp(self.created),
            "updated": stamp(self.updated or self.created),
        }


@dataclass(slots=True, eq=False)
class Rule:
    """How to answer some requests wrongly: an error, or a fault by name."""

    kind: str
    times: int | None
    status: int = 200
    reason: str = ""
    seconds: float = 0


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An error to be answered."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


async def read(reader: asyncio.StreamReader) -> Request:
    """Read one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    await reader.readexactly(int(headers.get("content-length", 0)))
    path, _, query = first.split(" ")[1].partition("?")
    return Request(unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers)


def stamp(seconds: float) -> str:
    """Write a time as listings do: with milliseconds."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def phrase(status: int) -> str:
    """Name a status."""
    return http.HTTPStatus(status).phrase


def indent(params: Mapping[str, str]) -> int | None:
    """Tell how far JSON is to be indented."""
    return None if params.get("prettyPrint") == "false" else 2


def token(name: str, *, went: bool) -> str:
    """Return the token of the page that begins with a name."""
    return base64.urlsafe_b64encode(f"{'page' if went else 'next'}:{name}".encode()).decode()


def read_token(token: str | None, *, also_empty: bool) -> tuple[str, bool]:
    """Return where a page begins, and whether it is to be an empty one."""
    if token is None or token == "again":
        return "", also_empty
    with contextlib.suppress(binascii.Error, UnicodeError):
        kind, colon, name = base64.b64decode(token, altchars=b"-_", validate=True).decode().partition(":")
        if kind + colon in {"page:", "next:"}:
            return name, also_empty and kind == "next"
    raise Refusal(400, "invalid")


def select(page: dict[str, Any], fields: str | None) -> dict[str, Any]:
    """Keep the fields that were asked for: names, and ``items`` with names in parentheses."""
    if fields is None:
        return page
    match = re.fullmatch(r"(?:(?P<before>[\w,]+),)?items\((?P<items>[\w,]+)\)(?:,(?P<after>[\w,]+))?", fields)
    if match is None:
        raise Refusal(400, "invalidParameter")
    wanted = f"{match['before'] or ''},{match['after'] or ''}".split(",")
    inner = match["items"].split(",")
    chosen = {name: value for name, value in page.items() if name in wanted}
    if "items" in page:
        chosen["items"] = [{name: item[name] for name in inner} for item in page["items"]]
    return chosen
