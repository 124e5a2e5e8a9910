"""The demo model's own evaluation through `lily serve`: 700 held-out prompts, greedy."""

import concurrent.futures
import json
import subprocess
import sys

from conftest import ROOT
from test_serving import ask

RECIPE = ROOT / "tools" / "demo-model"
# evaluation.txt of the recipe, in float32 on a GPU: 667 of 700. Rounding may flip a few; one point is seven prompts.
RIGHT, OF, ALLOWED = 667, 700, 7


def answer(server, sample):
    """The answer in the words of the recipe's checks: tool calls written out as the model writes them."""
    messages = sample["messages"][:-1]
    if not sample["thinking"]:
        messages = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]
    request = {"messages": messages, "temperature": 0, "max_tokens": 220, "enable_thinking": sample["thinking"]}
    if sample.get("tools"):
        request["tools"] = sample["tools"]
    choice = ask(server, request)["choices"][0]
    text = choice["message"]["content"] or ""
    for call in choice["message"].get("tool_calls") or []:
        arguments = json.loads(call["function"]["arguments"])
        values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
        parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        text += f"<tool_call>\n<function={call['function']['name']}>\n{parameters}</function>\n</tool_call>"
    return text.strip(), choice["finish_reason"]


def test_the_share_right_is_the_recipes(serve, tmp_path):
    prompts = tmp_path / "eval.jsonl"
    subprocess.run([sys.executable, RECIPE / "generate.py", prompts, "--each", "25", "--split", "eval", "--seed", "77"],
                   check=True)
    sys.path.insert(0, str(RECIPE))
    from checks import good

    server = serve()
    samples = [json.loads(line) for line in prompts.open()]
    assert len(samples) == OF
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda s: answer(server, s), samples))
    right = [good(s["check"], text) and reason != "length" for s, (text, reason) in zip(samples, answers)]
    by_family = {}
    for sample, ok in zip(samples, right):
        by_family.setdefault(sample["family"], []).append(ok)
    table = ", ".join(f"{f} {sum(r)}/{len(r)}" for f, r in sorted(by_family.items()) if not all(r))
    print(f"{sum(right)} of {OF} right; not all right: {table}")
    assert abs(sum(right) - RIGHT) <= ALLOWED, table
