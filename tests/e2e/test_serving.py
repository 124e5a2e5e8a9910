"""`lily serve` under real conditions: many clients, clients that leave, long prompts, signals."""

import json
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest
from conftest import FIXTURES


def ask(server, body, timeout=120):
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.url + "/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)


def body(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "enable_thinking": False} | fields


def stream(server, request, leave_after=None):
    """Content of a streamed answer; a client that leaves closes its socket after so many chunks."""
    data = json.dumps(request | {"stream": True}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    content, chunks = "", 0
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        for line in connection.makefile("rb"):
            if not line.startswith(b"data: "):
                continue
            chunks += 1
            if leave_after is not None and chunks > leave_after:
                return None
            if line.strip() == b"data: [DONE]":
                return content
            choices = json.loads(line[6:])["choices"]
            content += "".join(c["delta"].get("content") or "" for c in choices)
    raise AssertionError(f"the stream broke off after {content!r}")


PROMPTS = [f"What is {a} + {b}?" for a, b in zip(range(11, 31), range(30, 10, -1))]


def test_twenty_clients_half_of_which_leave(serve):
    server = serve("--parallel", 4, "--cache-memory", "8M")
    alone = {text: ask(server, body(text))["choices"][0]["message"]["content"] for text in PROMPTS}
    process = psutil.Process(server.process.pid)
    draw = random.Random(1)

    def round_of_clients():
        got, threads = {}, []

        def client(i, text):
            leave = draw.randrange(0, 8) if i % 2 else None
            got[text] = stream(server, body(text), leave)

        for i, text in enumerate(PROMPTS):
            threads.append(threading.Thread(target=client, args=(i, text)))
            threads[-1].start()
        for thread in threads:
            thread.join(timeout=120)
        return got

    round_of_clients()
    before = process.memory_info().rss
    for _ in range(5):
        got = round_of_clients()
        for text in PROMPTS[::2]:
            assert got[text] == alone[text]
    time.sleep(0.5)
    # the allocator keeps some pages; what must not happen is growth with the number of requests
    assert process.memory_info().rss - before < 24 << 20
    assert ask(server, body(PROMPTS[0]))["choices"][0]["message"]["content"] == alone[PROMPTS[0]]


def test_a_short_request_does_not_wait_for_a_long_prompt(serve):
    server = serve("--cache-memory", 0)
    long = body("word " * 6000, max_tokens=1)
    began = time.monotonic()
    ask(server, long)
    alone = time.monotonic() - began
    chunks = 6000 / 256
    times = {}

    def long_request():
        ask(server, long)
        times["long"] = time.monotonic()

    thread = threading.Thread(target=long_request)
    thread.start()
    time.sleep(alone / 4)
    began = time.monotonic()
    ask(server, body("Hello!", max_tokens=1))
    waited = time.monotonic() - began
    times["short"] = time.monotonic()
    thread.join()
    assert times["short"] < times["long"]
    # two chunks and its own prefill; the last chunks of a long prompt cost more than the mean
    assert waited < max(1.0, 6 * alone / chunks), f"{waited:.2f} s beside a prompt of {alone:.2f} s"


def test_the_second_turn_recomputes_nothing_before_the_first_answer(serve):
    server = serve()
    first = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "temperature": 0}
    answer = ask(server, first | {"enable_thinking": True})
    message = answer["choices"][0]["message"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert message["reasoning_content"] and "Tokyo" in message["content"]
    turn = first["messages"] + [{"role": "assistant", "content": message["content"]},
                                {"role": "user", "content": "And of France?"}]
    second = ask(server, {"messages": turn, "temperature": 0, "enable_thinking": True})
    # everything but the opening think marker and its line break
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= answer["usage"]["prompt_tokens"] - 2
    fresh = serve("--cache-memory", 0)
    uncached = ask(fresh, {"messages": turn, "temperature": 0, "enable_thinking": True})
    assert uncached["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert uncached["choices"][0]["message"] == second["choices"][0]["message"]


def test_the_same_seed_whatever_runs_beside(serve):
    server = serve()
    request = body("Tell me a story about a fox who finds a bell.", temperature=1.0, seed=7, max_tokens=60)
    alone = ask(server, request)["choices"][0]["message"]["content"]
    others = [threading.Thread(target=ask, args=(server, body(text, temperature=1.0, seed=i)))
              for i, text in enumerate(PROMPTS[:8])]
    for thread in others:
        thread.start()
    beside = ask(server, request)["choices"][0]["message"]["content"]
    for thread in others:
        thread.join()
    assert beside == alone


def test_a_signal_ends_a_server_that_is_opening_its_model(lily_bin, tmp_path):
    model = tmp_path / "slow"
    shutil.copytree(FIXTURES / "nano", model, ignore=shutil.ignore_patterns("goldens"))
    # Opening takes seconds: two million added tokens are read before the first of them is refused.
    entry = json.dumps({"id": 1, "content": "x", "lstrip": True})
    tokenizer = (model / "tokenizer.json").read_text()
    tokenizer = tokenizer.replace('"added_tokens": [', '"added_tokens": [' + f"{entry}," * 2_000_000, 1)
    (model / "tokenizer.json").write_text(tokenizer)
    began = time.monotonic()
    assert subprocess.run([lily_bin, "run", "x", "--model", model], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          timeout=120).returncode == 1
    opening = time.monotonic() - began
    with subprocess.Popen([lily_bin, "serve", "--port", "0", "--model", model], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        assert process.stdout.readline().startswith(b"listening on")
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        # Drained, or ended before it began to watch for signals.
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)
        assert time.monotonic() - asked < opening / 2


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains(serve, signal_number):
    server = serve()
    got = {}
    request = body("Tell me a story about a fox who finds a bell.")
    thread = threading.Thread(target=lambda: got.update(content=stream(server, request)))
    thread.start()
    time.sleep(0.15)
    server.process.send_signal(signal_number)
    thread.join(timeout=30)
    assert got["content"].startswith("Once upon a time")
    assert server.process.wait(timeout=30) == 0


def test_overlong_prompts_are_a_400_before_the_stream(serve):
    server = serve("--context", 128)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, body("word " * 500, stream=True))
    error = json.load(refused.value)["error"]
    assert refused.value.code == 400 and error["code"] == "context_length_exceeded"
    assert "maximum context length is 128 tokens" in error["message"]


def test_a_port_in_use_and_a_model_that_is_not_there(lily, serve):
    server = serve()
    port = server.url.rsplit(":", 1)[1]
    taken = lily("serve", "--port", port)
    assert taken.returncode == 1 and f"port {port}" in taken.stderr
    missing = lily("serve", "--port", "0", "--model", "/does/not/exist")
    assert missing.returncode == 1 and "/does/not/exist" in missing.stderr


def test_kill_9_loses_nothing(serve):
    first = serve()
    content = ask(first, body(PROMPTS[0]))["choices"][0]["message"]["content"]
    first.process.kill()
    first.process.wait()
    assert ask(serve(), body(PROMPTS[0]))["choices"][0]["message"]["content"] == content
