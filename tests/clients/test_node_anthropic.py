"""@anthropic-ai/sdk (Node)"""

from node import HELLO, RAINS, node


def test_answers(scripted):
    """thinking and text, whole and streamed"""
    node("anthropic", "answers", scripted(HELLO))


def test_calls(scripted):
    """a streamed call and its result sent back"""
    call = {"thinking": False, "pieces": ["<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"]}
    node("anthropic", "calls", scripted(call, RAINS))


def test_counting(scripted):
    """counting tokens; models"""
    node("anthropic", "counts_and_lists", scripted(HELLO))


def test_errors(scripted):
    """errors have their classes"""
    node("anthropic", "errors", scripted(HELLO))
