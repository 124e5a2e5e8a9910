"""instructor"""

import instructor
import openai
import pytest
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def client(server, mode):
    plain = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)
    return instructor.from_openai(plain, mode=mode)


def test_markdown_json(scripted):
    """JSON in Markdown, asked again after an answer that does not fit"""
    lines = [
        {"thinking": False, "pieces": ['```json\n{"name": "Ada", "age": "unknown"}\n```']},
        {"thinking": False, "pieces": ['```json\n{"name": "Ada", "age": 36}\n```']},
    ]
    server = scripted(*lines)
    ask = {"model": "any", "messages": [{"role": "user", "content": "Who wrote the first program?"}]}
    person = client(server, instructor.Mode.MD_JSON).chat.completions.create(response_model=Person, max_retries=2, **ask)
    assert (person.name, person.age, len(server.requests())) == ("Ada", 36, 2)


def test_modes_that_need_a_grammar_are_refused(scripted):
    """modes that need a constrained answer end in a clear error"""
    server = scripted({"thinking": False, "pieces": ["x"]})
    ask = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    for mode, field in [(instructor.Mode.TOOLS, "tool_choice"), (instructor.Mode.JSON, "response_format")]:
        with pytest.raises(Exception, match=field):
            client(server, mode).chat.completions.create(response_model=Person, max_retries=0, **ask)
