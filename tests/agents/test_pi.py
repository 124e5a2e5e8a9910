"""@mariozechner/pi-coding-agent"""

import json

from conftest import check_second_turn_is_cached, check_two_turns, turns


def pi(agent):
    model = {"id": "lily", "name": "lily", "reasoning": True, "input": ["text"], "contextWindow": 100000, "maxTokens": 1000}
    model["cost"] = dict.fromkeys(["input", "output", "cacheRead", "cacheWrite"], 0)
    provider = {"baseUrl": f"{agent.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}
    agent.write(".pi/agent/models.json", json.dumps({"providers": {"lily": provider}}))
    agent.environment["PI_OFFLINE"] = "1"

    def ask(text, again):
        words = ["--provider", "lily", "--model", "lily", *(["--continue"] if again else []), "-p", text]
        return agent.node("@mariozechner/pi-coding-agent/dist/cli.js", *words)

    return ask


def test_two_turns(scripted, agent):
    """`pi -p`: a call, its result, and the conversation continued"""
    server = scripted(*turns("bash", command="cat notes.txt"))
    pi_agent = agent(server)
    check_two_turns(server, pi_agent, pi(pi_agent))


def test_the_demo_model(lily, agent):
    """two turns with the demo model, the second from cached states"""
    demo = agent(lily)
    check_second_turn_is_cached(demo, pi(demo))
