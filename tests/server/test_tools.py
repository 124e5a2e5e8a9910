"""Tool calls through the official OpenAI client: whole, streamed, and added up by its own accumulator."""

import json

import openai
import pytest
from pydantic import BaseModel

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
MODEL = "any-name"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Looks up the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"anyOf": [{"enum": ["metric", "imperial"]}, {"type": "null"}]},
                    "hourly": {"type": "boolean"},
                    "layers": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def block(name, **values):
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def plain(*pieces, **more):
    return {"thinking": False, "pieces": list(pieces), **more}


def summary(message):
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return message.content, calls


def three_ways(server, **options):
    """Content, calls and finish reason, which must be the same whole, streamed and through the stream helper."""
    client = server.client(_strict_response_validation=True)
    options = {"model": MODEL, "messages": ASK, "tools": TOOLS, **options}
    answer = client.chat.completions.create(**options)
    (choice,) = answer.choices
    whole = (*summary(choice.message), choice.finish_reason)

    content, calls, finishes = None, {}, []
    for chunk in client.chat.completions.create(**options, stream=True):
        (choice,) = chunk.choices
        if choice.delta.content is not None:
            content = (content or "") + choice.delta.content
        for call in choice.delta.tool_calls or []:
            if call.index not in calls:
                assert call.id.startswith("call_") and call.type == "function"
                calls[call.index] = [call.function.name, ""]
            calls[call.index][1] += call.function.arguments or ""
        if choice.finish_reason:
            finishes.append(choice.finish_reason)
    assert sorted(calls) == list(range(len(calls)))
    added = [(calls[index][0], json.loads(calls[index][1])) for index in sorted(calls)]
    assert len(finishes) == 1
    assert (content, added, finishes[0]) == whole

    if whole[2] != "length":  # the helper raises its own error for these
        with client.chat.completions.stream(**options) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        (choice,) = final.choices
        assert (*summary(choice.message), choice.finish_reason) == whole
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert [(event.name, json.loads(event.arguments)) for event in done] == whole[1]
    return whole


def test_one_call(scripted):
    server = scripted(plain(block("get_weather", city="Paris")))
    assert three_ways(server) == (None, [("get_weather", {"city": "Paris"})], "tool_calls")


def test_text_and_two_calls(scripted):
    both = f"Let me see.\n\n{block('get_weather', city='Paris')}\n{block('get_weather', city='Oslo')}"
    wanted = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    assert three_ways(scripted(plain(both))) == ("Let me see.", wanted, "tool_calls")
    letters = plain(*({"bytes": f"{byte:02x}"} for byte in both.encode()))
    assert three_ways(scripted(letters)) == ("Let me see.", wanted, "tool_calls")
    one = three_ways(scripted(plain(both)), parallel_tool_calls=False)
    assert one == ("Let me see.", wanted[:1], "tool_calls")


def test_ids_are_unique(scripted):
    server = scripted(plain(block("now"), block("now")))
    ids = set()
    for _ in range(10):
        answer = server.client().chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
        ids.update(call.id for call in answer.choices[0].message.tool_calls)
    assert len(ids) == 20


def test_values_have_their_types(scripted):
    server = scripted(
        plain(
            block("get_weather", city="75001", days="5.0", units="null", hourly="True", layers='["rain", "true"]'),
            block("get_weather", city="null", days="many", units="metric", other="1e3"),
            block("get_weather", city='a "quoted"\n  <b> </parameter> é 😀\n'),
        )
    )
    _, calls, _ = three_ways(server)
    assert [arguments for _, arguments in calls] == [
        {"city": "75001", "days": 5, "units": None, "hourly": True, "layers": ["rain", "true"]},
        {"city": "null", "days": "many", "units": "metric", "other": 1e3},
        {"city": 'a "quoted"\n  <b> </parameter> é 😀\n'},
    ]
    assert isinstance(calls[0][1]["days"], int)


def test_reasoning_comes_before_calls(scripted):
    thought = f"I could call {block('now')}."
    server = scripted({"pieces": [thought, "\n</think>\n\n", block("get_weather", city="Paris")]})
    assert three_ways(server) == (None, [("get_weather", {"city": "Paris"})], "tool_calls")
    answer = server.client().chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    assert answer.choices[0].message.reasoning_content == thought
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    stream = server.client().chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, stream=True)
    kinds = []
    for chunk in stream:
        delta = chunk.choices[0].delta
        if getattr(delta, "reasoning_content", None):
            kinds.append("reasoning")
        if delta.tool_calls:
            kinds.append("call")
    assert kinds == sorted(kinds, reverse=True) and kinds[-1] == "call"


def test_what_is_no_call_is_text(scripted):
    for text in ("No call.", f"a\n{block('unknown', a=1)}\n", "The tag <tool_call> and\n", "<tool_call>\n{}"):
        assert three_ways(scripted(plain(text))) == (text, [], "stop")
    call = block("now")
    assert three_ways(scripted(plain(call)), tool_choice="none") == (call, [], "stop")
    assert three_ways(scripted(plain(call)), tools=openai.omit) == (call, [], "stop")
    assert three_ways(scripted(plain("a\n", call[:30], finish="length"))) == ("a\n" + call[:30], [], "length")


def test_the_loop_of_an_agent(scripted):
    server = scripted(
        {"match": "It rains.", "thinking": False, "pieces": ["Take an umbrella."]},
        plain("I look.\n", block("get_weather", city="Paris"), block("now")),
    )
    client = server.client()
    messages = list(ASK)
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    messages.append(message)
    for call, result in zip(message.tool_calls, ["It rains.", "Noon."], strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "Take an umbrella."
    prompt = server.requests()[-1]["prompt"]
    assert f"I look.\n\n{block('get_weather', city='Paris')}\n{block('now')}<|im_end|>" in prompt
    assert "\n<tool_response>\nIt rains.\n</tool_response>\n<tool_response>\nNoon.\n</tool_response>" in prompt
    assert "Looks up the weather." in prompt


def test_models_as_tools(scripted):
    class Search(BaseModel):
        query: str
        limit: int | None = None

    server = scripted(plain(block("Search", query="007", limit=3)))
    tools = [openai.pydantic_function_tool(Search)]
    with server.client().chat.completions.stream(model=MODEL, messages=ASK, tools=tools) as stream:
        stream.until_done()
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == Search(query="007", limit=3)


def test_bad_tools_are_named(scripted):
    server = scripted(plain("x"))
    create = server.client().chat.completions.create
    named = {"type": "function", "function": {"name": "now"}}
    for options, param in [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [*TOOLS, {"type": "function", "function": {"name": ""}}]}, "tools[2].function.name"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ]:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                create(model=MODEL, messages=ASK, stream=stream, **options)
            assert error.value.param == param
    assert server.requests() == []
