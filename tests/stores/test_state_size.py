"""The state of a watcher stays small: it grows with what lands within ``late_arrival``, and not with time."""

from __future__ import annotations

from benchmarks.state_size import simulate


async def test_after_late_arrival_a_state_grows_no_more():
    minutes = await simulate(45, per_minute=100, max_seen=4096)
    assert minutes[-1].delivered == 4500
    assert 900 < minutes[-1].seen < 1100  # ten minutes of them
    assert minutes[-1].size < 50_000
    assert max(each.size for each in minutes[15:]) - min(each.size for each in minutes[15:]) < 200


async def test_max_seen_bounds_a_state_whatever_lands():
    minutes = await simulate(30, per_minute=100, max_seen=300)
    assert max(each.seen for each in minutes) == 300
    assert max(each.size for each in minutes) < 16_000
    assert minutes[-1].delivered > 1500  # what waits comes later
