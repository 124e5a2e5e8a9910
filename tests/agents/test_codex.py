"""@openai/codex"""

from conftest import SHORT, check_second_turn_is_cached, check_two_turns, turns

CONFIG = """model = "lily"
model_provider = "lily"
check_for_update_on_startup = false
{more}
[model_providers.lily]
name = "Lily"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[features]
multi_agent = {agents}
"""


def codex(agent, more="", agents="true"):
    agent.write(".codex/config.toml", CONFIG.format(url=agent.url, more=more, agents=agents))
    free = "--dangerously-bypass-approvals-and-sandbox"

    def ask(text, again):
        words = ["resume", "--last"] if again else ["--skip-git-repo-check"]
        return agent.node("@openai/codex/bin/codex.js", "exec", *words, free, text)

    return ask


def test_two_turns(scripted, agent):
    """`codex exec`: a call, its result, and the conversation resumed"""
    server = scripted(*turns("exec_command", cmd="cat notes.txt"), flags=["--context", "100000"])
    codex_agent = agent(server)
    check_two_turns(server, codex_agent, codex(codex_agent))
    first = codex_agent.asked()[0]
    kinds = {tool["type"] for tool in first["tools"]}
    assert {"function", "namespace", "web_search"} <= kinds, f"what Codex offers has changed: {kinds}"
    assert first["include"] == ["reasoning.encrypted_content"] and first["store"] is False


def test_the_demo_model(lily, agent):
    """two turns with the demo model, the second from cached states"""
    demo = agent(lily)
    instructions = demo.write("short.md", SHORT)
    more = f'model_instructions_file = "{instructions}"\nmodel_context_window = 8192\nmodel_auto_compact_token_limit = 7500'
    check_second_turn_is_cached(demo, codex(demo, more, "false"))
