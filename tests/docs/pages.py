"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
)

_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<word>file|not run|run by): (?P<note>[^\n]+?) -->\n(?: *\n)?(?P=indent))?"
    r"```(?P<language>[a-z]+)\n(?P<code>.*?)\n(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    :param page: The file that it is in.
    :param line: The line of its fence.
    :param language: What is written behind the fence.
    :param code: Its text, not indented.
    :param word: ``file``, ``not run``, ``run by``, or empty: what the comment above it says.
    :param note: The comment's text: the name of a file, the reason, or the name of a test.
    """

    page: Path
    line: int
    language: str
    code: str
    word: str
    note: str

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """Find the code in a page: all of it, or that in some languages."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        code = "\n".join(line.removeprefix(indent) for line in match["code"].splitlines())
        line = text.count("\n", 0, match.start("language")) + 1
        note = (match["note"] or "").strip()
        if not languages or match["language"] in languages:
            found.append(Block(page, line, match["language"], code + "\n", match["word"] or "", note))
    return found


def all_blocks(*languages: str) -> list[Block]:
    """Find the code in all pages."""
    return [block for page in PAGES for block in blocks_of(page, *languages)]


def write_files(page: Path, folder: Path) -> list[Path]:
    """Write the files that a page shows; what it says of one in several places is put together.

    :return: The files.
    """
    texts: dict[str, list[str]] = {}
    for block in blocks_of(page):
        if block.word == "file":
            texts.setdefault(block.note, []).append(block.code)
    for name, parts in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(parts))
    return [folder / name for name in texts]
