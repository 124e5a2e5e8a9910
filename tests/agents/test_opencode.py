"""opencode-ai"""

import json

from conftest import SHORT, check_second_turn_is_cached, check_two_turns, turns


def opencode(agent, context, output, more=None):
    options = {"baseURL": f"{agent.url}/v1"}
    model = {"name": "Lily", "tool_call": True, "reasoning": True, "limit": {"context": context, "output": output}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Lily", "options": options, "models": {"lily": model}}
    config = {"autoupdate": False, "share": "disabled", "model": "lily/lily", "small_model": "lily/lily"}
    config |= {"provider": {"lily": provider}} | (more or {})
    (agent.repository / "opencode.json").write_text(json.dumps(config))
    switches = ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"]
    agent.environment |= {f"OPENCODE_DISABLE_{name}": "1" for name in switches}

    def ask(text, again):
        return agent.run(agent.package("opencode-*/bin/opencode"), "run", *(["--continue"] if again else []), text)

    return ask


def test_two_turns(scripted, agent):
    """`opencode run`: a call, its result, and the conversation continued"""
    server = scripted(*turns("bash", command="cat notes.txt", description="looks"), flags=["--context", "100000"])
    opencode_agent = agent(server)
    check_two_turns(server, opencode_agent, opencode(opencode_agent, 100000, 8192))


def test_the_demo_model(lily, agent):
    """two turns with the demo model, the second from cached states"""
    demo = agent(lily)
    more = {"agent": {"build": {"prompt": SHORT, "tools": {"*": False, "bash": True}}}}
    check_second_turn_is_cached(demo, opencode(demo, 8192, 500, more))
