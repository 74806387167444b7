"""A file system that is easily filled: it is mounted, which takes a privilege."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNT = ("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "watermarks")


@functools.cache
def problem() -> str | None:
    """Tell why nothing can be mounted here, or None if it can."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*_MOUNT, folder], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()
        _unmount(folder)
    return None


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB, with a folder ``kept`` in it: the store takes no mount point itself."""
    subprocess.run([*_MOUNT, str(folder)], check=True)
    try:
        (folder / "kept").mkdir()
        yield folder
    finally:
        _unmount(folder)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Leave no room meanwhile."""
    filling = folder / "filling"
    try:
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield
    finally:
        filling.unlink()


def _unmount(folder: str | Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
