"""Prefill or decode of mlx-lm on a checkpoint in MLX's format, as llama-bench and `lily bench` time them.

Run by the python that install_mlx.sh leaves; prints one JSON object:

  python mlx_bench.py MODEL --phase prefill|decode --contexts 128,512 --gen N --repeat R --longest SECONDS

Prefill is one call for at most 2,048 tokens, mlx-lm's own step, until the last logits are there. Decode makes each next token the
most probable one, and only the steps are timed; what is before them is prefilled and copied for each repeat. What the first tokens
say would take longer than --longest is timed with fewer tokens, which the result says; a depth that cannot be reached is skipped.

Scales, biases and activations are float32 unless --dtype says otherwise: with bfloat16, as the files have them, MLX's products on a
processor take seven times as long (layer4 on a Zen 4 core, 2026-11-30: 2.2 s a token, float16 9 s, float32 0.29 s).
"""
import argparse
import copy
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache
from mlx_lm.utils import load_model

STEP = 2048


def prompt(n, vocab):
    """The tokens that `lily bench` takes."""
    return [i * 2654435761 % 2**32 % vocab for i in range(n)]


def prefill(model, state, tokens):
    """Logits of the last token."""
    logits = None
    for at in range(0, len(tokens), STEP):
        logits = model(mx.array([tokens[at:at + STEP]]), cache=state)[:, -1]
        mx.eval(logits, [layer.state for layer in state])
    return logits


def decode(model, state, steps):
    token = mx.array([[1]])
    for _ in range(steps):
        token = mx.argmax(model(token, cache=state)[:, -1], axis=-1, keepdims=True)
        # the next step is put together while this one is computed, as mlx-lm does
        mx.async_eval(token)
    mx.eval(token)


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def affordable(wanted, tokens, seconds, longest):
    """How many tokens fit, when so many took so long; as many as that at least."""
    return min(wanted, max(tokens, int(longest * tokens / seconds)))


def time_prefill(model, tokens, args):
    first = tokens[:8]
    # once to compile, once to see how long it takes
    prefill(model, cache.make_prompt_cache(model), first)
    seconds = timed(lambda: prefill(model, cache.make_prompt_cache(model), first))
    tokens = tokens[:affordable(len(tokens), len(first), seconds, args.longest)]
    if tokens == first:
        return {"tokens": len(first), "samples": [len(first) / seconds]}
    samples = [timed(lambda: prefill(model, cache.make_prompt_cache(model), tokens)) for _ in range(args.repeat)]
    return {"tokens": len(tokens), "samples": [len(tokens) / s for s in samples]}


def time_decode(model, tokens, args):
    before = cache.make_prompt_cache(model)
    if tokens:
        prefill(model, before, tokens[:8])
        at_once = timed(lambda: prefill(model, before, tokens[8:16]))
        if at_once * len(tokens) / 8 > args.longest:
            return {"skipped": f"the prefill before would take {at_once * len(tokens) / 8:.0f} s"}
        prefill(model, before, tokens[16:])
    decode(model, copy.deepcopy(before), 1)
    seconds = timed(lambda: decode(model, copy.deepcopy(before), 2))
    steps = affordable(args.gen, 2, seconds, args.longest)
    if steps == 2:
        return {"tokens": 2, "samples": [2 / seconds]}
    samples = []
    for _ in range(args.repeat):
        state = copy.deepcopy(before)
        samples.append(steps / timed(lambda: decode(model, state, steps)))
    return {"tokens": steps, "samples": samples}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model", type=Path)
    ap.add_argument("--phase", choices=["prefill", "decode"], required=True)
    ap.add_argument("--contexts", type=lambda text: [int(n) for n in text.split(",")], required=True)
    ap.add_argument("--gen", type=int, default=48)
    ap.add_argument("--repeat", type=int, default=1)
    ap.add_argument("--longest", type=float, default=60)
    ap.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = ap.parse_args()
    mx.set_default_device(mx.cpu)
    model, config = load_model(args.model)
    dtype = getattr(mx, args.dtype)
    model.update(tree_map(lambda x: x.astype(dtype) if x.dtype == mx.bfloat16 else x, model.parameters()))
    time_one = time_prefill if args.phase == "prefill" else time_decode
    out = [{"context": n} | time_one(model, prompt(n, config["text_config"]["vocab_size"]), args) for n in args.contexts]
    json.dump({"version": f"{version('mlx-lm')}, mlx {version('mlx')}, {args.dtype}", "results": out}, sys.stdout)


if __name__ == "__main__":
    main()
