"""langchain-openai"""

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

PARIS = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"


def plain(*pieces, **more):
    return {"thinking": False, "pieces": list(pieces), **more}


def chat(server, **options):
    return ChatOpenAI(base_url=server.url + "/v1", api_key="none", model="any", max_retries=0, timeout=30, **options)


@tool
def get_weather(city: str) -> str:
    """Looks up the weather."""
    return "rain"


def test_whole_and_streamed(scripted):
    """answers whole and streamed, with usage"""
    model = chat(scripted(plain("Hello", " there", cached=2)), stream_usage=True)
    whole = model.invoke([SystemMessage("Be brief."), HumanMessage([{"type": "text", "text": "hi"}])])
    assert whole.content == "Hello there"
    assert whole.usage_metadata["input_token_details"]["cache_read"] == 2
    chunks = list(model.stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == "Hello there"
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == whole.usage_metadata["output_tokens"]


def test_a_tool_loop(scripted):
    """a tool call whole and streamed, and its result sent back beside null content"""
    server = scripted(plain(PARIS), plain(PARIS[:60], PARIS[60:]), plain("Rain."))
    model = chat(server).bind_tools([get_weather])
    first = model.invoke("Weather in Paris?")
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    added = None
    for chunk in model.stream("Weather in Paris?"):
        added = chunk if added is None else added + chunk
    assert [(call["name"], call["args"]) for call in added.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([HumanMessage("Weather in Paris?"), first, result]).content == "Rain."
    assert "<tool_response>\nrain\n</tool_response>" in server.requests()[-1]["prompt"]


def test_responses(scripted):
    """the same through responses"""
    model = chat(scripted(plain(PARIS)), use_responses_api=True, output_version="v1").bind_tools([get_weather])
    (call,) = model.invoke("Weather in Paris?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
