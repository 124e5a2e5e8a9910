"""Lily and llama.cpp in turn, on the same sizes, pinned to the same processors.

    python3 bench/peers/compare.py --lily target/release/lily --model LAYER4 --llama DIR/llama-bench --gguf LAYER4.gguf \\
        --threads 1,2 --prompt 128,512 --depth 0,2048 --gen 48 --rounds 5 --out bench/runs/DATE-MACHINE

Each round runs every case of every engine once, each in a process of its own that warms up first, so that whatever slows the
machine slows them all. Runs that OUT/raw.jsonl holds already are not run again. OUT/README.md has medians, spread and ratios.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def processors(threads):
    """The first `threads` processors that this process may use."""
    return sorted(os.sched_getaffinity(0))[:threads]


def run(command, threads):
    """Standard output of a command that runs on as many processors."""
    cores = processors(threads)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    if done.returncode != 0:
        sys.exit(f"compare: {' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def lily(args, threads, phase, size):
    """Tokens a second of one run."""
    case = ["--prompt", str(size), "--gen", "0"] if phase == "prefill" else [
        "--prompt", "0", "--gen", str(args.gen), "--depth", str(size)]
    command = [args.lily, "bench", "--model", args.model, "--threads", str(threads), "--repeat", "1", "--json", *case]
    return json.loads(run(command, threads))["results"][0]["tok_s"]


def llama(gguf):
    def one(args, threads, phase, size):
        case = ["-p", str(size), "-n", "0"] if phase == "prefill" else ["-p", "0", "-n", str(args.gen), "-d", str(size)]
        command = [args.llama, "-m", gguf, "-t", str(threads), "-C", hex(sum(1 << core for core in processors(threads))), "--cpu-strict", "1",
                   "-fa", "1", "-r", "1", "-o", "json", *case]
        return json.loads(run(command, threads))[0]["avg_ts"]
    return one


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(args, engines, cases, results):
    """Medians with the smallest and the largest of each, and Lily's median over the best peer's."""
    peers = [name for name in engines if name != "lily"]
    lines = [f"| threads | test | {' | '.join(engines)} | ratio |", "|---:|---|" + "---:|" * (len(engines) + 1)]
    for threads, phase, size in cases:
        seen = {name: results.get((name, threads, phase, size), []) for name in engines}
        if not all(seen.values()):
            continue
        cells = [f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in seen.values()]
        best = max(statistics.median(seen[name]) for name in peers)
        test = f"pp{size}" if phase == "prefill" else f"tg{args.gen} @ d{size}"
        ratio = statistics.median(seen["lily"]) / best
        lines.append(f"| {threads} | {test} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lily", required=True)
    ap.add_argument("--model", required=True, help="a folder that `lily synth` made")
    ap.add_argument("--llama", required=True, help="llama-bench")
    ap.add_argument("--gguf", required=True, action="append", help="the same sizes; may be given again")
    ap.add_argument("--threads", type=numbers, default=[1, 2])
    ap.add_argument("--prompt", type=numbers, default=[128, 512])
    ap.add_argument("--depth", type=numbers, default=[0, 2048])
    ap.add_argument("--gen", type=int, default=48)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--out", type=Path, required=True)
    args = ap.parse_args()
    available = len(os.sched_getaffinity(0))
    if max(args.threads) > available:
        sys.exit(f"compare: --threads {max(args.threads)}: this process may use {available} processors")

    engines = {"lily": lily} | {f"llama.cpp {Path(g).stem}": llama(g) for g in args.gguf}
    cases = [(t, "prefill", n) for t in args.threads for n in args.prompt]
    cases += [(t, "decode", n) for t in args.threads for n in args.depth]
    args.out.mkdir(parents=True, exist_ok=True)
    raw = args.out / "raw.jsonl"
    done, results = set(), {}
    for line in raw.read_text().splitlines() if raw.exists() else []:
        r = json.loads(line)
        key = (r["engine"], r["threads"], r["phase"], r["size"])
        done.add((r["round"], *key))
        results.setdefault(key, []).append(r["tok_s"])
    with raw.open("a") as out:
        for i in range(args.rounds):
            for case in cases:
                # who goes first alternates too
                for name in list(engines)[:: 1 if i % 2 == 0 else -1]:
                    if (i, name, *case) in done:
                        continue
                    speed = engines[name](args, *case)
                    results.setdefault((name, *case), []).append(speed)
                    row = dict(round=i, engine=name, threads=case[0], phase=case[1], size=case[2], tok_s=speed)
                    out.write(json.dumps(row) + "\n")
                    out.flush()
                    print(f"round {i + 1} of {args.rounds}: {name}, {case[0]} threads, {case[1]} {case[2]}: {speed:.1f} tok/s",
                          file=sys.stderr)

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    text = table(args, engines, cases, results)
    head = f"# Lily {commit} beside its peers\n\n{processor()}, {available} processors. Tokens a second: median (least to most) " \
           f"of {args.rounds} rounds; the ratio is by medians, to the better peer.\n\n"
    (args.out / "README.md").write_text(head + text + "\n")
    print(text)


if __name__ == "__main__":
    main()
