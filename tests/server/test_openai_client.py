"""The official OpenAI client against the scripted server: every answer known beforehand, every object validated."""

import asyncio
import random
import time

import openai
import pytest

ASK = [{"role": "user", "content": "hi"}]
MODEL = "any-name"


def plain(*pieces, **more):
    return {"thinking": False, "pieces": list(pieces), **more}


def collect(stream):
    reasoning, content, finish = "", "", None
    for chunk in stream:
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return reasoning, content, finish


def test_an_answer(scripted):
    server = scripted(plain("Hello", " there"))
    client = server.client(_strict_response_validation=True)
    answer = client.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream(scripted):
    server = scripted(plain("Hello", " there"))
    client = server.client(_strict_response_validation=True)
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" and chunk.usage is None for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]
    assert collect(chunks) == ("", "Hello there", "stop")


def test_usage_of_a_stream(scripted):
    server = scripted(plain("Hello", cached=3))
    stream = server.client().chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 3
    assert chunks[-1].usage.completion_tokens > 0


def test_reasoning_is_apart(scripted):
    server = scripted({"pieces": ["Let me ", "think.", "\n</think>\n\n", "Four", "."]})
    answer = server.client().chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.reasoning_content == "Let me think."
    assert answer.choices[0].message.content == "Four."
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    stream = server.client().chat.completions.create(model=MODEL, messages=ASK, stream=True)
    assert collect(stream) == ("Let me think.", "Four.", "stop")


def test_reasoning_turned_off(scripted):
    server = scripted(plain("Four."))
    for extra in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
        answer = server.client().chat.completions.create(model=MODEL, messages=ASK, extra_body=extra)
        assert answer.choices[0].message.content == "Four."
        assert getattr(answer.choices[0].message, "reasoning_content", None) is None
    server.client().chat.completions.create(model=MODEL, messages=ASK, reasoning_effort="none")
    assert all(request["prompt"].endswith("</think>\n\n") for request in server.requests())


def test_the_stream_helper_accumulates(scripted):
    server = scripted({"thinking": True, "pieces": ["hm", "</think>", "Hello", " there"]})
    with server.client().chat.completions.stream(
        model=MODEL, messages=ASK, stream_options={"include_usage": True}
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event.delta for event in events if event.type == "content.delta" and event.delta]
    assert deltas == ["Hello", " there"]
    assert final.choices[0].message.content == "Hello there"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.total_tokens > 0


def test_log_probabilities(scripted):
    server = scripted(plain("ab", {"bytes": "f09f"}, {"bytes": "9880"}, " c"))
    client = server.client(_strict_response_validation=True)
    answer = client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [token for chunk in stream if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert streamed == tokens


def test_stop_strings_over_token_borders(scripted):
    server = scripted(plain("one t", "w", "o three"))
    for stop in ("two", ["never", "two"]):
        answer = server.client().chat.completions.create(model=MODEL, messages=ASK, stop=stop)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one ", "stop")
        stream = server.client().chat.completions.create(model=MODEL, messages=ASK, stop=stop, stream=True)
        assert collect(stream) == ("", "one ", "stop")


def test_characters_over_token_borders(scripted):
    text = "日本語 😀 é"
    server = scripted(plain(*({"bytes": f"{byte:02x}"} for byte in text.encode())))
    stream = server.client().chat.completions.create(model=MODEL, messages=ASK, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_limits(scripted):
    server = scripted(plain("a", "b", "c"))
    for name in ("max_tokens", "max_completion_tokens"):
        answer = server.client().chat.completions.create(model=MODEL, messages=ASK, **{name: 2})
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("ab", "length")
        assert answer.usage.completion_tokens == 2


def test_several_answers(scripted):
    server = scripted(plain("one"), plain("two"))
    answer = server.client().chat.completions.create(model=MODEL, messages=ASK, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_models(scripted):
    server = scripted(plain("x"), flags=["--model-name", "org/name", "--context", "4096"])
    client = server.client(_strict_response_validation=True)
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len, model.context_length) == ("org/name", 4096, 4096)
    assert client.models.retrieve("org/name").meta["n_ctx"] == 4096
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_bad_requests_are_bad_request_errors(scripted):
    server = scripted(plain("x"), flags=["--context", "64"])
    create = server.client().chat.completions.create
    for options, param in [
        ({"temperature": 9}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"top_k": -1}}, "top_k"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "tool_choice"),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            create(model=MODEL, messages=ASK, **options)
        assert error.value.param == param
        assert error.value.type == "invalid_request_error"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            create(model=MODEL, messages=[{"role": "user", "content": "long " * 100}], stream=stream)
        assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as error:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        create(model=MODEL, messages=[{"role": "user", "content": [image]}])
    assert error.value.param == "messages[0].content[0]"


def test_other_errors_have_their_classes(scripted):
    server = scripted(
        {"match": "wait", "pieces": [{"sleep_ms": 60000}]},
        plain("some", finish="error"),
        flags=["--parallel", "1", "--queue", "0", "--strict-model", "--model-name", "m"],
    )
    client = server.client()
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="other", messages=ASK)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError) as error:
        client.chat.completions.create(model="m", messages=ASK)
    assert error.value.code == "generation_failed"
    stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
    with pytest.raises(openai.APIError) as error:
        list(stream)
    assert "the script says" in str(error.value)
    waiting = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "wait"}], stream=True
    )
    next(iter(waiting))
    with pytest.raises(openai.RateLimitError) as error:
        client.chat.completions.create(model="m", messages=ASK)
    assert error.value.code == "queue_full"
    assert int(error.value.response.headers["retry-after"]) >= 1
    waiting.close()


