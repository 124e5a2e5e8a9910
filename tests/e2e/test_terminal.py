"""The commands in a terminal: what is typed, Ctrl-C, Ctrl-D, colours."""

import os
import pty
import re
import select
import subprocess
import time

import pytest
from conftest import FIXTURES


class Terminal:
    """A command on a pseudoterminal."""

    def __init__(self, command, env=None):
        self.ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LILY_") and k != "NO_COLOR"}
        environment |= {"TERM": "xterm"} | (env or {})
        self.process = subprocess.Popen([*map(str, command)], stdin=theirs, stdout=theirs, stderr=theirs,
                                        env=environment, start_new_session=True, close_fds=True,
                                        preexec_fn=controlling_terminal)
        os.close(theirs)
        self.seen = ""

    def type(self, keys):
        os.write(self.ours, keys.encode())

    def read(self):
        """What has come; false at the end."""
        if select.select([self.ours], [], [], 0.05)[0]:
            try:
                self.seen += os.read(self.ours, 1 << 16).decode(errors="replace")
            except OSError:
                return False
        return True

    def wait_for(self, pattern, after=0):
        """Reads until the pattern stands beyond `after` characters; where it ends."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self.seen[after:])):
            assert time.monotonic() < deadline and self.read(), f"{pattern!r} did not come: {self.seen[after:]!r}"
        return after + found.end()

    def end(self):
        """The exit status."""
        while self.read():
            if self.process.poll() is not None and not select.select([self.ours], [], [], 0.2)[0]:
                break
        return self.process.wait(timeout=20)


def controlling_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(lily_bin):
    started = []

    def start(*arguments, env=None):
        started.append(Terminal([lily_bin, *arguments], env))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        os.close(each.ours)


PROMPT = r"[\s\S]*\x1b\[\?2004h[\s\S]*> "


def test_a_conversation_with_keys(terminal):
    # random weights, and a seed with which they go on for long, so that there is an answer to stop
    chat = terminal("chat", "--model", FIXTURES / "nano", "--thinking", "off", "--temperature", "2", "--top-k", "0",
                    "--top-p", "1", "--seed", "5")
    at = chat.wait_for("/help lists commands" + PROMPT)
    chat.type("Go on.\r")
    at = chat.wait_for(r"\x1b\[\?2004l[\s\S]*\w", at)
    chat.type("\x03")
    at = chat.wait_for(r"\(stopped\)[\s\S]*tok/s" + PROMPT, at)
    chat.type("half a line\x03")
    at = chat.wait_for(r"\(Ctrl-D or /quit ends the chat\)" + PROMPT, at)
    chat.type("/thinking on\r")
    at = chat.wait_for(r"\(thinking is on\)" + PROMPT, at)
    chat.type("\x04")
    assert chat.end() == 0


def test_what_is_not_the_answer_is_dim(terminal):
    run = terminal("run", "What is the capital of Japan?", "--temperature", "0", "--thinking", "on")
    assert run.end() == 0
    assert "\x1b[2m(thinking) " in run.seen
    plain = re.sub("\x1b\\[2m.*?\x1b\\[0m", "", run.seen, flags=re.DOTALL)
    assert plain.split() == "The capital of Japan is Tokyo.".split(), run.seen


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_text_where_it_is_asked_for(terminal, env):
    run = terminal("run", "What is the capital of Japan?", "--temperature", "0", "--thinking", "on", env=env)
    assert run.end() == 0 and "Tokyo" in run.seen and "\x1b" not in run.seen
    serve = terminal("serve", "--port", "0", env=env)
    serve.wait_for("Ctrl-C ends")
    serve.type("\x03")
    assert serve.end() == 0 and "draining" in serve.seen and "\x1b" not in serve.seen


def test_a_measurement_shows_how_far_it_is_and_can_be_stopped(terminal):
    bench = terminal("bench", "--repeat", "1000")
    at = bench.wait_for(r"\d+/\d+ tokens, \S+ left, (pp512|tg128)")
    bench.type("\x03")
    bench.wait_for("stopped; nothing was reported", at)
    assert bench.end() == 130
