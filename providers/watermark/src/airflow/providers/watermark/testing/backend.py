"""What the contract suite needs of a store's backend, and keys that are hard to keep apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey

__all__ = ["COLLIDING", "KEY", "ODD_PARTS", "StoreBackend"]

KEY: Final = WatermarkKey("orders", "list", "q83vEjRWeJA")

ODD_PARTS: Final = (
    *(
        "a b",
        " a",
        "a ",
        "a/b",
        "/a",
        "a//b",
        "a:b",
        "a:",
        ":a",
        "a.b",
        "..",
        "a/../b",
        "a/./b",
        "a'b",
        'a"b',
        "a\\b",
        "a%2Fb",
    ),
    *("a%", "a_", "a\nb", "a\tb", "a?b#c", "s3://lake/a/", "{{ a }}", "null", "None", "0", "a+b", "a=b&c"),
    *(
        "\u00e9",
        "e\u0301",
        "日本",
        "\U0001f600",
        "password",
        "api_token_log",
        "x" * 299 + "y",
        "x" * 299 + "z",
    ),
)
COLLIDING: Final = (
    *(WatermarkKey("a:b", "c", "d"), WatermarkKey("a", "b:c", "d"), WatermarkKey("b", "c:a", "d")),
    *(WatermarkKey("a", "c", "b:d"), WatermarkKey("a/b", "c", "d"), WatermarkKey("a", "b/c", "d")),
    *(WatermarkKey("c", "a", "d"), WatermarkKey("a", "c", "d"), WatermarkKey("a", "d", "c")),
)


class StoreBackend(ABC):
    """Where a store keeps its watermarks; empty at first."""

    lacks: ClassVar[Mapping[str, str]] = {}
    """``"errors"``, ``"raw"``, ``"keys"``: what the backend or its store cannot do, each with the reason."""

    @abstractmethod
    def make_store(self) -> BaseWatermarkStore:
        """Make a store, as another process would: what was saved through one is seen by the next."""

    async def break_down(self) -> None:
        """Let each access fail from now on. Capability ``errors``."""
        raise NotImplementedError

    async def mend(self) -> None:
        """Undo :meth:`break_down`."""
        raise NotImplementedError

    async def plant(self, key: WatermarkKey, text: str) -> None:
        """Replace what is stored under a key, past the store. Capability ``raw``."""
        raise NotImplementedError
