"""The servers that are asked: the benchmark's own, and real ones with objects in them."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from benchmarks.objects.layouts import NEW_EVERY, Layout
from benchmarks.objects.scenarios import Scenario
from benchmarks.objects.target import Target
from devtools import s3_servers
from devtools.gcs_servers import fake_gcs

_UPLOADERS = 4
_START_TIMEOUT = 30.0
_SETTLED = 2.5
"""Seconds after which an object is no longer stamped with the current second."""


@contextlib.contextmanager
def stub() -> Iterator[str]:
    """Run the benchmark's own server, and give its address."""
    port = s3_servers.free_port()
    command = [sys.executable, "-m", "benchmarks.objects.server", f"--port={port}"]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + _START_TIMEOUT
            while True:
                with contextlib.suppress(urllib.error.URLError):
                    get(f"{address}/_counts")
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the benchmark's server does not answer")
                time.sleep(0.05)
            yield address
        finally:
            process.kill()


@contextlib.contextmanager
def targets(scenarios: Sequence[Scenario]) -> Iterator[dict[str, Target]]:
    """Run the servers that the scenarios ask, filled, and say where each scenario's target is."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Target] = {}
        if any(scenario.server == "stub" for scenario in scenarios):
            address = stack.enter_context(stub())
            for scenario in scenarios:
                if scenario.server == "stub":
                    found[scenario.name] = dataclasses.replace(scenario.target, endpoint=address)
                    if not scenario.name.startswith("gcs"):  # rendering it takes a while
                        get(f"{address}/{scenario.target.bucket}?list-type=2&max-keys=1&encoding-type=url")
        for scenario in scenarios:
            if scenario.server != "stub":
                found[scenario.name] = stack.enter_context(_real(scenario))
        yield found


def get(address: str) -> bytes:
    """Ask something."""
    with urllib.request.urlopen(address, timeout=600) as answer:
        body: bytes = answer.read()
    return body


@contextlib.contextmanager
def _real(scenario: Scenario) -> Iterator[Target]:
    bucket = scenario.target.bucket
    if scenario.server == "ministack":
        with s3_servers.ministack() as s3:
            client: Any = s3.client()
            client.create_bucket(Bucket=bucket)
            yield _fill(
                dataclasses.replace(scenario.target, endpoint=s3.endpoint_url),
                lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"x"),
            )
    else:
        with fake_gcs() as gcs:
            gcs.create_bucket(bucket)
            yield _fill(
                dataclasses.replace(scenario.target, endpoint=gcs.endpoint_url),
                lambda key: gcs.put(bucket, key, b"x"),
            )


def _fill(target: Target, put: Callable[[str], object]) -> Target:
    """Store a layout's old objects, then its new ones, with a moment in between."""
    layout = Layout.of(target.bucket)
    new = {number for number in range(layout.count) if number % NEW_EVERY == NEW_EVERY - 1}
    with ThreadPoolExecutor(_UPLOADERS) as pool:
        list(pool.map(put, (layout.key(number) for number in range(layout.count) if number not in new)))
        time.sleep(_SETTLED)
        since = datetime.now(UTC)
        time.sleep(_SETTLED)
        list(pool.map(put, map(layout.key, sorted(new))))
    time.sleep(_SETTLED)
    return dataclasses.replace(target, since=since, news=len(new))
