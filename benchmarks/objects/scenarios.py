"""What is compared: scenarios, the clients in each, and the goals that ours has to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from benchmarks.objects.layouts import PER_TENANT, Layout
from benchmarks.objects.target import Target

Server = Literal["stub", "ministack", "fake-gcs-server"]
Figure = Literal["speed", "cpu", "hold", "cpu_hold", "memory", "requests"]

OURS: Final = "ours"
LATENCY: Final = 0.05
"""Seconds: what AWS takes for a page at its best, the network included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    How much is measured.

    :param objects: Objects in the large buckets.
    :param peers: Objects where every peer is measured: most of them take a minute for a million.
    :param watchers: How many watchers start together.
    :param real: Objects on a real server, which takes long to fill.
    :param repeats: How often all of it is done.
    """

    objects: int
    peers: int
    watchers: int
    real: int
    repeats: int


FULL: Final = Sizes(objects=1_000_000, peers=200_000, watchers=100, real=10_000, repeats=3)
QUICK: Final = Sizes(objects=100_000, peers=20_000, watchers=20, real=2_000, repeats=2)


@dataclass(frozen=True, slots=True)
class Contender:
    """
    A client in a scenario.

    :param path: Its class, as ``module:name`` in this package.
    :param options: Arguments of the class.
    :param venv: ``airflow``, or ``peers`` for what does not fit beside Airflow.
    """

    path: str
    options: dict[str, Any] = field(default_factory=dict)
    venv: Literal["airflow", "peers"] = "airflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    What a client has to reach.

    :param figure: Of what.
    :param client: Whose.
    :param kind: ``times``: so many times better than the baseline; ``share``: at most such a part of the
        baseline's; ``most``: at most so much; ``never``: not above that in any run.
    :param value: How much at least, or at most.
    :param stretch: The same, for those who are not content.
    """

    figure: Figure
    client: str = OURS
    kind: Literal["times", "share", "most", "never"] = "times"
    value: float
    stretch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    One comparison.

    :param name: Short, for the command line.
    :param title: For the report.
    :param target: What is listed; on a real server its address and times are filled in later.
    :param contenders: By their names; the first one is the baseline.
    :param server: Which one is asked.
    :param control: How the benchmark's own server is to answer.
    :param warm: How much a client does before it is measured: its ``first steps`` or the ``whole`` sweep.
    :param goals: For ours.
    """

    name: str
    title: str
    target: Target
    contenders: dict[str, Contender]
    server: Server = "stub"
    control: str = ""
    warm: Literal["first steps", "whole"] = "first steps"
    goals: tuple[Goal, ...] = ()

    @property
    def baseline(self) -> str:
        """The name of the client that the others are compared to."""
        return next(iter(self.contenders))


PAGINATOR: Final = {"aiobotocore paginator": Contender("s3_peers:AiobotocorePaginator")}
S3_PEERS: Final = {
    **PAGINATOR,
    "boto3 in a thread": Contender("s3_peers:Boto3"),
    "s3fs find": Contender("s3_peers:S3fs"),
    "dlt filesystem source, in a thread": Contender("s3_peers:DltFilesystem", venv="peers"),
    "Dagster get_objects, in a thread": Contender("s3_peers:DagsterHelper", venv="peers"),
    "Airflow S3Hook.list_keys, in a thread": Contender("s3_peers:AirflowS3Hook"),
    OURS: Contender("ours:S3Watcher"),
}
GCS_PEERS: Final = {
    "gcloud-aio list_objects": Contender("gcs_peers:GcloudAio"),
    "gcloud-aio list_blobs (names only)": Contender("gcs_peers:GcloudAioNames"),
    "google-cloud-storage in a thread": Contender("gcs_peers:GoogleCloudStorage"),
    OURS: Contender("ours:GCSWatcher"),
}


def scenarios(sizes: Sizes, day: datetime) -> list[Scenario]:
    """
    Give all scenarios.

    :param day: A day that is over, by UTC: around it all objects were written.
    """
    hive, small = Layout("hive", sizes.objects, day), Layout("hive", sizes.peers, day)
    tenants = Layout("tenants", PER_TENANT * sizes.watchers, day)
    dated = Layout("dated", sizes.objects, day)
    prefixes = [f"{tenants.prefix}tenant={number:03d}/" for number in range(sizes.watchers)]
    sessions = Contender("s3_peers:AiobotocoreWatchers", {"prefixes": prefixes})
    template = {"prefix": dated.prefix + "{%Y/%m/%d}/", "partition_lookback": 2 * 86400.0}
    return [
        Scenario(
            name="few",
            title=f"S3, a poll of {sizes.objects:,} objects of which {hive.news:,} are new",
            target=_target(hive),
            contenders={**PAGINATOR, OURS: S3_PEERS[OURS]},
            goals=(
                Goal(figure="cpu", value=30, stretch=60),
                Goal(figure="cpu_hold", kind="most", value=10, stretch=3),
                Goal(figure="hold", kind="most", value=10),
                Goal(figure="hold", kind="never", value=50),
                Goal(figure="memory", kind="most", value=16),
            ),
        ),
        Scenario(
            name="peers",
            title=f"S3, the same with {sizes.peers:,} objects and more peers",
            target=_target(small),
            contenders=S3_PEERS,
        ),
        Scenario(
            name="every",
            title=f"S3, {sizes.objects:,} objects that are all new and all delivered",
            target=_target(hive, all_new=True),
            contenders={**PAGINATOR, OURS: Contender("ours:S3Delivery")},
            goals=(
                Goal(figure="cpu", value=8, stretch=15),
                Goal(figure="memory", kind="most", value=16),
            ),
        ),
        Scenario(
            name="latency",
            title=f"S3, a poll of {sizes.objects:,} objects with 50 ms of latency",
            target=_target(hive),
            contenders={
                **PAGINATOR,
                "ours, concurrency 8": Contender("ours:S3Watcher", {"list_concurrency": 8}),
                "ours, concurrency 16": Contender("ours:S3Watcher", {"list_concurrency": 16}),
            },
            control=f"latency={LATENCY}",
            goals=(
                Goal(figure="speed", client="ours, concurrency 8", value=12),
                Goal(figure="speed", client="ours, concurrency 16", value=25),
                Goal(figure="requests", client="ours, concurrency 8", kind="share", value=1.05),
                Goal(figure="requests", client="ours, concurrency 16", kind="share", value=1.05),
            ),
        ),
        Scenario(
            name="together",
            title=f"S3, {sizes.watchers} watchers of {PER_TENANT:,} objects start together, 50 ms of latency",
            target=_target(tenants),
            contenders={
                "aiobotocore, a session each": sessions,
                OURS: Contender("ours:S3Watchers", {"prefixes": prefixes}),
            },
            control=f"latency={LATENCY}",
            goals=(
                Goal(figure="hold", value=50),
                Goal(figure="speed", value=20),
                Goal(figure="cpu", value=30),
                Goal(figure="memory", value=10),
            ),
        ),
        Scenario(
            name="dated",
            title=f"S3, a poll of a year of {sizes.objects:,} objects in partitions by the day",
            target=_target(dated),
            contenders={
                "ours, the whole prefix": Contender("ours:S3Watcher"),
                "ours, a prefix template": Contender("ours:S3Watcher", template),
            },
            goals=(Goal(figure="requests", client="ours, a prefix template", kind="share", value=0.05),),
        ),
        *(
            Scenario(
                name=f"gcs-{name}",
                title=f"GCS, a poll of {sizes.peers:,} objects, {name} answers",
                target=_target(small),
                contenders=GCS_PEERS,
                control=control,
                warm="whole",
                goals=(Goal(figure="cpu", value=value, stretch=stretch),),
            )
            for name, control, value, stretch in (("plain", "", 6, 10), ("gzip", "gzip=1", 4, 5))
        ),
        Scenario(
            name="ministack",
            title=f"S3, a poll of {sizes.real:,} objects on a real server (ministack)",
            target=_target(Layout("hive", sizes.real, day)),
            contenders=S3_PEERS,
            server="ministack",
        ),
        Scenario(
            name="fake-gcs-server",
            title=f"GCS, a poll of {sizes.real:,} objects on a real server (fake-gcs-server)",
            target=_target(Layout("hive", sizes.real, day)),
            contenders=GCS_PEERS,
            server="fake-gcs-server",
        ),
    ]


def _target(layout: Layout, *, all_new: bool = False) -> Target:
    return Target(
        endpoint="",
        bucket=layout.bucket,
        prefix=layout.prefix,
        small_prefix=layout.first_partition,
        since=None if all_new else layout.since,
        objects=layout.count,
        news=layout.count if all_new else layout.news,
    )
