"""What the benchmark of listings rests on: its server lists correctly, and its figures mean what they say."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import boto3
import pytest
from botocore.config import Config

from benchmarks.objects.layouts import KEY_LENGTH, Layout
from benchmarks.objects.scenarios import FULL, OURS, QUICK, Goal, scenarios
from benchmarks.objects.server import Handler, Server
from benchmarks.objects.summary import judge, ratio

DAY = datetime(2026, 1, 31, tzinfo=UTC)
BUCKET = Layout("hive", 3500, DAY)
KEYS = [BUCKET.key(number) for number in range(BUCKET.count)]


@pytest.mark.parametrize("module", ["s3_peers", "gcs_peers", "worker"])
def test_peers_run_where_there_is_no_airflow(module):
    code = f"import sys; sys.modules['airflow'] = None; import benchmarks.objects.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def address():
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def s3(address):
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )
    yield client
    client.close()


def ask(address: str, path: str) -> dict:
    with urllib.request.urlopen(address + path, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("kind", ["hive", "tenants", "dated"])
def test_keys_of_a_layout_grow_and_its_name_says_what_is_in_it(kind):
    layout = Layout(kind, 10_000, DAY)
    keys = [layout.key(number) for number in range(layout.count)]
    assert keys == sorted(set(keys))
    assert {len(key) for key in keys} == {KEY_LENGTH}
    assert layout.news == sum(layout.stamp(number) > layout.since for number in range(layout.count)) > 0
    assert Layout.of(layout.bucket) == layout


@pytest.mark.parametrize("kind", ["hive", "tenants"])
def test_what_is_no_news_is_none_by_a_clock_with_fractions_of_a_second(kind):
    layout = Layout(kind, 200_000, DAY)
    stamps = [layout.stamp(number) + timedelta(milliseconds=999) for number in range(layout.count)]
    assert sum(stamp > layout.since for stamp in stamps) == layout.news


@pytest.mark.parametrize("after", ["", KEYS[999], KEYS[1234], "orders/dt", KEYS[-1], "zzz"])
def test_the_server_lists_s3_from_wherever_it_is_asked_to(s3, after):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET.bucket, StartAfter=after)
    found = [entry for page in pages for entry in page.get("Contents", ())]
    assert [entry["Key"] for entry in found] == [key for key in KEYS if key > after]
    for entry in found[:50]:
        assert entry["LastModified"] == BUCKET.stamp(KEYS.index(entry["Key"]))


def test_the_server_knows_prefixes_delimiters_and_uploads(s3):
    prefix = KEYS[2000][:25]
    answer = s3.list_objects_v2(Bucket=BUCKET.bucket, Prefix=prefix, MaxKeys=7)
    assert [entry["Key"] for entry in answer["Contents"]] == [key for key in KEYS if key.startswith(prefix)][
        :7
    ]
    answer = s3.list_objects_v2(Bucket=BUCKET.bucket, Prefix="orders/", Delimiter="/")
    folders = sorted({"/".join(key.split("/")[:2]) + "/" for key in KEYS})
    assert [each["Prefix"] for each in answer["CommonPrefixes"]] == folders
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET.bucket)


@pytest.mark.parametrize("fields", ["", "items(name,size),nextPageToken"])
@pytest.mark.parametrize("pretty", ["true", "false"])
def test_the_server_lists_gcs(address, fields, pretty):
    token, found = "", []
    while True:
        query = f"pageToken={token}&prettyPrint={pretty}&fields={quote(fields)}"
        page = ask(address, f"/storage/v1/b/{BUCKET.bucket}/o?{query}")
        found += page["items"]
        token = page.get("nextPageToken")
        if not token:
            break
    assert [item["name"] for item in found] == KEYS
    assert ("generation" in found[0]) == (not fields)


def test_the_server_counts_and_refuses_what_it_does_not_know(address, s3):
    ask(address, "/_control")
    s3.list_objects_v2(Bucket=BUCKET.bucket, MaxKeys=10)
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(f"{address}/{BUCKET.bucket}/key", timeout=30)
    counts = ask(address, "/_counts")
    assert counts.pop("objects") == 10
    assert counts == {"list": 1, f"unknown: GET /{BUCKET.bucket}/key": 1}


def run(seconds: float, **more: float) -> dict:
    figures = {"cpu": seconds, "hold": 0.001, "cpu_hold": 0.001, "memory": 0, "requests": {"list": 10}}
    return {"seconds": seconds, **figures, **more}


def test_ratios_compare_runs_of_the_same_round():
    ours, theirs = [run(1), run(2), run(4)], [run(10), run(40), run(20)]
    found = ratio("cpu", ours, theirs, objects=1000)
    assert found is not None
    assert (found.median, found.least, found.greatest) == (10, 5, 20)
    assert found.show() == "10.0 (5.00..20.0)"


@pytest.mark.parametrize(
    ("goal", "outcome"),
    [
        (Goal(figure="cpu", value=10), "reached"),
        (Goal(figure="cpu", value=5, stretch=10), "stretch"),
        (Goal(figure="cpu", value=11), "missed"),
        (Goal(figure="speed", value=11), "missed"),
        (Goal(figure="requests", kind="share", value=1.05), "reached"),
        (Goal(figure="requests", kind="share", value=0.99), "missed"),
        (Goal(figure="hold", kind="most", value=2), "reached"),
        (Goal(figure="hold", kind="never", value=2), "missed"),
    ],
    ids=str,
)
def test_a_goal_is_judged_by_the_median_or_by_the_worst_run(goal, outcome):
    scenario = next(each for each in scenarios(FULL, DAY) if each.name == "few")
    results = {
        OURS: [run(1), run(1), run(1, hold=0.003)],
        scenario.baseline: [run(10), run(10), run(10)],
    }
    assert judge(goal, scenario, results).outcome == outcome


def test_a_client_that_failed_once_has_no_figures():
    scenario = next(each for each in scenarios(QUICK, DAY) if each.name == "few")
    results = {OURS: [run(1), {"failed": "it found 4 objects"}], scenario.baseline: [run(10), run(10)]}
    assert judge(scenario.goals[0], scenario, results).outcome == "ours failed: it found 4 objects"
