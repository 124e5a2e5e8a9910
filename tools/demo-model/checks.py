"""Whether an answer is right: shared by evaluate.py and by the test that asks a running server."""
import json, re
from tables import CATEGORIES


def calls(text):
    out = []
    for f, body in re.findall(r"<tool_call>\s*<function=([^>\n]+)>\n(.*?)</function>\s*</tool_call>", text, re.S):
        out.append([f, {k: v for k, v in re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", body, re.S)}])
    return out


def good(check, text):
    kind, v = check
    if kind == "exact":
        return text.strip() == v
    if kind == "contains":
        return v in text
    if kind == "all":
        return all(x in text for x in v)
    if kind == "members":
        xs = [re.sub(r"^(\d+\.|-)\s*", "", y).strip() for y in (text.split("\n") if "\n" in text else text.split(","))]
        return len(xs) == v[0] == len(set(xs)) and all(x in CATEGORIES[v[1]] for x in xs)
    if kind == "json":
        try:
            return json.loads(text) == v
        except ValueError:
            return False
    if kind == "call":
        want = [[f, {k: x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for k, x in args.items()}] for f, args in v]
        return calls(text) == want
    raise ValueError(kind)
