"""Objects that land all the time, while something else is done."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from devtools.background import Background

if TYPE_CHECKING:
    from devtools.ledger import Ledger


class Dropper(Background):
    """Puts objects all the time: mostly new ones, at times a crowd at once, at times one again.

    :param ledger: nobody else puts anything into it while the thread runs
    :param seed: fixes what is put, and how long it waits between
    :param rate: how often a second something is put, on average
    """

    def __init__(self, ledger: Ledger, seed: int, *, rate: float = 3) -> None:
        super().__init__("dropper")
        self._ledger = ledger
        self._random = random.Random(seed)
        self._rate = rate
        self._numbers = itertools.count()

    def work(self) -> None:
        """Put objects until told that it is enough."""
        while not self.enough.wait(self._random.expovariate(self._rate)):
            self._put_some()

    def _put_some(self) -> None:
        overwrite = self._ledger.keys and self._random.random() < 0.15
        crowd = 25 if self._random.random() < 0.03 else 1
        for _ in range(1 if overwrite else crowd):
            number = next(self._numbers)
            # Keys do not sort by time: most land somewhere before those of earlier sweeps.
            new = f"in/{self._random.randrange(1000):03}/{number}.csv"
            key = self._random.choice(self._ledger.keys) if overwrite else new
            self._ledger.put(key, f"version {number}".encode())
