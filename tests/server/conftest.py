"""Starts the server for each test that wants one.

LILY_SCRIPTED_BIN names the scripted server's binary, LILY_BIN the product's. Tests of a binary that is not named are
skipped, so that each half can be run alone; the test script names both.
"""

import json
import os
import subprocess
import time
import urllib.request

import anthropic
import openai
import pytest


class Server:
    """A running server process and ways to talk to it."""

    def __init__(self, process, url):
        self.process = process
        self.url = url
        self.host, port = url.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=30, **options)

    def async_client(self, **options):
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=30, **options)

    def anthropic(self, **options):
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=30, **options)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            return json.load(reply)

    def requests(self):
        """What reached the scripted engine."""
        return self.get("/debug/requests")

    def wait_for(self, done, what):
        """Waits until the scripted engine's requests satisfy `done`."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            requests = self.requests()
            if done(requests):
                return requests
            time.sleep(0.01)
        raise AssertionError(f"{what} did not happen: {self.requests()}")


def launch(command, log):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = process.stdout.readline()
    assert line.startswith("listening on http://"), f"first line {line!r} of {command}"
    return Server(process, line.removeprefix("listening on ").strip())


def end(server):
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()


@pytest.fixture
def scripted(tmp_path):
    """A function that starts the scripted server on lines (dicts); flags as further arguments."""
    binary = os.environ.get("LILY_SCRIPTED_BIN")
    if not binary:
        pytest.skip("LILY_SCRIPTED_BIN is not set")
    running = []

    def start(*lines, flags=()):
        script = tmp_path / f"script{len(running)}.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with open(tmp_path / "log.txt", "a") as log:
            running.append(launch([binary, "--script", script, "--port", "0", *flags], log))
        return running[-1]

    yield start
    for server in running:
        end(server)


@pytest.fixture(scope="session")
def lily(tmp_path_factory):
    """The product's server over its demo model."""
    binary = os.environ.get("LILY_BIN")
    if not binary:
        pytest.skip("LILY_BIN is not set")
    with open(tmp_path_factory.mktemp("lily") / "log.txt", "a") as log:
        server = launch([binary, "serve", "--port", "0"], log)
    deadline = time.monotonic() + 60
    while True:
        try:
            server.get("/health")
            break
        except OSError:
            assert time.monotonic() < deadline, "the demo model did not load"
            time.sleep(0.05)
    yield server
    end(server)
