"""`--trace FILE`: when each stage ran, in Chrome's format, whole however the program ends."""

import json
import signal
import subprocess
import time
import urllib.request

import pytest

QUESTION = "What is the capital of Japan?"
GREEDY = ["--temperature", "0", "--thinking", "off", "--device", "cpu"]


def events(path):
    """The stages of a trace, which is a whole JSON file."""
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ns" and trace["otherData"]["device"]
    stages = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in stages:
        assert event["ts"] >= 0 and event["dur"] >= 0 and {"pid", "tid", "cat", "name"} <= event.keys(), event
    return stages


def test_an_answer_in_stages(lily, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("what was here before")
    began = time.monotonic()
    done = lily("run", QUESTION, *GREEDY, "--trace", path)
    micros = 1e6 * (time.monotonic() - began)
    assert done.returncode == 0 and done.stdout == "The capital of Japan is Tokyo.\n", done.stderr
    stages = events(path)
    assert {event["cat"] for event in stages} == {"prefill", "decode"}
    names = {event["name"] for event in stages}
    assert any(name.startswith("decode: ") and "lm_head" in name for name in names), names
    assert any(" of layer 3 (" in name for name in names), names
    # One thing after the other, as many of each as there are steps.
    for before, after in zip(stages, stages[1:]):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01
    assert 0 < sum(event["dur"] for event in stages) < micros
    heads = [event for event in stages if event["cat"] == "decode" and "lm_head" in event["name"]]
    assert len(heads) >= 5, len(heads)


def test_a_trace_is_whole_after_an_interrupt_and_after_a_kill(lily_bin, tmp_path):
    for how in (signal.SIGINT, signal.SIGKILL):
        path = tmp_path / f"{how.name}.json"
        process = subprocess.Popen([lily_bin, "bench", "--device", "cpu", "--gen", "8000", "--prompt", "0", "--trace", path],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 60
            while not path.exists() or path.stat().st_size < 100_000:
                assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
                time.sleep(0.01)
            process.send_signal(how)
            process.wait(timeout=60)
        finally:
            process.kill()
        assert len(events(path)) > 100


def test_a_server_that_loads_its_model_again_goes_on_in_the_same_file(serve, tmp_path):
    path = tmp_path / "trace.json"
    server = serve("--device", "cpu", "--trace", path, "--idle-unload", "1")

    def ask():
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200

    ask()
    first = len(events(path))
    assert first > 0
    time.sleep(2.5)
    ask()
    stages = events(path)
    assert len(stages) > first
    assert stages[first]["ts"] >= stages[first - 1]["ts"] + 1e6, "the clock went on while the model was away"


@pytest.mark.parametrize(("flags", "words"), [
    (["--trace", "{folder}/none/trace.json"], ["--trace", "none/trace.json", "No such file"]),
    (["--trace", "{folder}"], ["--trace", "directory"]),
    (["--trace", "{folder}/t", "--out", "{folder}/o"], ["--trace", "--out", "one of them"]),
])
def test_what_cannot_be_traced_is_refused(lily, tmp_path, flags, words):
    done = lily("bench", "--device", "cpu", *[flag.format(folder=tmp_path) for flag in flags])
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "t").exists()


def test_bench_says_that_a_trace_costs_time(lily, tmp_path):
    done = lily("bench", "--device", "cpu", "--prompt", "16", "--gen", "2", "--repeat", "1", "--trace", tmp_path / "t")
    assert done.returncode == 0 and "--trace: figures are slower" in done.stderr, done.stderr
    assert len(events(tmp_path / "t")) > 10
