#!/bin/sh
# Adds PASTA to an image of Debian or Ubuntu, in an environment of its own: install.sh [EXTRAS], as in
# install.sh '[nvidia]'. Wheels beside this script (ci/wheels makes them) precede those of the package index.
set -eu
apt-get update
apt-get install -y --no-install-recommends python3-venv
rm -rf /var/lib/apt/lists/*
python3 -m venv /opt/pasta
/opt/pasta/bin/pip install --no-cache-dir --find-links "$(dirname "$0")" "pasta-profiler${1:-}"
ln -sf /opt/pasta/bin/pasta /opt/pasta/bin/pasta-preload /usr/local/bin/
mkdir -p /runs
chmod 1777 /runs
