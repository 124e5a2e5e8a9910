"""@anthropic-ai/claude-code"""

import json
import subprocess

from conftest import FIRST, SECOND, SHORT, call, check_second_turn_is_cached, check_two_turns, turns

WORDS = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages", "--dangerously-skip-permissions"]
BINARY = "@anthropic-ai/claude-code-*/claude"


def claude(agent, *more):
    agent.environment |= {
        "ANTHROPIC_BASE_URL": agent.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "lily",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }

    def ask(text, again):
        again = ["--continue"] if again else []
        return agent.run(agent.package(BINARY), *WORDS, *more, *again, text)

    return ask


def test_two_turns(scripted, agent):
    """`claude -p`: a call, its result, and the conversation continued"""
    server = scripted(*turns("Bash", command="cat notes.txt", description="looks"), flags=["--context", "100000"])
    claude_agent = agent(server)
    prompts = check_two_turns(server, claude_agent, claude(claude_agent))
    assert "billing" not in prompts[0]
    assert claude_agent.recorder.exchanges[0].path == "/v1/messages?beta=true"


def test_a_session(scripted, agent):
    """a session of two turns: reasoning stays, so that the second goes on where the first one ended"""
    server = scripted(*turns("Bash", command="cat notes.txt", description="looks"), flags=["--context", "100000"])
    claude_agent = agent(server)
    claude(claude_agent)
    command = [claude_agent.package(BINARY), *WORDS, "--input-format", "stream-json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=claude_agent.repository, env=claude_agent.environment, **pipes) as process:
        results = []
        for text in [FIRST, SECOND]:
            message = {"role": "user", "content": text}
            process.stdin.write(json.dumps({"type": "user", "message": message}) + "\n")
            process.stdin.flush()
            results += [event for event in events_to_result(process) if event["type"] == "result"]
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert [result["result"] for result in results] == ["The word is heron.", "You asked for the word."]
    assert all(exchange.status == 200 for exchange in claude_agent.recorder.exchanges), claude_agent.recorder.exchanges
    prompts = [record["prompt"] for record in server.requests() if "# Tools" in record["prompt"]]
    assert "<think>\nGot it.\n</think>\n\nThe word is heron." in prompts[-1]
    assert all(later.startswith(earlier) for earlier, later in zip(prompts, prompts[1:]))


def events_to_result(process):
    """What is said up to the end of a turn."""
    events = []
    while not events or events[-1]["type"] != "result":
        events.append(json.loads(process.stdout.readline()))
    return events


def test_tools_are_searched_for(scripted, agent):
    """tools that it keeps back and finds by a search"""
    server = scripted(
        {"match": "Fetches a URL", "thinking": False, "pieces": ["The word is heron."]},
        {"match": "<tool_response>", "thinking": False, "pieces": ["Nothing was found."]},
        {"thinking": False, "pieces": [call("ToolSearch", query="select:WebFetch", max_results=5)]},
        flags=["--context", "100000"],
    )
    claude_agent = agent(server)
    claude(claude_agent)(FIRST, False)
    bodies = claude_agent.asked()
    results = [block for message in bodies[-1]["messages"] for block in message["content"] if block_type(block) == "tool_result"]
    assert results[0]["content"] == [{"type": "tool_reference", "tool_name": "WebFetch"}], json.dumps(results)
    prompts = [record["prompt"] for record in server.requests() if "ToolSearch" in record["prompt"]]
    assert prompts[1].startswith(prompts[0]), "what was found does not change the prompt before it"
    found = prompts[1][len(prompts[0]) :]
    assert '"name":"WebFetch"' in found, found


def block_type(block):
    return block["type"] if isinstance(block, dict) else "text"


def test_the_demo_model(lily, agent):
    """two turns with the demo model, the second from cached states"""
    demo = agent(lily)
    check_second_turn_is_cached(demo, claude(demo, "--system-prompt", SHORT, "--tools=Bash"))
