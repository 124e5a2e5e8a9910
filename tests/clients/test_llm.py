"""llm"""

import os
import subprocess
import sys


def test_a_prompt(scripted, tmp_path):
    """its command, streamed and not"""
    server = scripted({"thinking": False, "pieces": ["Hello", " there"]})
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: lily\n  model_name: any\n  api_base: {server.url}/v1\n  supports_tools: true\n"
    )
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for more in [[], ["--no-stream"]]:
        command = [sys.executable, "-m", "llm", "-m", "lily", "hi", *more]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, "Hello there"), done.stderr
