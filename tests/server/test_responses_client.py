"""Responses and plain completions through the official OpenAI client."""

import json

import openai
import pytest

MODEL = "any-name"
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Looks up the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
PARIS = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)


def plain(*pieces, **more):
    return {"thinking": False, "pieces": list(pieces), **more}


def items(response):
    parts = []
    for item in response.output:
        if item.type == "reasoning":
            parts.append(("reasoning", item.content[0].text))
        elif item.type == "message":
            parts.append(("message", item.content[0].text))
        else:
            parts.append((item.type, item.name, json.loads(item.arguments)))
    return parts, response.status


def three_ways(server, **options):
    """The response, the same whole, streamed and through the stream helper."""
    client = server.client(_strict_response_validation=True)
    options = {"model": MODEL, "input": "What is the weather in Paris?", **options}
    whole = client.responses.create(**options)
    events = list(client.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert items(events[-1].response) == items(whole)
    with client.responses.stream(**options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert items(final) == items(whole)
    assert kinds == [event.type for event in events]
    assert final.output_text == whole.output_text
    return whole


def test_reasoning_text_and_a_call(scripted):
    server = scripted({"pieces": ["I should look.", "\n</think>\n\n", "I look.\n\n", PARIS], "cached": 2})
    response = three_ways(server, tools=TOOLS, instructions="Be brief.")
    call = ("function_call", "get_weather", {"city": "Paris", "days": 3})
    assert items(response) == ([("reasoning", "I should look."), ("message", "I look."), call], "completed")
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_output_can_be_sent_back(scripted):
    server = scripted({"pieces": ["Hm.", "\n</think>\n\n", PARIS]}, plain("Rain."))
    client = server.client()
    history = [{"role": "user", "content": "Weather in Paris?"}]
    first = client.responses.create(model=MODEL, input=history, tools=TOOLS)
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history.append({"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"})
    second = client.responses.create(model=MODEL, input=history, tools=TOOLS)
    assert second.output_text == "Rain."
    prompt = server.requests()[1]["prompt"]
    assert "<think>\nHm.\n</think>" in prompt and PARIS in prompt and "<tool_response>\nrain\n" in prompt


def test_a_limit(scripted):
    response = scripted(plain("a", "b", "c")).client().responses.create(model=MODEL, input="hi", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "ab"


def test_errors_name_the_field(scripted):
    client = scripted(plain("x")).client()
    for field, value in [("previous_response_id", "resp_1"), ("background", True), ("tool_choice", "required")]:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=MODEL, input="hi", tools=TOOLS, **{field: value})
        assert caught.value.param == field
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_completions(scripted):
    server = scripted(plain("upon", " a time"))
    client = server.client(_strict_response_validation=True)
    whole = client.completions.create(model=MODEL, prompt="Once ", max_tokens=50, logprobs=1)
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == ("upon a time", "stop")
    assert "".join(choice.logprobs.tokens) == choice.text
    # Strict validation would refuse the null finish reasons that OpenAI's own streams have.
    chunks = list(server.client().completions.create(model=MODEL, prompt="Once ", max_tokens=50, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    echoed = client.completions.create(model=MODEL, prompt="Once ", max_tokens=50, echo=True)
    assert echoed.choices[0].text == "Once upon a time"


def test_embeddings_are_not_offered(scripted):
    with pytest.raises(openai.InternalServerError, match="embeddings are not offered"):
        scripted(plain("x")).client().embeddings.create(model=MODEL, input="x")
