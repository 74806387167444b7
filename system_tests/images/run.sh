#!/usr/bin/env bash
# Run a command with Docker and the images of the system tests: see ensure.sh. A daemon that was started for it is
# stopped in the end.
#
# Usage: system_tests/images/run.sh make system-test
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DOCKER_STATE=${DOCKER_STATE:-/var/tmp/system-test-docker}

stop() {
  local pid
  pid=$(cat "$DOCKER_STATE/pid")
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
}

docker info >/dev/null 2>&1 || trap stop EXIT
exports=$("$here/ensure.sh")
eval "$exports"
SYSTEM_TEST_SERVICES=docker "$@"