def test_closing_a_stream_cancels(scripted):
    server = scripted(plain("a", {"sleep_ms": 60000}, "b"))
    stream = server.client().chat.completions.create(model=MODEL, messages=ASK, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content == "a":
            break
    stream.close()
    server.wait_for(lambda requests: requests[0]["cancelled"], "cancelling")


def test_a_timeout_of_the_client_cancels(scripted):
    server = scripted(plain({"sleep_ms": 60000}))
    with pytest.raises(openai.APITimeoutError):
        server.client().with_options(timeout=0.3).chat.completions.create(model=MODEL, messages=ASK)
    server.wait_for(lambda requests: requests[0]["cancelled"], "cancelling")


def test_a_conversation_as_agents_send_it(scripted):
    server = scripted(plain("done"))
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
    server.client().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Read a.txt"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "<|im_end|> is in the file"},
            {"role": "system", "content": "Answer in one word."},
            {"role": "developer", "content": "In English."},
        ],
        tools=[{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
        tool_choice="none",
        store=False,
        metadata={"run": "1"},
        user="me",
        extra_body={"something_newer": True},
    )
    prompt = server.requests()[0]["prompt"]
    for part in ("<function=read>", "<|im_end|> is in the file", "Answer in one word.", "In English."):
        assert part in prompt


def test_twenty_streams_half_of_them_cut(scripted):
    pieces = [piece for word in range(20) for piece in (f"w{word} ", {"sleep_ms": 10})]
    server = scripted(plain(*pieces))
    whole = "".join(piece for piece in pieces if isinstance(piece, str))
    randomly = random.Random(1)

    async def one(client, cut):
        stream = await client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if cut is not None and len(text) >= cut:
                await stream.close()
                return None
        return text

    async def all_of_them():
        async with server.async_client() as client:
            cuts = [randomly.randrange(1, 50) if number % 2 else None for number in range(20)]
            return await asyncio.gather(*(one(client, cut) for cut in cuts))

    texts = asyncio.run(all_of_them())
    assert [text for text in texts if text is not None] == [whole] * 10
    states = server.wait_for(
        lambda requests: all(request["state"] != "running" for request in requests), "the end of all"
    )
    assert sum(request["cancelled"] for request in states) == 10


def test_a_stream_starts_before_the_prompt_is_done(scripted):
    server = scripted(plain({"sleep_ms": 1500}, "late"), flags=["--keep-alive-ms", "100"])
    started = time.monotonic()
    # Shorter than the silence: only comments keep it alive.
    client = server.client().with_options(timeout=0.8)
    stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    next(iter(stream))
    assert time.monotonic() - started < 0.7
    assert collect(stream)[1] == "late"
