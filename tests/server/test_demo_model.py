"""The official OpenAI client against the product and its demo model: the whole way through."""

import openai
import pytest

ASK = [{"role": "user", "content": "Hello"}]


def test_an_answer_and_a_stream_agree(lily):
    client = lily.client(_strict_response_validation=True)
    options = {"model": "any", "messages": ASK, "temperature": 0, "max_tokens": 200}
    answer = client.chat.completions.create(**options)
    message = answer.choices[0].message
    assert isinstance(message.content, str)
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    content, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        content += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert content == message.content
    assert usage.completion_tokens == answer.usage.completion_tokens
    assert usage.prompt_tokens == answer.usage.prompt_tokens


def test_the_same_seed_gives_the_same_answer(lily):
    client = lily.client()
    options = {"model": "any", "messages": ASK, "temperature": 1.5, "seed": 11, "max_tokens": 30}
    first, second = (client.chat.completions.create(**options).choices[0].message for _ in range(2))
    assert first == second


def test_log_probabilities_are_those_of_the_model(lily):
    answer = lily.client().chat.completions.create(
        model="any",
        messages=ASK,
        temperature=0,
        max_tokens=20,
        logprobs=True,
        top_logprobs=5,
        extra_body={"enable_thinking": False},
    )
    for token in answer.choices[0].logprobs.content:
        values = [alternative.logprob for alternative in token.top_logprobs]
        assert values == sorted(values, reverse=True) and all(value <= 0 for value in values)
        assert token.logprob == pytest.approx(values[0], abs=1e-6), "greedy takes the likeliest"


def test_a_text_is_scored_as_it_was_written(lily):
    """What an answer's tokens were given when they were chosen, they are given as a prompt too: computed in other pieces, bit by bit
    the same."""
    client = lily.client()
    options = {"model": "any", "temperature": 0, "logprobs": 2}
    prompt = "The capital of Japan is"
    written = client.completions.create(prompt=prompt, max_tokens=60, **options).choices[0]
    count = len(written.logprobs.tokens)
    assert count > 32, "more than one piece"
    scored = client.completions.create(prompt=prompt + written.text, max_tokens=0, echo=True, **options).choices[0]
    assert scored.text == prompt + written.text
    assert scored.logprobs.token_logprobs[0] is None
    for name in ["tokens", "token_logprobs", "top_logprobs"]:
        assert getattr(scored.logprobs, name)[-count:] == getattr(written.logprobs, name), name


def test_errors_and_models(lily):
    client = lily.client()
    (model,) = client.models.list().data
    assert model.max_model_len > 0
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x " * 400_000}])
    assert error.value.code == "context_length_exceeded"


def test_the_health_route(lily):
    assert lily.get("/health") == {"status": "ok"}


def test_answers_that_stay_are_computed_once_more_and_kept(lily):
    """With reasoning that stays in the prompt, each turn's prompt begins with all of the one before it."""
    client, messages, before = lily.client(), [], 0
    options = {"model": "any", "temperature": 0, "max_tokens": 200, "extra_body": {"preserve_thinking": True}}
    for question in ["What is the capital of Japan?", "And of France?", "And of Italy?"]:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(messages=messages, **options)
        # The last tokens of a prompt are always computed: they open the answer.
        assert answer.usage.prompt_tokens_details.cached_tokens >= before - 2
        before = answer.usage.prompt_tokens
        said = answer.choices[0].message
        messages.append({"role": "assistant", "content": said.content, "reasoning_content": said.reasoning_content})
