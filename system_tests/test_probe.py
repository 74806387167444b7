"""What the run of hundreds of watchers is judged by, with figures that must pass and such that must not."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest

from system_tests.probe import TICK, Line, LoopProbe, Moment, coverage, growth, longest, was_queued
from system_tests.scale import LARGEST_GROWTH, Key, Run, is_forgiven, is_of_loop, warnings, written_at

pytestmark = pytest.mark.quick

BEGAN = 1_800_000_000.0
_BLOCKED = (
    "2027-01-15T08:{:02}:{:02}.500000Z [info     ] Triggerer's async thread was blocked for {:.2f} seconds, "
    "exceeding the configured warning threshold of 0.20 seconds. [airflow.jobs.triggerer_job_runner]"
)
"""BEGAN is 2027-01-15T08:00:00Z."""
_OTHER = "2027-01-15T08:00:01.000000Z [warning  ] The watermark cannot be saved [airflow.providers]"
_FIRED = "2027-01-15T08:00:01.000000Z [info     ] Trigger fired event [airflow.jobs.triggerer_job_runner]"


def _moments(*sleeps: tuple[float, float, float]) -> list[Moment]:
    """Return moments of sleeps.

    :param sleeps: of each by how much it was late, for how long it was queued, and what was collected
    """
    found = [Moment(100.0, 7.0, 3.0)]
    for late, queued, collected in sleeps:
        last = found[-1]
        found.append(Moment(last.at + TICK + late, last.queued + queued, last.collected + collected))
    return found


def _lines(seconds: int = 600, *, every: float = 1.005, growing: float = 0.0, seed: int = 1) -> list[Line]:
    """Return a quiet probe's lines: memory fills up in the first half, and then shakes by 0.2 MB.

    :param growing: MB a minute, all the time
    """
    dice = random.Random(seed)
    lines = []
    for number in range(1, int(seconds / every) + 1):
        passed = number * every
        memory = 290 + 3 * min(1.0, 2 * passed / seconds) + growing * passed / 60 + dice.uniform(-0.2, 0.2)
        lines.append({"at": BEGAN + passed, "queued": 0.002, "held": 0.001, "memory": memory * 1e6})
    return lines


class TestLongest:
    """The figures of one second."""

    def test_a_collection_explains_its_own_sleep_only(self) -> None:
        """A hold of ours stays one, though more was collected in the same second."""
        found = longest(_moments((0.09, 0.0, 0.0), (0.08, 0.0, 0.08)))
        assert found["held"] == found["own"] == pytest.approx(0.09)
        assert found["collected"] == pytest.approx(0.08)

    def test_a_collection_that_held_the_loop_is_not_ours(self) -> None:
        """It counts as a hold all the same."""
        found = longest(_moments((0.08, 0.0, 0.075)))
        assert found["held"] == pytest.approx(0.08)
        assert found["own"] == pytest.approx(0.005)

    def test_a_queue_explains_its_own_sleep_only(self) -> None:
        """The processors were taken in one sleep, and we held the loop in another."""
        found = longest(_moments((0.2, 0.2, 0.0), (0.12, 0.0, 0.0)))
        assert found["late"] == pytest.approx(0.2)
        assert found["held"] == pytest.approx(0.12)

    def test_nothing_is_below_zero(self) -> None:
        """A sleep that ended a little early, queued before it should have ended."""
        found = longest(_moments((-0.001, 0.003, 0.002)))
        assert found["late"] == found["held"] == found["own"] == 0


async def test_the_probe_sees_a_call_that_blocks(tmp_path: Path) -> None:
    """Whoever sleeps does not wait for a processor: it is held for 0.15 seconds, however busy a machine."""
    path = tmp_path / "probe.jsonl"

    async def probe() -> None:
        async for _ in LoopProbe(str(path)).run():
            pass

    task = asyncio.create_task(probe())
    await asyncio.sleep(0.1)
    time.sleep(0.15)  # noqa: ASYNC251 - as a bad trigger would
    await asyncio.sleep(2)
    task.cancel()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert max(line["own"] for line in lines) >= 0.15 - TICK
    assert all(line["late"] >= line["held"] >= line["own"] >= 0 for line in lines)
    assert all(line["memory"] > 1e6 for line in lines)


class TestCoverage:
    """The share of the time of which lines tell."""

    def test_a_line_each_second(self) -> None:
        """Each comes a little later than a second after the one before."""
        assert coverage(_lines(), BEGAN, BEGAN + 600) == pytest.approx(1)

    def test_a_loop_that_is_held_for_long(self) -> None:
        """One line tells of a hold of a minute."""
        lines = [line for line in _lines() if not BEGAN + 200 < line["at"] < BEGAN + 260]
        assert coverage(lines, BEGAN, BEGAN + 600) == pytest.approx(0.9, abs=0.005)

    def test_seconds_without_a_line_here_and_there(self) -> None:
        """Two of three are left: none is next to another but one."""
        lines = [line for number, line in enumerate(_lines()) if number % 3]
        assert coverage(lines, BEGAN, BEGAN + 600) < 0.4

    @pytest.mark.parametrize("lines", [[], _lines()[:300], _lines()[300:]], ids=["never", "ended", "late"])
    def test_a_probe_that_did_not_run(self, lines: list[Line]) -> None:
        """It is no better for lines before and after the time."""
        others = [{"at": BEGAN - 5.0}, {"at": BEGAN + 605.0}]
        assert coverage([*others, *lines], BEGAN, BEGAN + 600) < 0.51


class TestGrowth:
    """The growth of memory, in bytes a minute."""

    @pytest.mark.parametrize("seed", range(5))
    def test_a_process_that_warms_up(self, seed: int) -> None:
        """What the first half took is no leak, nor is what a run without a leak was seen to take later."""
        assert growth(_lines(growing=0.33, seed=seed)) < LARGEST_GROWTH * 1e6

    def test_a_single_peak(self) -> None:
        """It came, and it went."""
        lines = _lines()
        lines[-20]["memory"] += 20e6
        assert abs(growth(lines)) < 0.1e6

    @pytest.mark.parametrize("seed", range(5))
    def test_a_leak_of_a_kilobyte_a_poll(self, seed: int) -> None:
        """A thousand polls a minute leave a megabyte; in ten minutes that is 3 % of all."""
        found = growth(_lines(growing=1.0, seed=seed))
        assert found == pytest.approx(1e6, rel=0.1)
        assert found > LARGEST_GROWTH * 1e6


class TestWarnings:
    """The triggerer's log."""

    def test_what_counts(self) -> None:
        """The watchdog speaks at the level of information."""
        blocked = _BLOCKED.format(0, 1, 0.25)
        known = _OTHER.replace("The watermark cannot be saved", "Skipping masking for a secret as it's short")
        log = f"{_FIRED}\n{blocked}\n\nTraceback\n{_OTHER}\n{known}\n"
        assert warnings(log) == [blocked, _OTHER]
        assert [is_of_loop(line) for line in warnings(log)] == [True, False]
        assert written_at(blocked) == BEGAN + 1.5

    @pytest.mark.parametrize("off", [-1, 0, 1])
    def test_forgiven_if_the_processors_were_taken(self, off: int) -> None:
        """By 0.13 of the 0.15 seconds that the watchdog came too late, in a second next to the warning."""
        lines = _lines()
        lines[100 + off]["queued"] = 0.13
        assert is_forgiven(_BLOCKED.format(1, 41, 0.25), lines)

    @pytest.mark.parametrize(
        ("number", "queued"), [(100, 0.07), (90, 0.5), (110, 0.5)], ids=["too little", "before", "after"]
    )
    def test_not_forgiven_without_evidence(self, number: int, queued: float) -> None:
        """The processors were not taken for half of the time, or at another time."""
        lines = _lines()
        lines[number]["queued"] = queued
        assert not is_forgiven(_BLOCKED.format(1, 41, 0.25), lines)

    def test_a_hold_of_ours_is_not_forgiven(self) -> None:
        """The loop was held by 0.15 seconds, while nobody else wanted the processors."""
        lines = _lines()
        lines[100]["held"] = 0.15
        assert not is_forgiven(_BLOCKED.format(1, 41, 0.25), lines)

    def test_no_other_warning_is_forgiven(self) -> None:
        """However long the processors were taken."""
        lines = _lines()
        lines[0]["queued"] = 5.0
        assert not is_forgiven(_OTHER, lines)
        assert was_queued(lines, written_at(_OTHER), 5.0)


def test_a_run() -> None:
    """Delays are those of first deliveries; what was never delivered has none."""
    made: dict[Key, float] = {("s3_0", "a"): BEGAN + 1, ("gcs_1", "b"): BEGAN + 2, ("s3_3", "c"): BEGAN + 700}
    run = Run(
        began=BEGAN,
        ended=BEGAN + 600,
        stopped=BEGAN + 710,
        made=made,
        delivered={("s3_0", "a"): [BEGAN + 4, BEGAN + 90], ("s3_3", "c"): [BEGAN + 699.9]},
        measured=[{"at": BEGAN - 1}, *_lines(5)],
        log="",
    )
    assert sorted(run.delays) == [0.0, 3.0]
    assert run.paced == {"s3": 1, "gcs": 1}
    assert run.during == _lines(5)
