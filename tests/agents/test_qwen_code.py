"""@qwen-code/qwen-code"""

from conftest import check_two_turns, turns


def test_two_turns(scripted, agent):
    """`qwen -p`: a call, its result, and the conversation continued"""
    server = scripted(*turns("run_shell_command", command="cat notes.txt", is_background="false"), flags=["--context", "100000"])
    qwen = agent(server)
    qwen.environment |= {
        "OPENAI_BASE_URL": f"{qwen.url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": "lily",
        "QWEN_TELEMETRY_ENABLED": "false",
    }

    def ask(text, again):
        words = ["--yolo", "--auth-type", "openai", *(["--continue"] if again else []), "-p", text]
        return qwen.node("@qwen-code/qwen-code/cli-entry.js", *words)

    check_two_turns(server, qwen, ask)
