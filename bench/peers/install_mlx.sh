#!/usr/bin/env bash
# mlx-lm for this machine's processor, in a virtual environment of its own.
# bench/peers/install_mlx.sh DIR: leaves DIR/bin/python. Needs python3 with venv and pip; MLX compiles with g++ as it runs.
set -euo pipefail
dir=${1:?a folder to install into}
for tool in python3 g++; do
  command -v "$tool" >/dev/null || { echo "install_mlx.sh: $tool is missing: install it (Debian: apt-get install python3-venv g++)" >&2; exit 1; }
done
[ -x "$dir/bin/pip" ] || python3 -m venv "$dir"
"$dir/bin/pip" install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
echo "$dir/bin/python"
