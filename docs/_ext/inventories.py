"""
Small inventories for intersphinx, written from lists of names: `inventories/*.txt`.

The first line of a list is the address of the other project's documentation. Each other line is a name, its
type, and the page that describes it; a page that ends in `#` gets the name as its anchor.
"""

from __future__ import annotations

import zlib
from pathlib import Path

_HEADER = (
    "# Sphinx inventory version 2\n# Project: {}\n# Version: \n"
    "# The remainder of this file is compressed using zlib.\n"
)


def write_inventories(folder: Path, target: Path) -> dict[str, tuple[str, Path]]:
    """
    Write an inventory for each list.

    :param folder: Where the lists are.
    :param target: Where the inventories are written.
    :return: By the name of its list, each project's address and inventory.
    """
    target.mkdir(parents=True, exist_ok=True)
    written = {}
    for source in sorted(folder.glob("*.txt")):
        url, *lines = source.read_text().splitlines()
        entries = "".join(map(_entry, filter(None, lines)))
        file = target / f"{source.stem}.inv"
        file.write_bytes(_HEADER.format(source.stem).encode() + zlib.compress(entries.encode()))
        written[source.stem] = (url, file)
    return written


def _entry(line: str) -> str:
    name, kind, page = line.split()
    return f"{name} {kind} 1 {page}{'$' if page.endswith('#') else ''} -\n"
