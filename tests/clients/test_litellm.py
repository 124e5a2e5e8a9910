"""litellm"""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pytest
from node import HELLO, RAINS, WEATHER

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}]


def complete(server, provider="openai", **more):
    base = server.url + ("/v1" if provider == "openai" else "")
    options = {"model": f"{provider}/any", "api_base": base, "api_key": "none", "messages": MESSAGES, "timeout": 20}
    return litellm.completion(**options | more)


def test_answers(scripted):
    """answers whole and streamed, with reasoning; the stream rebuilt"""
    server = scripted(HELLO)
    message = complete(server).choices[0].message
    assert (message.content, message.reasoning_content) == ("Hello there", "Hm.")
    chunks = list(complete(server, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert rebuilt.choices[0].message.content == "Hello there"
    assert rebuilt.choices[0].message.reasoning_content == "Hm."
    assert rebuilt.usage.completion_tokens > 0


def test_calls(scripted):
    """a streamed tool call, and its result sent back"""
    server = scripted(WEATHER, RAINS)
    turn = litellm.stream_chunk_builder(list(complete(server, tools=TOOLS, stream=True))).choices[0].message
    assert turn.tool_calls[0].function.arguments.replace(" ", "") == '{"city":"Oslo","days":2}'
    result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": "rain"}
    assert complete(server, tools=TOOLS, messages=[*MESSAGES, turn, result]).choices[0].message.content == "It rains."


def test_anthropic(scripted):
    """the same server as Anthropic's"""
    assert complete(scripted(HELLO), "anthropic", max_tokens=100).choices[0].message.content == "Hello there"


def test_errors(scripted):
    """errors have their classes"""
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        complete(scripted(HELLO), temperature=9)
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(scripted(HELLO, flags=["--context", "16"]), messages=[{"role": "user", "content": "word " * 100}])
