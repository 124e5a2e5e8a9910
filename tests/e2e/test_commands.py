"""The commands as a person types them."""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import FIXTURES, ROOT
from safetensors.numpy import load

QUESTION = "What is the capital of Japan?"
GREEDY = ["--temperature", "0", "--thinking", "off"]


def test_one_answer(lily):
    done = lily("run", QUESTION, *GREEDY)
    assert done.returncode == 0
    assert done.stdout == "The capital of Japan is Tokyo.\n"
    assert "demo model" in done.stderr and "tok/s" in done.stderr


def test_nothing_but_text_goes_into_pipes(lily):
    for command in (["run", "What is 47 + 38?"], ["inspect"], ["doctor"], ["--help"], ["run", "--help"], ["frobnicate"]):
        done = lily(*command, env={"TERM": "xterm-256color", "COLORTERM": "truecolor"})
        assert "\x1b" not in done.stdout + done.stderr, command


def test_a_standard_error_that_takes_nothing_does_not_end_an_answer(lily_bin):
    with open("/dev/full", "w") as full:
        done = subprocess.run([lily_bin, "run", QUESTION, "--temperature", "0", "--thinking", "on"], stderr=full,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "The capital of Japan is Tokyo.\n"


def test_reasoning_goes_to_standard_error(lily):
    done = lily("run", "What is 47 + 38?", "--temperature", "0", "--thinking", "on")
    assert done.stdout.strip() == "47 + 38 = 85."
    assert "(thinking) Ones: 7 + 8 = 15" in done.stderr and "<think>" not in done.stdout + done.stderr


def test_piped_text(lily):
    assert lily("run", *GREEDY, stdin=QUESTION).stdout == "The capital of Japan is Tokyo.\n"
    asked = lily("run", "What is the capital", "-", *GREEDY, stdin="of Japan?")
    assert asked.returncode == 0 and asked.stdout.strip()
    assert lily("run", *GREEDY, stdin="").returncode == 1
    assert lily("run", *GREEDY, stdin=b"\xff\xfe".decode("latin-1")).returncode == 0


def test_a_silent_pipe_does_not_hang(lily_bin):
    process = subprocess.Popen([lily_bin, "run", QUESTION, *GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.read() == "The capital of Japan is Tokyo.\n"
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()


def test_json_output_and_quiet(lily):
    answer = json.loads(lily("run", QUESTION, *GREEDY, "--json").stdout)
    assert answer["content"] == "The capital of Japan is Tokyo." and answer["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] > 3
    quiet = lily("run", QUESTION, *GREEDY, "--quiet")
    assert quiet.stdout == "The capital of Japan is Tokyo.\n" and quiet.stderr == ""


def test_length_stop_and_seed(lily):
    short = json.loads(lily("run", QUESTION, *GREEDY, "--json", "--max-tokens", "3").stdout)
    assert short["finish_reason"] == "length" and short["usage"]["completion_tokens"] == 3
    stopped = lily("run", QUESTION, *GREEDY, "--stop", "Tok", "--quiet")
    assert stopped.stdout == "The capital of Japan is \n"
    story = ["run", "Tell me a story about a fox who finds a bell.", "--thinking", "off", "--temperature", "1", "--quiet"]
    first, again = (lily(*story, "--seed", 5).stdout for _ in range(2))
    assert first == again
    assert any(lily(*story, "--seed", seed).stdout != first for seed in [6, 7, 8])


def test_flags_as_environment_variables(lily):
    env = {"LILY_TEMPERATURE": "0", "LILY_THINKING": "off", "LILY_MAX_TOKENS": "2", "LILY_JSON": "true"}
    answer = json.loads(lily("run", QUESTION, env=env).stdout)
    assert answer["usage"]["completion_tokens"] == 2
    bad = lily("run", QUESTION, env={"LILY_TEMPERATURE": "hot"})
    assert bad.returncode == 2 and "temperature" in bad.stderr


@pytest.mark.parametrize(("value", "quiet"), [("1", True), ("yes", True), ("0", False), ("off", False), ("", False)])
def test_switches_as_environment_variables(lily, value, quiet):
    done = lily("run", QUESTION, *GREEDY, env={"LILY_QUIET": value})
    assert done.returncode == 0 and (done.stderr == "") == quiet


def test_an_empty_variable_counts_as_none(lily):
    done = lily("run", QUESTION, *GREEDY, env={"LILY_MODEL": "", "LILY_CONTEXT": "", "LILY_DEVICE": ""})
    assert done.stdout == "The capital of Japan is Tokyo.\n"
    typed = lily("run", QUESTION, "--model", "")
    assert typed.returncode == 2 and "wanted a model folder" in typed.stderr


@pytest.mark.parametrize("arguments", [
    ["run", "x", "--temperature", "-1"], ["run", "x", "--top-p", "0"], ["run", "x", "--threads", "0"],
    ["run", "x", "--unknown-flag"], ["run", "x", "--device", "tpu"], ["serve", "--port", "99999"], ["frobnicate"],
    ["logits"], ["run", "x", "--cache-memory", "lots"],
    ["run", "x", "--stop", ""], ["run", "x", "--precision", "fastest"],
])
def test_wrong_usage_is_an_error(lily, arguments):
    done = lily(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("error:")


def test_devices_and_precisions_that_are_not_there_say_what_is(lily):
    done = lily("run", "x", "--precision", "bf16")
    assert done.returncode == 1 and "--device metal, cuda and emu" in done.stderr and "--precision exact" in done.stderr
    assert "fast" in done.stderr
    done = lily("run", "x", "--device", "emu")
    assert done.returncode == 1 and "cargo build --features emu" in done.stderr
    for queue, env in ((["--metal-queue", "classic"], {}), ([], {"LILY_METAL_QUEUE": "metal4"})):
        done = lily("run", "x", "--device", "cpu", *queue, env=env)
        assert done.returncode == 1 and "--metal-queue is for the GPU of a Mac; wanted with it: --device metal" in done.stderr
    assert lily("run", "x", "--metal-queue", "3").returncode == 2
    # whether this machine has a driver, GPUs or neither
    done = lily("run", "x", "--device", "cuda:99")
    assert done.returncode == 1 and "panicked" not in done.stderr
    assert "no CUDA device 99" in done.stderr or "install NVIDIA's driver" in done.stderr
    done = lily("run", "x", "--device", "cuda:x")
    assert done.returncode == 2 and "cuda:N" in done.stderr


def test_auto_says_why_there_is_no_gpu_and_doctor_what_is_missing(lily):
    done = lily("run", QUESTION, "--max-tokens", "2")
    on_gpu = "CUDA device 0" in done.stderr
    assert done.returncode == 0 and (on_gpu or "CPU" in done.stderr and "(no GPU: " in done.stderr), done.stderr
    devices = json.loads(lily("doctor", "--json").stdout)["devices"]
    cuda = [device for device in devices if device["name"] == "cuda"]
    assert cuda and any(device["works"] for device in cuda) == on_gpu
    assert on_gpu or any(word in cuda[0]["detail"] for word in ["driver", "CUDA", "NVRTC"])


def test_a_context_beyond_the_model_is_refused(lily):
    done = lily("run", QUESTION, "--context", "100000")
    assert done.returncode == 1 and "8192" in done.stderr
    done = lily("run", "word " * 400, "--context", "64")
    assert done.returncode == 1 and "maximum context length is 64" in done.stderr


def test_missing_and_wrong_models_are_named(lily, tmp_path):
    nowhere = lily("run", "x", "--model", tmp_path / "nothing")
    assert nowhere.returncode == 1 and "nothing" in nowhere.stderr
    hub = lily("run", "x", "--model", "some-org/some-model", env={"HF_HOME": str(tmp_path)})
    assert hub.returncode == 1 and "hf download some-org/some-model" in hub.stderr
    broken = tmp_path / "broken"
    shutil.copytree(FIXTURES / "nano", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    began = time.monotonic()
    cut = lily("run", "x", "--model", broken)
    assert cut.returncode == 1 and "model.safetensors" in cut.stderr and "panicked" not in cut.stderr
    assert time.monotonic() - began < 5


def test_a_model_of_the_hugging_face_cache(lily, tmp_path):
    repository = tmp_path / "hub" / "models--lily--nano"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(FIXTURES / "nano", snapshot, ignore=shutil.ignore_patterns("goldens"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    done = lily("inspect", "lily/nano", env={"HF_HOME": str(tmp_path)})
    assert done.returncode == 0 and done.stdout.startswith("lily/nano")


def test_inspect(lily):
    text = lily("inspect", FIXTURES / "micro").stdout
    assert "24, 8 active" in text and "read per token" in text
    data = json.loads(lily("inspect", FIXTURES / "micro", "--json", "--context", "1000").stdout)
    assert data["memory"]["context"] == 1000 and data["geometry"]["num_experts"] == 24


def test_inspect_takes_the_model_as_other_commands_do(lily):
    micro, nano = FIXTURES / "micro", FIXTURES / "nano"
    text = lily("inspect", micro).stdout
    assert lily("inspect", "--model", micro).stdout == text
    assert lily("inspect", env={"LILY_MODEL": str(micro)}).stdout == text
    assert lily("inspect", micro, env={"LILY_MODEL": str(nano)}).stdout == text
    both = lily("inspect", micro, "--model", nano)
    assert both.returncode == 1 and "shows one model" in both.stderr


def test_a_cause_is_said_once(lily, tmp_path):
    (tmp_path / "tokens.json").write_text("[1]")
    done = lily("logits", "--tokens", tmp_path / "tokens.json", "--out", tmp_path / "nowhere" / "x")
    assert done.returncode == 1 and done.stderr.count("No such file") == 1


def test_logits_into_links_pipes_and_folders(lily, tmp_path):
    (tmp_path / "tokens.json").write_text("[1, 2, 3]")
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    logits = ["logits", "--model", FIXTURES / "nano", "--tokens", tmp_path / "tokens.json", "--out"]
    target.write_text("old")
    link.symlink_to(target)
    assert lily(*logits, link).returncode == 0
    assert link.is_symlink() and target.stat().st_size > 3 * 1040 * 4
    # A pipe stands for every device: written through, and still there afterwards.
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert lily(*logits, pipe, timeout=20).returncode == 0
    # the two differ in the order of their metadata, which the format leaves open
    piped, written = load(reader.communicate(timeout=20)[0]), load(target.read_bytes())
    assert (piped["logits"] == written["logits"]).all() and piped["positions"].tolist() == [0, 1, 2]
    assert pipe.is_fifo()
    folder = lily(*logits, tmp_path)
    assert folder.returncode == 1 and "is a folder" in folder.stderr


def test_token_files_without_end_are_not_read_to_it(lily, tmp_path):
    done = lily("logits", "--model", FIXTURES / "nano", "--tokens", "/dev/zero", "--out", tmp_path / "x", timeout=20)
    assert done.returncode == 1 and "/dev/zero has more than" in done.stderr
    # As with --tokens <(...): of no known size.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'echo "[1, 2, 3]" > "$0"', pipe]):
        done = lily("logits", "--model", FIXTURES / "nano", "--tokens", pipe, "--out", tmp_path / "x", timeout=20)
    assert done.returncode == 0 and "3 positions" in done.stderr


def test_absurd_numbers_of_threads_are_refused(lily):
    done = lily("run", "x", "--threads", max(64, 16 * len(os.sched_getaffinity(0))) + 1)
    assert done.returncode == 1 and "--threads" in done.stderr and "processors" in done.stderr


def test_pipes_in_a_model_folder_are_not_waited_for(lily, tmp_path):
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                 "chat_template.jinja", "model.safetensors"]:
        model = tmp_path / f"with-{name}"
        shutil.copytree(FIXTURES / "nano", model, ignore=shutil.ignore_patterns("goldens", name))
        os.mkfifo(model / name)
        done = lily("run", "x", "--model", model, timeout=20)
        assert done.returncode == 1 and name in done.stderr and "panicked" not in done.stderr


def test_doctor(lily):
    assert "cpu      works" in lily("doctor").stdout
    report = json.loads(lily("doctor", "--json").stdout)
    assert [d["name"] for d in report["devices"] if d["works"]] == ["cpu"]
    assert report["processors"] == len(os.sched_getaffinity(0))


SMALL = ["--preset", "layer4", "--hidden", 128, "--vocab", 2000, "--experts", 8, "--active-experts", 2, "--expert-width", 64,
         "--shared-width", 64, "--max-context", 2048]


def test_a_random_model_is_a_model_like_any_other(lily, tmp_path):
    out = tmp_path / "model"
    done = lily("synth", *SMALL, "--out", out, "--shard-size", "1M", "--threads", 2)
    assert done.returncode == 0 and done.stdout == "" and "MB/s" in done.stderr and done.stderr.count("\n") == 1
    assert (out / "model.safetensors.index.json").exists()
    data = json.loads(lily("inspect", out, "--json").stdout)
    assert data["geometry"]["vocab_size"] == 2000 and data["geometry"]["num_experts"] == 8
    answer = json.loads(lily("run", QUESTION, "--model", out, "--max-tokens", 8, "--seed", 1, "--json").stdout)
    assert answer["usage"]["completion_tokens"] <= 8
    again = lily("synth", *SMALL, "--out", out)
    assert again.returncode == 1 and "is not empty" in again.stderr and "--force" in again.stderr


def test_ctrl_c_takes_a_half_written_model_away(lily_bin, tmp_path):
    # 540 MB: much more than what is written before the signal arrives.
    process = subprocess.Popen([lily_bin, "synth", "--preset", "layer4", "--layers", "1", "--out", tmp_path / "model",
                                "--threads", "1"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("model/model.safetensors*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and b"removed" in err
    assert not (tmp_path / "model").exists()


def test_one_random_model_at_a_time_and_a_killed_run_is_taken_up(lily, lily_bin, tmp_path):
    out = tmp_path / "model"
    process = subprocess.Popen([lily_bin, "synth", "--preset", "layer4", "--layers", "1", "--out", out, "--threads", "1"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not list(out.glob("model.safetensors*")) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        second = lily("synth", *SMALL, "--out", out, "--force")
        assert second.returncode == 1 and str(out) in second.stderr and "another lily" in second.stderr
        assert list(out.glob("model.safetensors.lily-partial"))
    finally:
        process.kill()
        process.wait()
    assert lily("synth", *SMALL, "--out", out).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json"]


def test_bench_prints_json_a_table_and_csv(lily):
    small = ["bench", "--prompt", "20,9", "--gen", 3, "--depth", "0,7", "--repeat", 2, "--threads", 1]
    done = lily(*small, "-o", "json")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and "demo model" in done.stderr
    data = json.loads(done.stdout)
    assert data["threads"] == 1 and data["device"].startswith("CPU, 1 thread, ")
    assert [(r["phase"], r["context"]) for r in data["results"]] == [("prefill", 20), ("prefill", 9), ("decode", 0), ("decode", 7)]
    for result in data["results"]:
        assert result["tok_s"] > 0 and result["spread"] >= 0 and result["floor_tok_s"] > 0
    assert json.loads(lily("bench", "--gen", 0, "--prompt", 3, "--repeat", 1, "--json").stdout)["results"][0]["spread"] == 0
    table = lily(*small).stdout.splitlines()
    assert table[0].startswith("| model | device | test | tok/s |") and table[1].startswith("|---|")
    assert [line.split("|")[3].strip() for line in table[2:6]] == ["pp20", "pp9", "tg3", "tg3 @ d7"]
    assert all(" \u00b1 " in line and "%" in line for line in table[2:6])
    rows = lily(*small, "-o", "csv").stdout.splitlines()
    assert rows[0].startswith("phase,context,tok_s,spread,floor_tok_s,") and len(rows) == 5


def test_bench_refuses_by_its_flags(lily):
    for arguments, wanted in [(["--prompt", 999999], "--prompt 999999 takes 999999 tokens of context; wanted at most the model's"),
                              (["--depth", "0,999999"], "--depth 999999 with --gen 128 takes 1000127 tokens"),
                              (["--prompt", 0, "--gen", 0], "--prompt 0 and --gen 0 leave nothing")]:
        done = lily("bench", *arguments)
        assert done.returncode == 1 and done.stdout == "" and wanted in done.stderr and done.stderr.count("\n") == 1
    for arguments, wanted in [(["--prompt", "1,x"], "--prompt"), (["--repeat", 0], "1..=1000"), (["-o", "xml"], "md, json, csv")]:
        done = lily("bench", *arguments)
        assert done.returncode == 2 and wanted in done.stderr, done.stderr


def test_bench_goes_on_where_it_was_stopped(lily, lily_bin, tmp_path):
    out, model = tmp_path / "runs" / "new", tmp_path / "model"
    assert lily("synth", *SMALL[:-1], 1100, "--out", model).returncode == 0
    sweep = ["bench", "--model", model, "--sweep", "lengths", "--gen", 4, "--repeat", 1, "--threads", 1, "--out", out, "--device", "cpu"]
    process = subprocess.Popen([lily_bin, *map(str, sweep)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    points = out / "points.jsonl"
    deadline = time.monotonic() + 60
    while not (points.exists() and points.read_text().count("\n") >= 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()   # as a machine that is taken away
    process.communicate()
    kept = points.read_text().count("\n")
    done = lily(*sweep, "-o", "csv", timeout=300)
    assert done.returncode == 0, done.stderr
    assert "were measured before" in done.stderr and "left out: 2048 tokens and more: the model takes at most 1100" in done.stderr
    lines = [json.loads(line) for line in points.read_text().splitlines()]
    assert 2 <= kept <= len(lines) == 6 and len(done.stdout.splitlines()) == 7
    assert {line["commit"] for line in lines} == {lines[0]["commit"]} and lines[0]["fill"] == "synthetic"
    assert [line["context"] for line in lines if line["phase"] == "decode"] == [256, 512, 1024]
    assert all(line["floor_tok_s"] > 0 and line["process_peak_bytes"] > 1e6 for line in lines)
    again = lily(*sweep, "-o", "csv")
    assert "6 of 6 were measured before" in again.stderr and [l.split(",")[:2] for l in again.stdout.splitlines()] == [l.split(",")[:2] for l in done.stdout.splitlines()]
    points.write_text("nonsense\n" + points.read_text())
    assert "line 1, is no figure" in lily(*sweep).stderr


def test_bench_says_what_cannot_be_ablated_or_routed(lily):
    done = lily("bench", "--ablate", "gqa-pack", "--device", "cpu")
    assert done.returncode == 1 and "cuda and emu" in done.stderr
    done = lily("bench", "--routing", "skewed", "--device", "cpu")
    assert done.returncode == 1 and "synth:PRESET" in done.stderr
    done = lily("bench", "--sweep", "widths")
    assert done.returncode == 2 and "lengths" in done.stderr


def test_ctrl_c_ends_a_measurement(lily_bin):
    process = subprocess.Popen([lily_bin, "bench", "--repeat", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert b"demo model" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b"" and err == b"stopped; nothing was reported\n"


@pytest.mark.parametrize("model", ["nano", "micro", None])
def test_eval_compares_fast_with_exact(lily, model):
    named = ["--model", FIXTURES / model] if model else []
    done = lily("eval", *named, "--device", "cpu", "--against", "cpu", "--limit", 200, "--decode-from", 150, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["tokens"], data["decode_steps"]) == (200, 50)
    assert [data[side]["precision"] for side in ["device", "against"]] == ["fast", "exact"]
    found = data["comparison"]
    assert found["positions"] == 200 and found["top1_agreement"] >= 0.98
    assert 0 < found["kl_mean"] < 1e-3 and found["kl_mean"] <= found["kl_max"] and 0 < found["logit_difference_relative"] < 0.1
    assert abs(found["perplexity_difference"]) < 2e-3


def test_eval_agrees_with_what_is_worked_out_from_logits(lily, tmp_path):
    model, out = tmp_path / "model", tmp_path / "logits"
    shutil.copytree(FIXTURES / "nano", model, ignore=shutil.ignore_patterns("goldens", "tokenizer.json"))
    ids = [i * 2654435761 % 2**32 % 1040 for i in range(90)]   # where there is no text
    (tmp_path / "tokens.json").write_text(json.dumps(ids))
    probabilities = {}
    for precision in ["fast", "exact"]:
        flags = ["--model", model, "--tokens", tmp_path / "tokens.json", "--out", out, "--precision", precision, "--device", "cpu"]
        assert lily("logits", *flags).returncode == 0
        logits = load(out.read_bytes())["logits"].astype(np.float64)
        probabilities[precision] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    done = lily("eval", "--model", model, "--device", "cpu", "--against", "cpu", "--limit", 90, "--json")
    data = json.loads(done.stdout)
    for side, precision in [("device", "fast"), ("against", "exact")]:
        followed = [probabilities[precision][i, ids[i + 1]] for i in range(89)]
        assert data[side]["perplexity"] == pytest.approx(np.exp(-np.mean(followed)), rel=1e-6)
    got, want = probabilities["fast"], probabilities["exact"]
    kl = (np.exp(want) * (want - got)).sum(axis=1)
    found = data["comparison"]
    assert found["kl_mean"] == pytest.approx(kl.mean(), rel=1e-3)
    assert (found["kl_max"], found["kl_max_position"]) == (pytest.approx(kl.max(), rel=1e-3), kl.argmax())
    assert found["same_top"] == (got.argmax(axis=1) == want.argmax(axis=1)).sum()


def test_eval_prints_lines_and_says_what_it_compared(lily, tmp_path):
    text = tmp_path / "text"
    text.write_text("The capital of Japan is Tokyo. <|im_end|> is text here.")
    done = lily("eval", "--device", "cpu", "--text", text)
    assert done.returncode == 0 and "perplexity" in done.stdout and "KL" not in done.stdout and str(text) in done.stdout
    done = lily("eval", "--device", "cpu", "--against", "cpu", "--limit", 9)
    assert "KL divergence" in done.stdout and "9 of " in done.stdout and "fast is compared with exact" in done.stdout
    assert "\r" not in done.stderr and "\x1b" not in done.stderr
    random = lily("eval", "--device", "cpu", "--model", "synth:layer4", "--limit", 4, "--json")
    assert json.loads(random.stdout)["text"] == "ids by the rule (no text)"


def test_eval_refuses_by_its_flags(lily, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "short").write_text("a")
    for arguments, wanted in [(["--text", tmp_path / "none"], "--text"), (["--text", tmp_path / "binary"], "no text in UTF-8"),
                              (["--text", tmp_path / "short"], "wanted at least two"), (["--against", "emu"], "--features emu"),
                              (["--limit", 99999], "--limit is 99999"), (["--against", "cpu", "--against-precision", "bf16"], "--against")]:
        done = lily("eval", *arguments)
        assert done.returncode == 1 and done.stdout == "" and wanted in done.stderr and "panicked" not in done.stderr, done.stderr
    for arguments, wanted in [(["--limit", 1], "at least 2"), (["--against", "tpu"], "cuda:N")]:
        done = lily("eval", *arguments)
        assert done.returncode == 2 and wanted in done.stderr, done.stderr


def test_contexts_may_be_counted_in_units_of_1024(lily):
    done = lily("run", QUESTION, "--context", "4k", "--max-tokens", 2)
    assert done.returncode == 0 and "4096 tokens of context" in done.stderr
    done = lily("run", QUESTION, "--context", "4x")
    assert done.returncode == 2 and "as 4096 or 4K" in done.stderr


def test_plan_is_a_page_and_full_shows_each_launch(lily):
    short = lily("plan").stdout.splitlines()
    full = lily("plan", "--full").stdout.splitlines()
    assert len(short) < 40 < 250 < len(full) and "--full" in short[-1]
    shares = [float(line.split()[-1].rstrip("%")) for line in short if line.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=1)
    times = sum(int(line.split()[-4]) for line in short if line.endswith("%"))
    assert times == int(next(line for line in short if line.startswith("in all")).split()[2])


def test_a_name_beside_list_is_looked_at(lily):
    done = lily("plan", "--ablate", "list", "--ablate", "bogus")
    assert done.returncode == 1 and done.stdout == "" and "--ablate bogus names no mechanism" in done.stderr
    assert "gqa-pack" in lily("plan", "--ablate", "list,all").stdout


def test_the_sizes_of_presets_are_as_the_help_says(lily):
    text = " ".join(lily("synth", "--help").stdout.split())
    for preset in ["layer4", "layer4-fullvocab", "layer8", "qwen3.6-35b-a3b"]:
        parts = json.loads(lily("inspect", f"synth:{preset}", "--json").stdout)
        assert f"{sizes(parts) / 1e9:.1f} GB" in text, preset


def sizes(value):
    """The largest number of bytes in it: the model's own."""
    if isinstance(value, dict):
        return max([value.get("bytes", 0), *map(sizes, value.values())])
    return max(map(sizes, value), default=0) if isinstance(value, list) else 0


def test_help_has_examples(lily):
    for command in ["run", "chat", "serve", "inspect", "doctor", "logits", "plan", "synth", "pack", "bench", "eval"]:
        done = lily(command, "--help")
        assert done.returncode == 0 and "Examples:" in done.stdout and "LILY_" in done.stdout, command


def test_a_conversation(lily):
    lines = "My name \\\nis Tom.\n/help\n\nWhat is the capital of Japan?\n/nosuch\n/thinking\n/quit\nnever read\n"
    done = lily("chat", *GREEDY, stdin=lines)
    assert done.returncode == 0
    assert "Tokyo" in done.stdout and "/nosuch is not a command" in done.stderr and "reused" in done.stderr
    assert "/thinking takes on or off" in done.stderr
    assert done.stderr.count("tok/s") == 4  # two answers, two rates each


def test_each_chat_command_says_what_it_did(lily):
    lines = "/new\n/system Be brief.\n/system\n/thinking on\n/thinking off\n"
    done = lily("chat", *GREEDY, stdin=lines)
    assert done.stderr.splitlines()[-5:] == [
        "(conversation forgotten)", "(instruction set; conversation forgotten)",
        "(no instruction; conversation forgotten)", "(thinking is on)", "(thinking is off)",
    ]


def test_ctrl_c_ends_an_answer_with_130(lily_bin):
    process = subprocess.Popen([lily_bin, "run", "Tell me a story about a fox who finds a bell.", "--temperature", "2",
                                "--top-p", "1", "--top-k", "0", "--thinking", "off"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode in (0, 130), err  # 0 if the answer was already complete
    assert b"panicked" not in err


def test_a_reader_that_leaves_is_no_error(lily_bin):
    line = f"{lily_bin} run 'List five fruits.' --thinking off 2>/dev/null | head -c 2; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", line], capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0


def test_readme_names_the_commands():
    readme = (ROOT / "README.md").read_text()
    for command in ["run", "chat", "serve", "inspect", "doctor", "logits", "plan", "synth", "pack", "bench", "eval"]:
        assert f"lily {command}" in readme
