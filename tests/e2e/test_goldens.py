"""`lily logits` against the oracle: every golden, every way to feed it."""

import json

import numpy as np
import pytest
from conftest import FIXTURES
from safetensors import safe_open
from safetensors.numpy import load_file

GOLDENS = sorted(FIXTURES.glob("*/goldens/p*.safetensors"))
# Of the largest |logit|; two other implementations stay within half of it.
BOUND = 2e-5


def logits(lily, tmp_path, golden, *flags):
    tokens = load_file(golden)["tokens"].tolist()
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    out = tmp_path / "out.safetensors"
    done = lily("logits", "--model", golden.parents[1], "--tokens", tmp_path / "tokens.json", "--out", out, *flags)
    assert done.returncode == 0, done.stderr
    with safe_open(out, "np") as file:
        return load_file(out), file.metadata()


def check(golden, made):
    want = load_file(golden)
    place = {p: i for i, p in enumerate(made["positions"].tolist())}
    rows = [(place[p], i) for i, p in enumerate(want["positions"].tolist()) if p in place]
    assert rows
    ours, theirs = made["logits"][[r for r, _ in rows]], want["logits"][[i for _, i in rows]]
    assert np.abs(ours - theirs).max() <= BOUND * np.abs(want["logits"]).max()
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g.parents[1].name}-{g.stem}")
def test_every_chunk_size(lily, tmp_path, golden, chunk):
    made, metadata = logits(lily, tmp_path, golden, "--prefill-chunk", chunk)
    check(golden, made)
    tokens = len(load_file(golden)["tokens"])
    assert made["positions"].tolist() == list(range(tokens))
    chunks = json.loads(metadata["prefill_chunks"])
    assert sum(chunks) == tokens and set(chunks[:-1]) <= {chunk} and chunks[-1] <= chunk
    assert metadata["decode_steps"] == "0"


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g.parents[1].name}-{g.stem}")
def test_decoding_from_anywhere(lily, tmp_path, golden):
    tokens = len(load_file(golden)["tokens"])
    for start in sorted({0, 1, tokens // 2, tokens - 1, tokens, tokens + 9}):
        made, metadata = logits(lily, tmp_path, golden, "--decode-from", start)
        check(golden, made)
        assert metadata["decode_steps"] == str(max(0, tokens - start))


def test_last_positions_only(lily, tmp_path):
    golden = GOLDENS[0].parents[1] / "goldens" / "p0300.safetensors"
    whole, _ = logits(lily, tmp_path, golden, "--prefill-chunk", 64)
    for last in [1, 17, 300, 1000]:
        made, _ = logits(lily, tmp_path, golden, "--prefill-chunk", 64, "--last", last)
        assert made["positions"].tolist() == list(range(300))[-last:]
        assert (made["logits"] == whole["logits"][-last:]).all()


def test_threads_do_not_change_a_bit(lily, tmp_path):
    golden = GOLDENS[0].parents[1] / "goldens" / "p0065.safetensors"
    one, _ = logits(lily, tmp_path, golden, "--threads", 1)
    for threads in [2, 5]:
        more, _ = logits(lily, tmp_path, golden, "--threads", threads)
        assert (more["logits"] == one["logits"]).all()


@pytest.mark.parametrize(("text", "named"), [
    ("", "JSON array"), ("{}", "JSON array"), ("[]", "empty"), ("[1, 99999]", "entry 1"), ("[-1]", "entry 0"),
    ("[1.5]", "entry 0"), ("[\"a\"]", "entry 0"), ("[1", "JSON array"),
])
def test_bad_tokens_are_named(lily, tmp_path, text, named):
    (tmp_path / "tokens.json").write_text(text)
    done = lily("logits", "--model", FIXTURES / "nano", "--tokens", tmp_path / "tokens.json", "--out", tmp_path / "x")
    assert done.returncode == 1 and named in done.stderr and "panicked" not in done.stderr
    assert not (tmp_path / "x").exists()
