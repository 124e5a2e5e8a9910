"""openai (Node)"""

from node import HELLO, WEATHER, RAINS, node


def test_answers(scripted):
    """answers whole and streamed, with reasoning and usage"""
    node("openai", "answers", scripted(HELLO))


def test_accumulates(scripted):
    """the stream helper accumulates"""
    node("openai", "accumulates", scripted(HELLO))


def test_tools(scripted):
    """its loop of tool calls, streamed"""
    node("openai", "runs_tools", scripted(WEATHER, RAINS))


def test_responses(scripted):
    """responses whole and streamed"""
    node("openai", "responses", scripted(HELLO))


def test_errors(scripted):
    """errors have their classes"""
    node("openai", "errors", scripted(HELLO))


def test_leaving(scripted):
    """leaving a stream cancels"""
    server = scripted({"thinking": False, "pieces": ["a", {"sleep_ms": 50}] * 400})
    node("openai", "leaves", server)
    server.wait_for(lambda requests: requests[0]["cancelled"], "cancelling")
