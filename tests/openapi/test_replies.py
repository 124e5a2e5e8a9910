"""Every reply and every event of a stream has the shape that OpenAI's description gives it."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest

DESCRIPTION = json.loads((Path(__file__).parent / "openapi.json").read_text())
THINK = {"thinking": True, "pieces": ["Let me", " see.", "</think>", "\n\nHello", " wörld"]}
CALLS = {
    "thinking": True,
    "pieces": ["Hm.", "</think>", "\n\nI look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOs", "lo\n</parameter>\n",
               "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"],
}
FAILS = {"thinking": False, "pieces": ["Hel"], "finish": "error"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}, {"type": "function", "function": {"name": "now"}}]
RESPONSE_TOOLS = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": False},
    {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
]
MESSAGES = [{"role": "user", "content": "hi"}]


def open_ended(part):
    """Ours may have more: what is described is required, and nothing else is forbidden. Without that, more than one alternative may
    fit, so one that fits is enough."""
    if isinstance(part, list):
        return [open_ended(item) for item in part]
    if not isinstance(part, dict):
        return part
    renamed = {("anyOf" if key == "oneOf" else key): open_ended(value) for key, value in part.items()}
    if renamed.get("additionalProperties") is False:
        del renamed["additionalProperties"]
    # A word of an older version of the format, which the description still has.
    return {"anyOf": [renamed, {"type": "null"}]} if renamed.pop("nullable", False) else renamed


COMPONENTS = open_ended(DESCRIPTION["components"])
# Described as never null, and null in what OpenAI sends: before a stream's end there is no reason for it, and nothing stands before the
# first token of a prompt.
CHOICE = COMPONENTS["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
LISTS = CHOICE["logprobs"]["anyOf"][0]["properties"]
for field, null in [(CHOICE, "finish_reason"), (LISTS["token_logprobs"], "items"), (LISTS["top_logprobs"], "items")]:
    field[null] = {"anyOf": [field[null], {"type": "null"}]}


def check(value, schema):
    jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": COMPONENTS}
    ).validate(value)


def post(server, path, body):
    """Status and text."""
    request = urllib.request.Request(server.url + "/v1" + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def events(text):
    """The data of each event."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(event) for event in data if event != "[DONE]"]


CHAT = {
    "plain": (THINK, {}),
    "logprobs": (THINK, {"logprobs": True, "top_logprobs": 3}),
    "several": (THINK, {"n": 3}),
    "limit": (THINK, {"max_completion_tokens": 3}),
    "stop": (THINK, {"stop": "wör", "enable_thinking": False}),
    "calls": (CALLS, {"tools": CHAT_TOOLS}),
    "usage": (THINK, {"stream_options": {"include_usage": True}}),
    "progress": (THINK, {"return_progress": True, "timings_per_token": True}),
}


@pytest.mark.parametrize("case", CHAT)
def test_chat_completions(scripted, case):
    line, more = CHAT[case]
    server = scripted(line)
    body = {"model": "any", "messages": MESSAGES} | more
    whole = {key: value for key, value in body.items() if key not in ("stream_options", "return_progress")}
    status, text = post(server, "/chat/completions", whole)
    assert status == 200, text
    check(json.loads(text), "CreateChatCompletionResponse")
    status, text = post(server, "/chat/completions", body | {"stream": True})
    chunks = events(text)
    assert status == 200 and len(chunks) > 2, text
    for chunk in chunks:
        check(chunk, "CreateChatCompletionStreamResponse")


COMPLETIONS = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "several": {"n": 2, "prompt": ["one", "two"]},
    "echo": {"echo": True},
    "echo and logprobs": {"echo": True, "logprobs": 1},
    "usage": {"stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions(scripted, case):
    server = scripted({"pieces": ["Hello", " wörld"]})
    body = {"model": "any", "prompt": "Once upon"} | COMPLETIONS[case]
    whole = {key: value for key, value in body.items() if key != "stream_options"}
    status, text = post(server, "/completions", whole)
    assert status == 200, text
    check(json.loads(text), "CreateCompletionResponse")
    status, text = post(server, "/completions", body | {"stream": True})
    chunks = events(text)
    assert status == 200 and chunks, text
    for chunk in chunks:
        check(chunk, "CreateCompletionResponse")


RESPONSES = {
    "plain": (THINK, {}),
    "limit": (THINK, {"max_output_tokens": 3}),
    "calls": (CALLS, {"tools": RESPONSE_TOOLS}),
    "settings": (THINK, {"temperature": 0.5, "top_p": 0.9, "metadata": {"a": "b"}, "store": False, "instructions": "Be brief.",
                         "reasoning": {"effort": "low"}, "parallel_tool_calls": False, "text": {"format": {"type": "text"}}}),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses(scripted, case):
    line, more = RESPONSES[case]
    server = scripted(line)
    body = {"model": "any", "input": "hi"} | more
    status, text = post(server, "/responses", body)
    assert status == 200, text
    check(json.loads(text), "Response")
    status, text = post(server, "/responses", body | {"stream": True})
    stream = events(text)
    assert status == 200 and len(stream) > 4, text
    for event in stream:
        check(event, "ResponseStreamEvent")
        # The union takes whatever one of its members takes: a named event has to be that one.
        check(event, named(event["type"]))


def named(kind):
    """The schema of a type of event."""
    fits = [name for name, schema in COMPONENTS["schemas"].items()
            if kind in schema.get("properties", {}).get("type", {}).get("enum", [])]
    assert len(fits) == 1, (kind, fits)
    return fits[0]


def test_a_failed_response(scripted):
    server = scripted(FAILS)
    _, text = post(server, "/responses", {"model": "any", "input": "hi", "stream": True})
    stream = events(text)
    assert stream[-1]["type"] == "response.failed"
    for event in stream:
        check(event, named(event["type"]))


def test_models(scripted):
    server = scripted(THINK)
    models = server.get("/v1/models")
    check(models, "ListModelsResponse")
    check(server.get(f"/v1/models/{models['data'][0]['id']}"), "Model")


@pytest.mark.parametrize("path, body", [
    ("/chat/completions", {"messages": []}),
    ("/chat/completions", {"messages": MESSAGES, "temperature": 9}),
    ("/completions", {}),
    ("/responses", {"input": "hi", "previous_response_id": "resp_1"}),
    ("/embeddings", {"input": "hi"}),
    ("/nowhere", {}),
])
def test_errors(scripted, path, body):
    status, text = post(scripted(THINK), path, body)
    assert status >= 400
    check(json.loads(text), "ErrorResponse")


def test_the_check_can_fail():
    with pytest.raises(jsonschema.ValidationError):
        check({"id": "x"}, "CreateChatCompletionResponse")
