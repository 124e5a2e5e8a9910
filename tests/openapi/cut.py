"""Cuts OpenAI's description of its API to the paths that Lily serves: python cut.py openapi.json, in this folder.

What is cut away are other paths, schemas that nothing left refers to, and everything that says nothing about a message's shape
(descriptions, examples, code samples)."""

import json
import sys
from pathlib import Path

SERVED = {
    "/chat/completions": "post",
    "/completions": "post",
    "/responses": "post",
    "/models": "get",
    "/models/{model}": "get",
}
PROSE = {"description", "title", "example", "examples", "x-oaiMeta", "x-oaiTypeLabel", "x-oaiExpandable", "externalDocs", "summary"}


def lean(part, names=False):
    """Without prose. The keys of `properties` and `schemas` are names, whatever they are called."""
    if isinstance(part, list):
        return [lean(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {key: lean(value, key in ("properties", "schemas")) for key, value in part.items() if names or key not in PROSE}


def references(part):
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [value] if key == "$ref" and isinstance(value, str) else references(value)
    elif isinstance(part, list):
        for item in part:
            yield from references(item)


def at(whole, reference):
    for name in reference.removeprefix("#/").split("/"):
        whole = whole[name]
    return whole


def main():
    whole = json.loads(Path(sys.argv[1]).read_text())
    paths = {path: {method: lean(whole["paths"][path][method])} for path, method in SERVED.items()}
    components, todo, done = {}, set(references(paths)), set()
    while todo:
        reference = todo.pop()
        done.add(reference)
        _, _, kind, name = reference.split("/")
        part = lean(at(whole, reference))
        components.setdefault(kind, {})[name] = part
        todo |= set(references(part)) - done
    components = {kind: dict(sorted(parts.items())) for kind, parts in sorted(components.items())}
    info = {key: whole["info"][key] for key in ("title", "version", "license")}
    cut = {"openapi": whole["openapi"], "info": info, "paths": paths, "components": components}
    Path("openapi.json").write_text(json.dumps(cut, indent=1) + "\n")


if __name__ == "__main__":
    main()
