"""The life of `lily serve`: sockets, TLS, its log, `lily ps`, a model that is let go."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest
import trustme
from conftest import FIXTURES

QUESTION = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 4, "enable_thinking": False}


@pytest.fixture
def start(lily_bin, tmp_path):
    """Starts `lily serve`, waits until the model is there, and returns the process and where it listens."""
    running = []

    def start(*flags):
        log = tmp_path / f"serve{len(running)}.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LILY_")} | {"XDG_RUNTIME_DIR": str(tmp_path)}
        process = subprocess.Popen([lily_bin, "serve", *map(str, flags)], stdout=subprocess.PIPE, stderr=open(log, "w"),
                                   stdin=subprocess.DEVNULL, text=True, env=environment)
        running.append(process)
        line = process.stdout.readline()
        assert line.startswith("listening on "), log.read_text()
        until(lambda: "requests at once" in log.read_text(), "loading")
        return process, line.removeprefix("listening on ").strip()

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def until(done, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def get(url, path, context=None):
    with urllib.request.urlopen(url + path, timeout=30, context=context) as reply:
        return json.load(reply)


def ask(url, context=None):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(QUESTION).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60, context=context) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def test_https(start, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for i, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=i > 0)
    _, url = start("--port", 0, "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    assert ask(url, trusting)
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(url)
    with pytest.raises((OSError, http.client.HTTPException)):
        get(url.replace("https", "http"), "/health")


def test_a_socket(start, tmp_path):
    path = tmp_path / "s"
    process, url = start("--socket", path)
    assert url == f"unix:{path}"
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("POST", "/v1/chat/completions", json.dumps(QUESTION), {"Content-Type": "application/json"})
    assert json.load(connection.getresponse())["choices"][0]["message"]["content"]
    connection.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert not path.exists()


def test_a_socket_is_not_a_port(lily, tmp_path):
    done = lily("serve", "--socket", tmp_path / "s", "--port", 1)
    assert done.returncode == 2 and "--socket" in done.stderr and "--port" in done.stderr
    done = lily("serve", "--tls-cert", tmp_path / "cert")
    assert done.returncode == 2 and "--tls-key" in done.stderr


REFUSED = [
    (["--cors-origins", "foo"], '--cors-origins: "foo" is no origin'),
    (["--cors-origins", "https://page.example,"], "--cors-origins: \"\" is no origin"),
    (["--cors-origins", "null"], "say *"),
    (["--allowed-hosts", "*"], '--allowed-hosts: "*" is no host'),
    (["--allowed-hosts", "http://box"], "--allowed-hosts: "),
    (["--api-key", ""], "--api-key: key 1 of 1 is empty"),
    (["--api-key", "one, two"], "--api-key: key 2 of 2 has a blank"),
    (["--api-key-file", "/dev/null"], "--api-key-file /dev/null: "),
    (["--api-key-file", "no/such/file"], "--api-key-file no/such/file: "),
    (["--requests-per-key", "2"], "--requests-per-key: there is no key"),
    (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    (["--host", ""], "--host"),
    (["--host", "0.0.0.0"], "--allow-public"),
    (["--socket", "/"], "--socket /: "),
    (["--log-file", "/"], "--log-file /"),
    (["--tls-cert", "/dev/null", "--tls-key", "/dev/null"], "/dev/null"),
    (["--trace", "/"], "--trace /"),
    (["--context", "100000"], "--context is 100000"),
    (["--cache-memory", "900T"], "--cache-memory is "),
    (["--parallel", "256", "--context", "8192", "--cache-memory", "0", "--model", "no/such/model"], "no/such/model"),
    (["--threads", "2", "--device", "cuda"], "--threads is for the CPU and the emulator"),
    (["--threads", "2", "--device", "metal"], "--threads is for the CPU and the emulator"),
    (["--kernels", "shared", "--device", "cpu"], "--kernels is an NVIDIA GPU's"),
    (["--isa", "portable", "--device", "cuda"], "--isa is the CPU's"),
    (["--metal-queue", "classic", "--device", "cpu"], "--metal-queue is for the GPU of a Mac"),
    (["--precision", "bf16", "--device", "cpu"], "--precision bf16 is for"),
]
WRONG = [
    ["--port", "-1"], ["--port", "65536"], ["--parallel", "0"], ["--parallel", "257"], ["--queue", "-1"], ["--queue", "65536"],
    ["--requests-per-key", "0"], ["--request-timeout", "0"], ["--request-timeout", "1.5"], ["--idle-unload", "0"], ["--idle-unload", "-1"],
    ["--alias", ""], ["--alias", "a,,b"], ["--alias", " a"], ["--seed", "x"], ["--seed", "1.5"], ["--seed", "18446744073709551616"],
    ["--context", "1"], ["--cache-memory", "-1"], ["--threads", "0"], ["--device", ""], ["--model", ""], ["--isa", "x"],
    ["--strict-model=perhaps"], ["--log-file", ""], ["--socket", ""], ["--tls-cert", "x"], ["--tls-key", "x"], ["--api-key-file", ""],
    ["--trace", ""], ["--socket", "s", "--port", "1"], ["--socket", "s", "--host", "localhost"],
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_flags_that_could_not_do_what_they_are_for_are_refused(lily, flags, words):
    done = lily("serve", *([] if "--host" in flags or "--socket" in flags else ["--port", 0]), *flags)
    assert done.returncode == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize("flags", WRONG, ids=" ".join)
def test_flags_with_values_that_mean_nothing_are_refused(lily, flags):
    done = lily("serve", *flags)
    assert done.returncode == 2 and flags[0].split("=")[0] in done.stderr, done.stderr


def test_every_flag_of_serve_is_among_those_that_are_refused(lily):
    flags = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", lily("serve", "--help").stdout, re.M))
    tried = {flag.split("=")[0] for line in [*WRONG, *(flags for flags, _ in REFUSED)] for flag in line}
    # a switch that has no wrong value, and those of the program
    assert flags - tried == {"--allow-public", "--help"}


def test_what_is_odd_and_means_something_is_taken(start, lily, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("\ufeff# of the box\r\n\r\n  sk-one  \r\nsk-two\r\n", newline="")
    _, url = start("--port", 0, "--seed", "-1", "--alias", "a b,demo", "--cors-origins", "HTTPS://Page.Example:443/,tauri://localhost",
                   "--allowed-hosts", "my_box:8080,[fe80::1]", "--api-key-file", keys, "--requests-per-key", 1, "--queue", 0)
    request = urllib.request.Request(url + "/props", headers={"X-Api-Key": "sk-one", "Origin": "https://page.example", "Host": "my_box"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
    keys.write_text("sk-one\nsk two\n")
    done = lily("serve", "--port", 0, "--api-key-file", keys)
    assert done.returncode == 1 and "line 2 has a blank" in done.stderr and "sk two" not in done.stderr
    for seed in ("-1", "-2", "18446744073709551615"):
        assert lily("run", "Hello!", "--max-tokens", 2, "--seed", seed).returncode == 0


def test_the_log_is_a_file_that_can_be_moved_away(start, tmp_path):
    log, old = tmp_path / "log", tmp_path / "log.1"
    process, url = start("--port", 0, "--log-file", log)
    get(url, "/health")
    until(lambda: '"/health"' in log.read_text(), "the line of a request")
    assert not re.search("/health", (tmp_path / "serve0.txt").read_text()), "standard error has remarks alone"
    log.rename(old)
    process.send_signal(signal.SIGHUP)
    until(log.exists, "a new file")
    get(url, "/v1/models")
    until(lambda: '"/v1/models"' in log.read_text(), "the line of a request")
    assert "/v1/models" not in old.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_running_servers_are_listed(start, lily, tmp_path):
    def listed():
        done = lily("ps", "--json", env={"XDG_RUNTIME_DIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return [(entry["pid"], entry["url"], entry["model"]) for entry in json.loads(done.stdout)]

    assert listed() == []
    first, first_url = start("--port", 0)
    second, second_url = start("--port", 0)
    one, other = (first.pid, first_url, "lily-demo"), (second.pid, second_url, "lily-demo")
    until(lambda: sorted(listed()) == sorted([one, other]), "both")
    table = lily("ps", env={"XDG_RUNTIME_DIR": str(tmp_path)}).stdout
    assert table.startswith("PID") and first_url in table and "lily-demo" in table
    first.kill()
    first.wait()
    assert listed() == [other], "what died without a word is not listed"
    second.send_signal(signal.SIGTERM)
    second.wait(timeout=30)
    assert listed() == [] and list((tmp_path / "lily").iterdir()) == []


def test_a_model_that_nobody_asks_is_let_go(start):
    model = FIXTURES / "nano"
    process, url = start("--port", 0, "--model", model, "--idle-unload", 1)
    mapped = lambda: "nano/model.safetensors" in open(f"/proc/{process.pid}/maps").read()
    asleep = lambda: get(url, "/props")["is_sleeping"]
    answer = ask(url)
    assert mapped() and not asleep()
    # Looking keeps nobody awake ...
    until(asleep, "sleep", 10)
    assert not mapped(), "the weights are released"
    # ... and wakes nobody.
    for path in ["/health", "/v1/models", "/slots", "/props"]:
        get(url, path)
    urllib.request.urlopen(url + "/metrics").close()
    assert asleep() and not mapped()
    assert ask(url) == answer
    assert mapped() and not asleep()

