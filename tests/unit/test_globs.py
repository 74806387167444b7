"""Globs over object keys."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.triggers.globs import KeyFilter, compile_glob

# glob: (keys that are wanted, keys that are not)
TABLE = {
    # Without a slash: the key's last segment.
    "*.csv": (["a.csv", "x/y/a.csv", ".csv", "/.csv"], ["a.csv.gz", "a.CSV", "x.csv/a", "acsv", "x.csv/"]),
    "*": (["a", "x/y", "x/", ""], []),
    "?": (["a", "x/b", "é", "😀"], ["ab", "x/", ""]),
    "a?c": (["abc", "x/abc"], ["ac", "abbc"]),
    "part-*": (["part-", "x/part-1"], ["x/apart-1", "part-1/x"]),
    "data": (["data", "x/data"], ["data/x", "xdata", "data1"]),
    "**": (["a", "x/y"], []),
    # With a slash: the whole key.
    "x/*.csv": (["x/a.csv", "x/.csv"], ["a.csv", "x/y/a.csv", "y/x/a.csv", "x/a.csv/"]),
    "x/**": (["x/", "x/a", "x/y/z"], ["x", "ax/a"]),
    "**/x/*": (["x/a", "y/x/a", "y/z/x/a", "/x/a"], ["ax/a", "x/a/b", "yx/a"]),
    "**/*.csv": (["a.csv", "x/a.csv", "x/y/a.csv", "/a.csv"], ["a.csv/x", "a.json"]),
    "a/**/z": (["a/z", "a/b/z", "a/b/c/z", "a//z"], ["az", "a/bz", "b/a/z"]),
    "a**/b": (["a/b", "ax/y/b", "a//b"], ["ab", "b", "a/xb"]),
    "**a**/b": (["a/b", "xaxa/b"], ["xaxab"]),
    "a/**z": (["a/z", "a/bz", "a/b/z"], ["az"]),
    "/*": (["/a", "/"], ["a", "//a"]),
    "//a": (["//a"], ["/a", "a"]),
    "a/": (["a/"], ["a", "a/b"]),
    "x/?/z": (["x/y/z"], ["x//z", "x/yy/z"]),
    # Brackets.
    "[abc].csv": (["a.csv", "x/c.csv"], ["d.csv", "ab.csv", ".csv", "A.csv"]),
    "[a-c]1": (["a1", "b1", "c1"], ["d1", "-1"]),
    "[!a-c]1": (["d1", "-1", "é1", "\n1"], ["a1", "1"]),
    "[]x]": (["]", "x"], ["[", "[]x]"]),
    "[!]x]": (["a"], ["]", "x"]),
    "[-a]": (["-", "a"], ["b"]),
    "[a-]": (["-", "a"], ["b"]),
    "[a^]": (["a", "^"], ["b"]),
    "[^a]": (["^", "a"], ["b"]),
    "[\\w]": (["\\", "w"], ["x", "1"]),
    "[[:x]": (["[", ":", "x"], ["]"]),
    "[a&&b]": (["a", "b", "&"], ["c"]),
    "[a||b]": (["a", "b", "|"], ["c"]),
    "[a~~b]": (["a", "b", "~"], ["c"]),
    "[*?]": (["*", "?"], ["a"]),
    "[.]": (["."], ["a"]),
    "[": (["[", "x/["], ["a"]),
    "a[b": (["a[b"], ["ab"]),
    "[]": (["[]"], ["a", ""]),
    "[!]": (["[!]"], ["a"]),
    "x/[a/b]": (["x/a", "x/b"], ["x//", "x/c"]),
    "x[!a]y": (["xby"], ["x/y", "xay"]),
    "x[!a]y/z": (["xby/z"], ["x/y/z"]),
    # Everything else is literal.
    "a.b": (["a.b"], ["axb"]),
    "a+": (["a+"], ["aa", "a"]),
    "a|b": (["a|b"], ["a", "b"]),
    "(a)": (["(a)"], ["a"]),
    "a{1}": (["a{1}"], ["a"]),
    "^a$": (["^a$"], ["a"]),
    "\\d": (["\\d"], ["1"]),
    "\\*": (["\\", "\\a"], ["*"]),
    "a b": (["a b"], ["a+b", "a%20b"]),
    "a#b": (["a#b"], ["a"]),
    "é": (["é"], ["e\u0301", "e"]),
    "!a": (["!a"], ["b"]),
    # A newline is a character like others, and ends nothing.
    "*.txt": (["a\nb.txt", "\n.txt", "x\n/a.txt"], ["a.txt\n", "a.txt\nb"]),
    "a?b": (["a\nb"], ["ab"]),
    "a\n*": (["a\n", "a\nb"], ["a"]),
    "x\n/**": (["x\n/a\nb"], ["x/a"]),
    "***": (["a", "x/y"], []),
    "x/***": (["x/a", "x/a/b"], ["y/a"]),
    "**/**/a": (["a", "x/a", "x/y/a"], ["xa"]),
}


@pytest.mark.parametrize(
    ("glob", "key", "wanted"),
    [
        pytest.param(glob, key, wanted, id=f"{glob!a} {'wants' if wanted else 'leaves'} {key!a}")
        for glob, (wants, leaves) in TABLE.items()
        for wanted, keys in ((True, wants), (False, leaves))
        for key in keys
    ],
)
def test_a_glob_wants(glob, key, wanted):
    assert KeyFilter(glob).wants(key) is wanted


@pytest.mark.parametrize(
    ("pattern", "exclude", "wanted", "unwanted"),
    [
        (None, [], ["a", "x/y", ""], []),
        (None, ["*.tmp"], ["a"], ["a.tmp", "x/a.tmp"]),
        (
            "*.csv",
            ["_*", "**/old/**"],
            ["a.csv", "x/a.csv"],
            ["_a.csv", "x/_a.csv", "old/a.csv", "x/old/y/a.csv", "a"],
        ),
        ("*.csv", ["*"], [], ["a.csv"]),
        ("x/*", ["x/*"], [], ["x/a"]),
    ],
    ids=["nothing said", "an exclusion", "both", "all excluded", "the same"],
)
def test_exclusions_win_over_the_pattern(pattern, exclude, wanted, unwanted):
    keys = KeyFilter(pattern, exclude)
    assert all(keys.wants(key) for key in wanted)
    assert not any(keys.wants(key) for key in unwanted)


literal = st.text(st.characters(exclude_characters="*?[", exclude_categories=["Cs"]), min_size=1, max_size=20)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(literal, any_text)
def test_a_glob_without_wildcards_matches_exactly_itself(glob, other):
    regex = compile_glob(glob)
    assert regex.fullmatch(glob)
    assert (regex.fullmatch(other) is not None) == (other == glob)
    assert not regex.fullmatch(glob + "\n")


@given(st.text("ab/*?\n.", max_size=10), st.text("ab/\n.", max_size=12))
def test_a_glob_means_the_same_as_a_plain_matcher(glob, key):
    assert (compile_glob(glob).fullmatch(key) is not None) == plainly(glob, key)


def plainly(glob, key, before="/"):
    """Match without regular expressions, by the words of the documentation."""
    if not glob:
        return not key
    if glob.startswith("**/") and before == "/":
        rest = glob[3:]
        return plainly(rest, key) or any(
            plainly(rest, key[end + 1 :]) for end, char in enumerate(key) if char == "/"
        )
    if glob.startswith("**"):
        return any(plainly(glob[2:], key[start:], "*") for start in range(len(key) + 1))
    if glob.startswith("*"):
        segment = len(key.partition("/")[0])
        return any(plainly(glob[1:], key[start:], "*") for start in range(segment + 1))
    if not key or (glob[0] == "?" and key[0] == "/"):
        return False
    return glob[0] in ("?", key[0]) and plainly(glob[1:], key[1:], glob[0])


@pytest.mark.parametrize(
    ("glob", "inside"), [("[+--]", "+,-"), ("[--0]", "-.0"), ("[a--b]", None), ("[?--]", None)]
)
def test_hyphens_in_brackets_are_ends_of_ranges_without_a_warning(glob, inside):
    with contextlib.suppress(re.error):
        regex = compile_glob(glob)
        assert inside is not None
        assert all(map(regex.fullmatch, inside))


@given(any_text)
def test_every_text_is_a_glob_or_an_error_of_regular_expressions(glob):
    with contextlib.suppress(re.error):
        compile_glob(glob)


@given(st.text("ab*?[]!-^\\/", max_size=12), st.text("ab-^]\\/", max_size=12))
def test_a_single_wildcard_never_crosses_a_slash(glob, key):
    if "**" in glob or "/" in glob:
        return
    try:
        regex = compile_glob(glob)
    except re.error:
        return
    assert "/" not in key or not regex.fullmatch(key)


@pytest.mark.parametrize(
    "glob",
    [
        "*" * 30 + "b",
        "**/" * 12 + "b",
        "*a" * 12 + "b",
        "**a" * 12 + "b",
        "**/a*" * 9 + "b",
        "**a*" * 9 + "b",
    ],
)
@pytest.mark.parametrize("key", ["a" * 1024, "a/" * 512, "aa/" * 341], ids=["flat", "deep", "both"])
def test_no_glob_holds_the_loop(glob, key):
    regex = compile_glob(glob)
    began = time.monotonic()
    assert not regex.fullmatch(key)
    assert time.monotonic() - began < 1
