"""Starts `lily serve` where one of llama.cpp's tests starts its server. Options that both have are handed on; others are not, and the
test says what comes of it."""

import os
import subprocess
import threading

import pytest
import utils

# Their option, ours.
SAME = {
    "n_ctx": "--context",
    "n_slots": "--parallel",
    "seed": "--seed",
    "model_alias": "--alias",
    "api_key": "--api-key",
    "sleep_idle_seconds": "--idle-unload",
}
running = []


def start(self, timeout_seconds=60):
    flags = ["--port", "0", "--context", "8192"]
    for theirs, ours in SAME.items():
        value = getattr(self, theirs, None)
        if value is not None:
            flags += [ours, str(value)]
    if self.n_ctx is not None and self.n_slots:
        # Theirs divides the context among the slots, ours gives it to each request.
        flags += ["--context", str(self.n_ctx // self.n_slots)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LILY_")}
    process = subprocess.Popen([os.environ["LILY_BIN"], "serve", *dedup(flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True, env=environment)
    running.append(process)
    line = process.stdout.readline()
    if not line.startswith("listening on http://"):
        raise RuntimeError(f"lily serve did not start: {process.stderr.read()}")
    self.server_host, port = line.removeprefix("listening on http://").strip().rsplit(":", 1)
    self.server_port = int(port)
    self.process = process
    threading.Thread(target=process.stderr.read, daemon=True).start()
    utils.server_instances.add(self)
    for _ in range(600):
        if self.make_request("GET", "/health").status_code == 200:
            return
        utils.time.sleep(0.05)
    raise TimeoutError("the model did not load")


def dedup(flags):
    """The last of each flag."""
    pairs = dict(zip(flags[::2], flags[1::2]))
    return [part for pair in pairs.items() for part in pair]


def stop(self):
    utils.server_instances.discard(self)
    if self.process:
        self.process.kill()
        self.process.wait()
        self.process = None


utils.ServerProcess.start = start
utils.ServerProcess.stop = stop
utils.ServerPreset.load_all = staticmethod(lambda: None)


@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    for process in running:
        process.kill()
        process.wait()
    running.clear()
    utils.server_instances.clear()
