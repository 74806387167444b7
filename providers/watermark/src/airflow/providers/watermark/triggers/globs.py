"""Globs over object keys."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["KeyFilter", "compile_glob"]

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """
    Compile a glob to a regular expression that matches a whole text, case and all.

    ``*`` and ``?`` match any characters, or one, but ``/``; ``**`` matches any characters; ``**/`` any
    folders, or none; ``[abc]``, ``[a-z]`` and ``[!abc]`` one character, never ``/``. All else is literal.

    :param pattern: The glob.
    """
    return re.compile("".join(_translate(token) for token in _TOKEN.findall(pattern)), re.DOTALL)


def _translate(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if len(token) > 1:
        negated = token[1] == "!"
        members = token[2:-1] if negated else token[1:-1]
        escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
        return f"(?!/)[{'^' if negated else ''}{escaped}]"
    return re.escape(token)


class KeyFilter:
    """
    Tells which keys a watcher wants.

    A glob without ``/`` is matched against a key's last segment, one with ``/`` against the whole key.

    :param pattern: What a key must match; ``None``: every key does.
    :param exclude: What it must not match.
    """

    def __init__(self, pattern: str | None, exclude: Iterable[str] = ()) -> None:
        self._pattern = None if pattern is None else _matcher(pattern)
        self._exclude = [_matcher(glob) for glob in exclude]

    def wants(self, key: str) -> bool:
        """Tell whether the key is wanted."""
        segment = key.rpartition("/")[2]
        if self._pattern is not None and not _matches(self._pattern, key, segment):
            return False
        return not any(_matches(matcher, key, segment) for matcher in self._exclude)


def _matcher(glob: str) -> tuple[re.Pattern[str], bool]:
    return compile_glob(glob), "/" in glob


def _matches(matcher: tuple[re.Pattern[str], bool], key: str, segment: str) -> bool:
    regex, whole = matcher
    return regex.fullmatch(key if whole else segment) is not None
