"""Work that goes on in a thread, while something else is done."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(threading.Thread, ABC):
    """Works until told that it is enough: a context manager.

    :param name: of the thread
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.enough = threading.Event()
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.enough.set()
        self.join()

    def run(self) -> None:
        """Work, and keep what ends it."""
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - it is raised again where it is noticed
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """Work until ``enough`` is set."""

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error is not None:
            raise self._error
