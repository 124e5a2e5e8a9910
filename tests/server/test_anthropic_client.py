"""The official Anthropic client: whole, streamed, and added up by its own accumulator."""

import anthropic
import pytest

MODEL = "any-name"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "name": "get_weather",
        "description": "Looks up the weather.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    }
]
PARIS = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)


def plain(*pieces, **more):
    return {"thinking": False, "pieces": list(pieces), **more}


def blocks(message):
    """What a message says, without names."""
    parts = []
    for block in message.content:
        if block.type == "text":
            parts.append(("text", block.text))
        elif block.type == "thinking":
            assert block.signature
            parts.append(("thinking", block.thinking))
        else:
            assert block.type == "tool_use" and block.id.startswith("toolu_")
            parts.append(("tool_use", block.name, block.input))
    return parts, message.stop_reason, message.stop_sequence


def both_ways(server, **options):
    """The message, the same whole and added up by the client's stream helper."""
    client = server.anthropic(_strict_response_validation=True)
    options = {"model": MODEL, "messages": ASK, "max_tokens": 1000, **options}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert blocks(final) == blocks(whole)
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens
    text = "".join(event.text for event in events if event.type == "text")
    assert text == "".join(part[1] for part in blocks(whole)[0] if part[0] == "text")
    return whole


def test_text(scripted):
    server = scripted(plain("Hello", " there", cached=3))
    message = both_ways(server)
    assert blocks(message) == ([("text", "Hello there")], "end_turn", None)
    prompt_tokens = server.requests()[0]["prompt_tokens"]
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == prompt_tokens
    assert message.usage.cache_read_input_tokens == 3


def test_thinking_then_a_call(scripted):
    server = scripted({"pieces": ["I should ", "look.", "\n</think>\n\n", "I look.\n\n", PARIS]})
    message = both_ways(server, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024})
    assert blocks(message) == (
        [("thinking", "I should look."), ("text", "I look."), ("tool_use", "get_weather", {"city": "Paris", "days": 3})],
        "tool_use",
        None,
    )


def test_a_turn_can_be_sent_back(scripted):
    server = scripted({"pieces": ["Hm.", "\n</think>\n\n", PARIS]}, plain("Rain."))
    client = server.anthropic()
    options = {"model": MODEL, "max_tokens": 1000, "tools": TOOLS, "thinking": {"type": "adaptive"}}
    first = client.messages.create(messages=ASK, **options)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    history = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=history, **options)
    assert blocks(second)[0] == [("text", "Rain.")]
    prompt = server.requests()[1]["prompt"]
    assert "<think>\nHm.\n</think>" in prompt and PARIS in prompt and "<tool_response>\nrain\n" in prompt


def test_ends(scripted):
    server = scripted(plain("one two three"))
    assert blocks(both_ways(server, stop_sequences=[" two"])) == ([("text", "one")], "stop_sequence", " two")
    assert both_ways(server, max_tokens=1).stop_reason == "max_tokens"


def test_counting(scripted):
    server = scripted(plain("x"))
    client = server.anthropic()
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, tools=TOOLS, system="Be brief.")
    assert server.requests() == []
    client.messages.create(model=MODEL, messages=ASK, tools=TOOLS, system="Be brief.", max_tokens=9)
    assert server.requests()[0]["prompt_tokens"] == counted.input_tokens


def test_models(scripted):
    client = scripted(plain("x"), flags=["--alias", "other"]).anthropic(_strict_response_validation=True)
    assert [model.id for model in client.models.list()] == ["lily-scripted", "other"]
    assert client.models.retrieve("other").display_name == "other"


def test_errors_have_their_classes(scripted):
    client = scripted(plain("x"), flags=["--context", "60"]).anthropic()
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(model=MODEL, messages=ASK, max_tokens=9, tools=TOOLS, tool_choice={"type": "any"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, messages=[{"role": "user", "content": "x y " * 99}], max_tokens=9)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nobody")


def test_a_failure_in_a_stream_is_raised(scripted):
    client = scripted(plain("some", finish="error")).anthropic()
    with pytest.raises(anthropic.APIStatusError), client.messages.stream(model=MODEL, messages=ASK, max_tokens=9) as stream:
        list(stream)


def test_leaving_cancels(scripted):
    server = scripted(plain("a", {"sleep_ms": 60000}, "b"))
    with server.anthropic().messages.stream(model=MODEL, messages=ASK, max_tokens=9) as stream:
        next(iter(stream.text_stream))
    server.wait_for(lambda requests: requests[0]["cancelled"], "cancelling")
