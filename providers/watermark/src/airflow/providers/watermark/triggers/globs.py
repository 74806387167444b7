"""Globs over object keys."""

from __future__ import annotations

import re
import warnings
from collections.abc import Container, Iterable, Iterator

__all__ = ["KeyFilter", "compile_glob", "glob_problems"]

_TOKEN = re.compile(r"(?<![^/])\*\*/|\*\*|\*|\?|\[!?+\]?+[^\]]*\]|.", re.DOTALL)

# How the folders that a wildcard crosses are matched: first as few as possible, then more.
_DEEP = {"**": ".*?", "**/": "(?:.*?/)??"}


def compile_glob(pattern: str) -> re.Pattern[str]:
    """
    Compile a glob to a regular expression that matches a whole text, case and all.

    ``*`` and ``?`` match any characters, or one, but ``/``; ``**`` matches any characters; ``**/``, where a
    folder's name could begin, any folders, or none; ``[abc]``, ``[a-z]`` and ``[!abc]`` one character, never
    ``/``. All else is literal.

    The time of a match is bounded by the square of the text's length, whatever the glob: what stands between
    two wildcards is matched at the first place where it can be, and never tried again at another one, since
    the second wildcard takes up whatever that leaves. Only the last wildcards have to try.

    :param pattern: The glob.
    """
    head, *deep = _split(_TOKEN.findall(pattern), _DEEP)
    parts = [_chunk(head[1], last=not deep)]
    for number, (wildcard, tokens) in enumerate(deep, 1):
        last = number == len(deep)
        regex = _DEEP[wildcard] + _chunk(tokens, last=last)
        parts.append(regex if last else f"(?>{regex})")
    with warnings.catch_warnings():
        # Two hyphens in brackets may mean something else in regular expressions to come: they have none here.
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile("".join(parts), re.DOTALL)


def _split(tokens: Iterable[str], wildcards: Container[str]) -> list[tuple[str, list[str]]]:
    """Split tokens at wildcards: each with what follows it; what comes before the first has none."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for token in tokens:
        if token in wildcards:
            parts.append((token, []))
        else:
            parts[-1][1].append(token)
    return parts


def _chunk(tokens: Iterable[str], *, last: bool) -> str:
    """Translate tokens without ``**``."""
    head, *stars = _split(tokens, ("*",))
    regexes = ["".join(map(_translate, literals)) for _, literals in stars]
    if last and regexes:
        *regexes, tail = regexes
        end = f"[^/]*{tail}"
    else:
        end = ""
    return "".join([*map(_translate, head[1]), *(f"(?>[^/]*?{regex})" for regex in regexes), end])


def _translate(part: str) -> str:
    if part == "?":
        return "[^/]"
    if len(part) > 1:
        negated = part[1] == "!"
        members = part[2:-1] if negated else part[1:-1]
        escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
        return f"(?!/)[{'^' if negated else ''}{escaped}]"
    return re.escape(part)


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


def glob_problems(name: str, glob: object) -> Iterator[str]:
    """
    Find what is wrong with a glob; what is no text is left to others.

    :param name: The argument's name.
    :param glob: Its value.
    """
    if not isinstance(glob, str):
        return
    if "://" in glob:
        yield f"{name}={glob!r}: must match keys, without the bucket"
    if re.search(r"\{[^}]*,[^}]*\}", glob):
        yield f"{name}={glob!r}: braces mean nothing in globs; use several watchers, or exclude"
    try:
        compile_glob(glob)
    except re.error as error:
        yield f"{name}={glob!r}: is no valid glob ({error})"
