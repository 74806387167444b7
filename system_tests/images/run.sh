#!/usr/bin/env bash
# Run a command with Docker and the images of the system tests: see ensure.sh. In the end containers that the
# command left behind are removed, and a daemon that was started for it is stopped.
#
# Usage: system_tests/images/run.sh make system-test
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DOCKER_STATE=${DOCKER_STATE:-/var/tmp/system-test-docker}
# The tests label their containers with it.
export SYSTEM_TEST_RUN="$$-$RANDOM"

remove_containers() {
  local id name
  docker ps --all --filter "label=airflow-provider-watermark.run=$SYSTEM_TEST_RUN" --format '{{.ID}} {{.Names}}' |
    while read -r id name; do
      echo "a container was left behind, and is now removed: $name" >&2
      docker rm --force --volumes "$id" >/dev/null
    done
}

stop_daemon() {
  local pid
  pid=$(cat "$DOCKER_STATE/pid")
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
}

tidy() {
  remove_containers || true
  if [[ $is_ours == yes ]]; then stop_daemon || true; fi
}

is_ours=no
docker info >/dev/null 2>&1 || is_ours=yes
trap tidy EXIT
# A command that is interrupted has its own tidying up to do: bash waits for it before it obeys a trap.
trap 'exit 130' INT
trap 'exit 143' TERM
exports=$("$here/ensure.sh")
eval "$exports"
SYSTEM_TEST_SERVICES=docker "$@"
