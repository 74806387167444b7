"""How a mutant declares what it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)

FAILS: dict[str, frozenset[str]] = {}
"""What is meant to fail, by the name of the mutant's test class."""


def fails(*tests: str) -> Callable[[_Class], _Class]:
    """Declare which tests a mutant fails: those, and no other."""

    def declare(mutant: _Class) -> _Class:
        FAILS[f"Test{mutant.__name__}"] = frozenset(f"test_{test}" for test in tests)
        return mutant

    return declare
