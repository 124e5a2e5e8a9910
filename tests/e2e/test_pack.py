"""`lily pack`: a model in pages, which is a model like any other."""

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import FIXTURES
from safetensors import deserialize
from safetensors.numpy import load_file

NANO = FIXTURES / "nano"


def logits(lily, model, tmp_path, *flags):
    tokens, out = tmp_path / "tokens.json", tmp_path / "logits.safetensors"
    tokens.write_text(json.dumps(list(range(3, 40))))
    done = lily("logits", "--model", model, "--tokens", tokens, "--out", out, "--device", "cpu", *flags)
    assert done.returncode == 0, done.stderr
    return load_file(out)["logits"]


def test_a_packed_model_gives_the_same_logits(lily, tmp_path):
    out = tmp_path / "packed"
    done = lily("pack", "--model", NANO, "--out", out)
    assert done.returncode == 0 and str(out) in done.stderr, done.stderr
    assert np.array_equal(logits(lily, NANO, tmp_path), logits(lily, out, tmp_path))
    manifest = json.loads((out / "lily-pack.json").read_text())
    weights = out / "model.safetensors"
    assert manifest["format"] == 1 and manifest["source"] == "nano" and manifest["page"] == 16384
    assert manifest["bytes"] == weights.stat().st_size and manifest["bytes"] % 16384 == 0
    # Other readers of safetensors find the same tensors.
    packed, original = dict(deserialize(weights.read_bytes())), dict(deserialize((NANO / "model.safetensors").read_bytes()))
    assert original.keys() <= packed.keys() and all(packed[name] == tensor for name, tensor in original.items())
    names = {path.name for path in NANO.iterdir() if path.suffix in (".json", ".jinja")}
    assert "config.json" in names and not list(out.glob("*.lily-partial"))
    checked = lily("pack", "--check", "--model", out)
    assert checked.returncode == 0 and "of nano" in checked.stderr, checked.stderr


def test_what_was_damaged_is_refused(lily, tmp_path):
    out = tmp_path / "packed"
    assert lily("pack", "--model", NANO, "--out", out).returncode == 0
    weights, manifest = out / "model.safetensors", out / "lily-pack.json"
    good, text = weights.read_bytes(), manifest.read_text()

    def refused(command, *words):
        done = lily(*command)
        assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr

    weights.write_bytes(good[:-1])
    refused(["inspect", out], "model.safetensors", str(len(good) - 1), str(len(good)), "not copied whole")
    weights.write_bytes(good)
    manifest.write_text(text.replace('"format": 1', '"format": 9'))
    refused(["inspect", out], "lily-pack.json", "format is 9", "reads 1")
    manifest.write_text(text)
    half = len(good) // 2
    weights.write_bytes(good[:half] + bytes([good[half] ^ 1]) + good[half + 1:])
    refused(["pack", "--check", "--model", out], "model.safetensors", "in tensor", "damaged")


def test_what_cannot_be_packed_is_refused(lily, tmp_path):
    out = tmp_path / "packed"
    for flags, words in [
        (["--model", "synth:layer4", "--out", out], ["--model synth:layer4", "lily synth"]),
        (["--model", tmp_path / "none", "--out", out], ["none"]),
        (["--check", "--model", NANO], ["no packed model", "lily-pack.json"]),
        (["--model", NANO, "--out", NANO], ["--out", "the model itself"]),
        (["--model", NANO], ["--out"]),
    ]:
        done = lily("pack", *flags)
        assert done.returncode in (1, 2) and all(word in done.stderr for word in words), done.stderr
        assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    done = lily("pack", "--model", NANO, "--out", out)
    assert done.returncode == 1 and "notes.txt" in done.stderr and "--force" in done.stderr, done.stderr
    assert lily("pack", "--model", NANO, "--out", out, "--force").returncode == 0
    assert (out / "notes.txt").read_text() == "mine"
    done = lily("pack", "--model", out, "--out", tmp_path / "again")
    assert done.returncode == 1 and "packed already" in done.stderr, done.stderr


def test_parts_that_nobody_reads_are_left_out(lily, tmp_path):
    """A vision tower of terabytes, which is a hole in the file."""
    model, out = tmp_path / "model", tmp_path / "packed"
    shutil.copytree(NANO, model)
    weights = model / "model.safetensors"
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    header, data = json.loads(weights.read_bytes()[8:8 + length]), weights.read_bytes()[8 + length:]
    huge = len(data) + (1 << 42)
    header["vision_tower.x"] = {"dtype": "U8", "shape": [huge - len(data)], "data_offsets": [len(data), huge]}
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data)
    try:
        with open(weights, "r+b") as file:
            file.truncate(8 + len(text) + huge)
    except OSError:
        pytest.skip("this file system has no files of terabytes")
    done = lily("pack", "--model", model, "--out", out)
    assert done.returncode == 0, done.stderr
    assert (out / "model.safetensors").stat().st_size < 1 << 30
    assert np.array_equal(logits(lily, NANO, tmp_path), logits(lily, out, tmp_path))


def test_an_interrupt_leaves_nothing_and_a_kill_is_started_again(lily, lily_bin, tmp_path):
    model, out = tmp_path / "model", tmp_path / "packed"
    sizes = ["--preset", "layer4", "--vocab", "4096", "--experts", "32", "--hidden", "1024"]
    assert lily("synth", *sizes, "--out", model).returncode == 0
    for how, left in [(signal.SIGINT, False), (signal.SIGKILL, True)]:
        process = subprocess.Popen([lily_bin, "pack", "--model", model, "--out", out], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        part = out / "model.safetensors.lily-partial"
        while not (part.exists() and part.stat().st_size > 1 << 20):
            assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        assert process.returncode == (130 if how == signal.SIGINT else -how), said
        assert part.exists() == left and not (out / "config.json").exists(), said
    done = lily("pack", "--model", model, "--out", out)
    assert done.returncode == 0 and not part.exists(), done.stderr
    assert lily("pack", "--check", "--model", out).returncode == 0
