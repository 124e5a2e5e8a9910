"""async-openai (Rust)"""

import os
import subprocess

from node import HELLO, WEATHER


def client(test, server):
    done = subprocess.run([os.environ["LILY_ASYNC_OPENAI_BIN"], server.url, test], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_answers(scripted):
    """answers whole and streamed, with log probabilities"""
    client("answers", scripted(HELLO))


def test_calls(scripted):
    """a tool call whole and streamed"""
    client("calls", scripted(WEATHER))


def test_responses(scripted):
    """responses whole and streamed"""
    client("responses", scripted(HELLO))


def test_completions(scripted):
    """completions with echo and log probabilities; models"""
    client("completions", scripted({"pieces": ["Hello", " there"]}))


def test_errors(scripted):
    """errors are errors of the API"""
    client("errors", scripted(HELLO))
