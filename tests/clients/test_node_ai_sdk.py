"""@ai-sdk/openai-compatible (Node)"""

from node import HELLO, RAINS, WEATHER, node


def test_answers(scripted):
    """an answer with reasoning and usage"""
    node("ai_sdk", "answers", scripted(HELLO))


def test_streams(scripted):
    """the same streamed"""
    node("ai_sdk", "streams", scripted(HELLO))


def test_tools(scripted):
    """a streamed tool call, run, and its result sent back"""
    node("ai_sdk", "runs_tools", scripted(WEATHER, RAINS))
