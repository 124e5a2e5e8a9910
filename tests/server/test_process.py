"""What the server makes of its own standard error and of signals."""

import os
import signal
import socket
import subprocess
import time

import pytest

from conftest import launch


@pytest.fixture
def started():
    """A function that starts the product's server; what it started is killed behind the test."""
    running = []

    def start(*flags, stderr=subprocess.DEVNULL):
        running.append(launch([os.environ["LILY_BIN"], "serve", "--port", "0", *flags], stderr))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def wait_until_ready(server):
    deadline = time.monotonic() + 60
    while True:
        try:
            return server.get("/health")
        except OSError:
            assert time.monotonic() < deadline, "the model was not opened"
            time.sleep(0.1)


def test_a_log_that_cannot_be_written_costs_nothing_else(started):
    with open("/dev/full", "w") as full:
        server = started(stderr=full)
    wait_until_ready(server)
    reply = server.client().chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "hi"}], max_tokens=2, extra_body={"no_such_field": 1}
    )
    assert reply.choices[0].message
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0


def test_a_hangup_drains_a_server_that_has_nothing_to_read_again(started):
    server = started()
    wait_until_ready(server)
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(timeout=20) == 0


def test_a_hangup_leaves_a_server_that_has(started, tmp_path):
    log = tmp_path / "log"
    server = started("--log-file", log)
    wait_until_ready(server)
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert server.get("/health")
    with socket.create_connection((server.host, server.port), timeout=5):
        pass
