"""@continuedev/cli"""

from conftest import check_second_turn_is_cached, check_two_turns, turns

CONFIG = """name: local
version: 1.0.0
schema: v1
models:
  - name: lily
    provider: openai
    model: lily
    apiBase: {url}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
"""


def cn(agent):
    config = agent.write(".continue/config.yaml", CONFIG.format(url=agent.url))
    agent.environment |= {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_METRICS_ENABLED": "0"}

    def ask(text, again):
        words = ["--config", config, "--auto", *(["--resume"] if again else []), "-p", text]
        return agent.node("@continuedev/cli/dist/cn.js", *words)

    return ask


def test_two_turns(scripted, agent):
    """`cn -p`: a call, its result, and the conversation resumed"""
    server = scripted(*turns("Bash", command="cat notes.txt"))
    continue_agent = agent(server)
    check_two_turns(server, continue_agent, cn(continue_agent))


def test_the_demo_model(lily, agent):
    """two turns with the demo model, the second from cached states"""
    demo = agent(lily)
    check_second_turn_is_cached(demo, cn(demo))
