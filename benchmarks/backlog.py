"""
Drain a backlog: how long it takes, what it does to the event loop and the memory, how large the state gets.

``python -m benchmarks.backlog [--objects N]`` serves N objects from the project's own S3 stub (a process of
its own) and drains them through Airflow's own ``SharedStreamManager``, with events confirmed in batches once
a second, as the triggerer's supervisor does. Half-way the watcher is cancelled, everything in memory is
dropped, and a new one goes on from the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from dataclasses import dataclass, field

from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.triggers.shared_stream import SharedStreamManager
from devtools.s3_servers import stub

TRIGGER_ID = 1


@dataclass
class Drain:
    """What came through."""

    ids: set[str] = field(default_factory=set)
    events: int = 0
    delivered: int = 0
    largest_event: int = 0
    longest_hold: float = 0.0


async def watch_the_loop(drain: Drain) -> None:
    """Find the longest time that the loop did not run this task, beyond its own nap."""
    nap = 0.001
    while True:
        before = time.monotonic()
        await asyncio.sleep(nap)
        drain.longest_hold = max(drain.longest_hold, time.monotonic() - before - nap)


async def consume(store: MemoryStore, drain: Drain, until: int) -> None:
    """Run a watcher as the triggerer does, until so many different objects have come."""
    trigger = S3PrefixTrigger(
        asset_name="backlog", bucket_name="lake", start_from="beginning", poll_interval=1.0
    )
    trigger.trigger_id = TRIGGER_ID
    trigger.make_store = lambda: store  # type: ignore[method-assign]
    manager = SharedStreamManager()
    key = trigger.shared_stream_key()
    stream = trigger.filter_shared_stream(manager.subscribe(trigger_id=TRIGGER_ID, trigger=trigger, key=key))
    unconfirmed: list[int] = []

    async def confirm() -> None:
        while True:
            await asyncio.sleep(1)
            manager.confirm_persisted(unconfirmed)
            unconfirmed.clear()

    confirming = asyncio.create_task(confirm())
    try:
        async for event in stream:
            seq = manager.bind_pending_event(trigger_id=TRIGGER_ID, key=key)
            if seq is not None:
                unconfirmed.append(seq)
            changes = event.payload["changes"]
            drain.events += 1
            drain.delivered += len(changes)
            drain.ids.update(change["id"] for change in changes)
            drain.largest_event = max(drain.largest_event, len(json.dumps(event.payload)))
            if len(drain.ids) >= until:
                break
    finally:
        confirming.cancel()
        await manager.unsubscribe(TRIGGER_ID, key)


async def measure(objects: int) -> None:
    """Drain, with a break half-way, and print the figures."""
    store, drain = MemoryStore(), Drain()
    watchdog = asyncio.create_task(watch_the_loop(drain))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.monotonic(), time.process_time()
    await consume(store, drain, objects // 2)
    state = {key: json.loads(text) for key, text in store._texts.items()}  # noqa: SLF001 - it is a measurement
    cursor = next(iter(state.values()))["cursor"]
    print(f"stopped after {drain.delivered} objects; the stored cursor is {cursor and cursor['value']!r}")
    at_break = drain.delivered
    await consume(store, drain, objects)
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    watchdog.cancel()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ids_bytes = len(drain.ids) * 100  # what this measurement itself keeps, roughly
    print(
        f"objects            {objects}\n"
        f"delivered          {len(drain.ids)} in {drain.events} events\n"
        f"largest event      {drain.largest_event} bytes\n"
        f"delivered again    {drain.delivered - len(drain.ids)} (after the break at {at_break})\n"
        f"lost               {objects - len(drain.ids)}\n"
        f"seconds            {seconds:.1f} ({cpu_seconds:.1f} CPU)\n"
        f"state              {max(map(len, store._texts.values()))} bytes\n"  # noqa: SLF001
        f"peak memory        +{grown / 1024:.0f} MiB ({ids_bytes / 2**20:.0f} of it for this count of ids)\n"
        f"longest loop hold  {drain.longest_hold * 1000:.0f} ms"
    )


def main() -> None:
    """Read the arguments, start the stub, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--objects", type=int, default=200_000)
    objects: int = parser.parse_args().objects
    with stub(objects=objects) as server:
        os.environ["AIRFLOW_CONN_AWS_DEFAULT"] = server.airflow_connection_json()
        asyncio.run(measure(objects))


if __name__ == "__main__":
    main()
