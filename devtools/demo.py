"""``make demo``: the main job for real, in under three minutes.

An S3 server on loopback, Airflow's four processes in a scratch home, and the example Dag that watches a
prefix. Objects are dropped, and what becomes of each is shown as it happens; half-way the triggerer is
killed without warning. It ends with a table, and with status 0 only if nothing was lost and successful runs
consumed whatever was delivered.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from devtools.airflow_home import AirflowHome, AirflowHomeError
from devtools.databases import Postgres, postgres
from devtools.demo_sql_story import SqlStory
from devtools.demo_story import BUCKET, PREFIX, Story
from devtools.s3_servers import S3Server, ServerStartError, ministack

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "EXAMPLE_BUCKET": BUCKET,
    "EXAMPLE_PREFIX": PREFIX,
    "EXAMPLE_POLL_INTERVAL": "2",
    "EXAMPLE_CHUNK_SIZE": "25",
}


def _narrator() -> Callable[[str, str], None]:
    began = time.monotonic()

    def say(what: str, text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what:<9}{text}", flush=True)

    return say


def show(home: Path, *, keep: bool) -> bool:
    """Run the demo, and return whether all promises were kept.

    :param home: a scratch folder, which is left with logs in it
    :param keep: let everything run on until interrupted
    """
    say = _narrator()
    with contextlib.ExitStack() as stack:
        print(f"An example Dag loads each new object under s3://{BUCKET}/{PREFIX}, once.", flush=True)
        print("Another copies each new window of a table, with exactly its rows.\n", flush=True)
        server = stack.enter_context(ministack())
        say("s3", f"a server listens on {server.endpoint_url}")
        database = stack.enter_context(postgres())
        say("postgres", f"a server listens on {database.host}:{database.port}")
        say("airflow", "the metadata database is made (the first time, this may take half a minute)")
        airflow = stack.enter_context(_airflow(home, server, database))
        story = Story(airflow, server, say)
        sql_story = SqlStory(airflow, database, say)
        sql_story.prepare()
        try:
            story.run()
        except AirflowHomeError:
            story.tell_result()
            raise
        kept_promises = story.tell_result()
        sql_story.run()
        kept_promises = sql_story.tell_result() and kept_promises
        if keep:
            _tell_how_to_go_on(airflow, server)
            with contextlib.suppress(KeyboardInterrupt):
                story.follow()
            print("\nEverything is stopped.", flush=True)
    return kept_promises


def _airflow(home: Path, server: S3Server, database: Postgres) -> AirflowHome:
    return AirflowHome(
        home,
        dags_folder=ROOT / "example_dags",
        connections={
            "aws_default": server.airflow_connection_json(),
            "postgres_default": database.airflow_connection_json(),
        },
        environment=SETTINGS,
    )


def drop(path: Path, endpoint_url: str) -> None:
    """Put a file under the watched prefix of a demo that was kept."""
    client = S3Server(name="demo", endpoint_url=endpoint_url).client()
    client.put_object(Bucket=BUCKET, Key=PREFIX + path.name, Body=path.read_bytes())
    print(f"landed: s3://{BUCKET}/{PREFIX}{path.name}")


def _tell_how_to_go_on(airflow: AirflowHome, server: S3Server) -> None:
    python = Path(sys.executable)
    command = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    print(
        f"""It goes on until Ctrl-C.

  the UI            {airflow.url} (no login)
  drop a file here  {command} -m devtools.demo --endpoint {server.endpoint_url} --drop FILE
  logs and database {airflow.path}
""",
        flush=True,
    )


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devtools.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="let everything run on until Ctrl-C")
    parser.add_argument("--drop", type=Path, metavar="FILE", help="only put a file into a demo that was kept")
    parser.add_argument("--endpoint", metavar="URL", help="the address of that demo's S3 server")
    arguments = parser.parse_args()
    if arguments.drop:
        if not arguments.endpoint or not arguments.drop.is_file():
            parser.error("--drop needs a file, and the --endpoint that the demo has printed")
        drop(arguments.drop, arguments.endpoint)
        return 0
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="watermark-demo-"))
    try:
        status = 0 if show(home, keep=arguments.keep) else 1
    except KeyboardInterrupt:
        print("\nInterrupted: everything was stopped.")
        status = 130
    except (AirflowHomeError, ServerStartError) as error:
        print(error)
        status = 1
    if status == 1:
        print(f"\nFAILED. The logs are in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
