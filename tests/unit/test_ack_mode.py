"""The shared streams' ack mode (Airflow 3.3 and later): which acknowledgements count."""

from __future__ import annotations

import asyncio

import pytest

from airflow.providers.watermark import delivery
from airflow.providers.watermark.delivery import AckModeProducer, Emission
from airflow.providers.watermark.watermark import WatermarkState
from tests.unit.committing import (
    DELAY,
    SOURCE,
    Store,
    committed,
    in_flight,
    make_committer,
    running,
    started,
)

shared_stream = pytest.importorskip("airflow.triggers.shared_stream", reason="new in Airflow 3.3")
AdvanceItem, AdvanceOutcome = shared_stream.AdvanceItem, shared_stream.AdvanceOutcome


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def committer(store):
    return make_committer(store)


OUTCOMES = {
    "stored": (AdvanceOutcome(acked=1, failed=0), True),
    "failed": (AdvanceOutcome(acked=0, failed=1), False),
    "stored and failed": (AdvanceOutcome(acked=1, failed=1), False),
    "rejected": (AdvanceOutcome(acked=0, failed=0, rejected=1), False),
    "without a subscriber": (AdvanceOutcome(acked=0, failed=0), False),
}


@pytest.mark.parametrize(("outcome", "counts"), OUTCOMES.values(), ids=OUTCOMES)
async def test_only_a_clean_outcome_counts(committer, store, outcome, counts):
    async def nothing():
        return
        yield

    await started(committer)
    producer = AckModeProducer(nothing(), committer)
    (first,) = await in_flight(committer, 1)
    async with running(committer):
        await producer.advance([AdvanceItem(first, outcome)])
        if counts:
            await committed(store, 1)
        else:
            await asyncio.sleep(2 * DELAY)
            assert await store.low() == 0
            assert committer.head is None


async def test_the_stream_gives_each_payload_with_its_emission_and_closes_the_watch(committer):
    closed = []
    emissions = [Emission({"n": 1}, WatermarkState(source=SOURCE, low=1)), Emission(None, None)]

    async def watch():
        try:
            for emission in emissions:
                yield emission
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    stream = AckModeProducer(watch(), committer).open_stream()
    assert [await anext(stream), await anext(stream)] == [({"n": 1}, emissions[0]), (None, emissions[1])]
    await stream.aclose()
    assert closed == [True]


async def test_the_limit_is_far_below_what_a_subscribers_queue_holds():
    assert 4 * delivery.MAX_UNACKNOWLEDGED < shared_stream.DEFAULT_SUBSCRIBER_QUEUE_MAX
