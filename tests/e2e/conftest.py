"""The binary as a user drives it. LILY_BIN names it."""

import os
import pathlib
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


@pytest.fixture(scope="session")
def lily_bin():
    binary = os.environ.get("LILY_BIN")
    assert binary, "LILY_BIN must name the lily binary (scripts/test sets it)"
    return binary


@pytest.fixture
def lily(lily_bin):
    """Runs a lily command to its end."""

    def run(*arguments, stdin=subprocess.DEVNULL, timeout=120, env=None, **options):
        if isinstance(stdin, str):
            options["input"] = stdin
        else:
            options["stdin"] = stdin
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LILY_")} | (env or {})
        return subprocess.run([lily_bin, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                              env=environment, **options)

    return run


class Server:
    """A running `lily serve`."""

    def __init__(self, binary, log, flags):
        self.process = subprocess.Popen([binary, "serve", "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=log, stdin=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        self.url = line.removeprefix("listening on ").strip()
        deadline = time.monotonic() + 60
        while not self.healthy():
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.02)

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False


@pytest.fixture
def serve(lily_bin, tmp_path):
    """Starts `lily serve` with flags."""
    running = []

    def start(*flags):
        with open(tmp_path / f"server{len(running)}.log", "a") as log:
            running.append(Server(lily_bin, log, flags))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()
