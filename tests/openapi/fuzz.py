"""Requests that schemathesis makes of OpenAI's description, good ones and broken ones, for a given time.

    python fuzz.py BINARY MINUTES [SEED]

BINARY is lily-scripted. No answer may be a 5xx but the documented 501 and 503, none may take longer than 10 seconds, and the answer to a
good request has the described shape. What is refused for a field is sent again without it. Ends with a line of counts, and with status 1 at the first answer that is not so.
"""

import collections
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.core.errors import UnsupportedSchema
from test_replies import check, events

FOLDER = Path(__file__).parent
ALLOWED = {501, 503}
MOST_SECONDS = 10
# Of one kind of request before the next has its turn.
EXAMPLES_A_ROUND = 25
SCHEMAS = {
    "/chat/completions": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    "/completions": ("CreateCompletionResponse", "CreateCompletionResponse"),
    "/responses": ("Response", "ResponseStreamEvent"),
    "/models": ("ListModelsResponse", None),
    "/models/{model}": ("Model", None),
}
# Stands in for one that is refused, where there has to be one.
PLAIN = {"input": "hi", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
SCRIPT = [
    {"match": "a", "thinking": True, "pieces": ["Hm.", "</think>", "Hello", " wörld"]},
    {"thinking": False, "pieces": ["Hello", "<tool_call>\n<function=", "x>\n</function>\n</tool_call>"]},
]


def describe(case):
    return f"{case.method} {case.path} {case.path_parameters} {case.query} {case.body!r}"[:4000]


def without_fault(case, reply):
    """The same request without the field that was refused, as an error names it; None if that is all that can be done. Nearly every
    body of the description has a field that is not offered here, behind which nothing else would be looked at."""
    if reply.status_code != 400 or not isinstance(case.body, dict):
        return None
    name = re.split(r"[.\[]", json.loads(reply.text)["error"]["param"] or "")[0]
    if name not in case.body or case.body[name] == PLAIN.get(name):
        return None
    rest = {key: value for key, value in case.body.items() if key != name}
    return rest | {name: PLAIN[name]} if name in PLAIN else rest


def judge_all(case, url, counts, good):
    """Sends a request, and again without each field that is refused."""
    body = case.body
    while body is not None:
        case.body = body
        body = without_fault(case, judge(case, url, counts, good))


def judge(case, url, counts, good):
    """Sends one request and raises what does not hold. Of the answer to a broken one, a part may be broken that it only gives back."""
    began = time.monotonic()
    try:
        reply = case.call(base_url=url, timeout=MOST_SECONDS)
    except requests.Timeout as error:
        raise AssertionError(f"no answer within {MOST_SECONDS} s: {describe(case)}") from error
    counts[(case.operation.label, reply.status_code)] += 1
    assert reply.status_code < 500 or reply.status_code in ALLOWED, f"{reply.status_code} {reply.text[:500]}: {describe(case)}"
    assert time.monotonic() - began < MOST_SECONDS, f"a slow answer: {describe(case)}"
    if reply.status_code == 200 and good:
        whole, event = SCHEMAS[case.operation.path]
        if reply.headers["content-type"][0].startswith("text/event-stream"):
            for data in events(reply.text):
                check(data, event if "error" not in data else "ErrorResponse")
        else:
            check(json.loads(reply.text), whole)
    elif reply.status_code != 200 and reply.text:
        check(json.loads(reply.text), "ErrorResponse")
    return reply


def round_of(operation, mode, seed, url, counts):
    settings = hypothesis.settings(
        max_examples=EXAMPLES_A_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def test(case):
        judge_all(case, url, counts, mode is GenerationMode.POSITIVE)

    try:
        test()
    except hypothesis.errors.Unsatisfiable:
        counts[(operation.label, "nothing to send")] += 1
    except UnsupportedSchema:
        # A broken body that it began and could not finish; what was sent before it stands, and the next round draws others.
        counts[(operation.label, "given up by schemathesis")] += 1


def main():
    binary, minutes = sys.argv[1], float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    print(f"seed {seed}, {minutes} minutes", flush=True)
    warnings.simplefilter("ignore")
    operations = [operation.ok() for operation in schemathesis.openapi.from_path(FOLDER / "openapi.json").get_all_operations()]
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w") as log:
        script = Path(folder) / "script.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
        command = [binary, "--script", str(script), "--port", "0", "--context", "4096"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            url = server.stdout.readline().removeprefix("listening on ").strip() + "/v1"
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                for operation in operations:
                    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                        if time.monotonic() < end:
                            round_of(operation, mode, seed, url, counts)
                seed += 1
            assert server.poll() is None, f"the server ended: {Path(log.name).read_text()[-2000:]}"
        finally:
            server.kill()
            server.wait()
    for (label, status), count in sorted(counts.items(), key=str):
        print(f"{label}: {status} x {count}")
    for label in {label for label, _ in counts if label.startswith("POST")}:
        assert counts[(label, 200)], f"{label} was never answered with 200: this tests nothing"
    print(f"{sum(counts.values())} requests")


if __name__ == "__main__":
    main()
