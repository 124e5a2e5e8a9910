"""Lily and its peers on the same sizes, pinned to the same processors.

    python3 bench/peers/compare.py --lily target/release/lily --llama DIR/llama-bench --mlx-python VENV/bin/python \\
        --weights FOLDER --presets layer4,qwen3.6-35b-a3b --minutes 8 --out bench/runs/DATE-MACHINE

Weights are made in FOLDER and deleted on leaving, whether runs are left or not (--keep: the next run uses them, and without it
deletes them). Where those of all engines fit into disk and memory, each round runs every case of every engine once, each in a
process of its own that warms up first, so that whatever slows the machine slows them all. Where they do not fit (or with --blocks
always), one engine at a time: its weights are made, all its cases run, each --rounds times in one process after warm-up, and its
weights are deleted before the next engine's are made.

What OUT/raw.jsonl holds is not run again, so an interrupted run goes on with the same command. OUT/README.md has the tables,
OUT/summary.json each of their cells. With --minutes it stops in time and exits with status 3 while runs are left.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from engines import Case, chosen, label
from gen_gguf import FORMATS
from results import Rows, name, summary, table
from weights import MARGIN, PRESETS, Weights

# bytes a second at which weights are made, for deciding whether a block still fits into --minutes; a slow disk and two cores
MAKING = 100e6
LEFT = 3


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def words(text):
    return [w for w in text.split(",") if w]


def flags():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lily", required=True, help="the program")
    ap.add_argument("--precision", default="fast", help="Lily's")
    ap.add_argument("--llama", help="llama-bench; without it llama.cpp is left out")
    ap.add_argument("--llama-args", default="", help="more arguments of llama-bench, in one string")
    ap.add_argument("--formats", type=words, default=list(FORMATS), help="of llama.cpp's weights: q4_0, q4_k_s")
    ap.add_argument("--mlx-python", help="a python with mlx-lm; without it mlx-lm is left out")
    ap.add_argument("--engines", type=words, default=[], help="only these: lily, llama.cpp, llama.cpp-q4_0, mlx-lm; the tables keep all")
    ap.add_argument("--presets", type=words, default=["layer4"], help=", ".join(PRESETS))
    ap.add_argument("--weights", type=Path, required=True, help="a folder for them; those that are there already are used and kept")
    ap.add_argument("--keep", action="store_true", help="keep the weights that this makes")
    ap.add_argument("--blocks", choices=["auto", "always", "never"], default="auto", help="one engine at a time")
    ap.add_argument("--threads", type=numbers, default=[1, 2])
    ap.add_argument("--prompt", type=numbers, default=[128, 512], help="prefill of so many tokens")
    ap.add_argument("--depth", type=numbers, default=[0, 2048], help="decode after so many")
    ap.add_argument("--gen", type=int, default=48, help="decode steps that are timed together")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--longest", type=float, default=60, help="seconds; what mlx-lm would take longer for is timed with fewer tokens")
    ap.add_argument("--minutes", type=float, help="stop in time")
    ap.add_argument("--commit", help="of the program [default: that of the working directory]")
    ap.add_argument("--machine", help="[default: processor and how many]")
    ap.add_argument("--out", type=Path, required=True)
    args = ap.parse_args()
    available = len(os.sched_getaffinity(0))
    if max(args.threads) > available:
        sys.exit(f"compare: --threads {max(args.threads)}: this process may use {available} processors")
    for flag, given, known in [("--presets", args.presets, PRESETS), ("--formats", args.formats, FORMATS)]:
        for word in given:
            if word not in known:
                sys.exit(f"compare: {flag} {word} is not known; known are {', '.join(known)}")
    for flag, file in [("--lily", args.lily), ("--llama", args.llama), ("--mlx-python", args.mlx_python)]:
        if file and shutil.which(file) is None:
            sys.exit(f"compare: {flag} {file} is not a program")
    args.machine = args.machine or f"{processor()}, {available} processors"
    args.commit = args.commit or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return args


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def same_settings(args, engines):
    """Runs of one folder are of one program each, with the same flags where figures depend on them."""
    file = args.out / "settings.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    now = dict(gen=args.gen, precision=args.precision, llama_args=args.llama_args, machine=args.machine)
    now |= {e.name: e.identity for e in engines}
    for field, value in now.items():
        if before.get(field, value) != value:
            sys.exit(f"compare: {file}: {field} was {before[field]!r} and is {value!r}: name another folder with --out")
    file.write_text(json.dumps(before | now, indent=1) + "\n")


class Bench:
    """What is left of a comparison, and the doing of it."""

    def __init__(self, args):
        self.args, self.engines = args, chosen(args)
        if not self.engines:
            sys.exit(f"compare: --engines {','.join(args.engines)} names none that --lily, --llama and --mlx-python give")
        args.out.mkdir(parents=True, exist_ok=True)
        same_settings(args, self.engines)
        self.rows = Rows(args.out / "raw.jsonl")
        self.start, self.made = time.monotonic(), []

    def rounds(self, engine):
        return min(self.args.rounds, engine.rounds or self.args.rounds)

    def cases(self):
        args = self.args
        lengths = [("prefill", n) for n in args.prompt] + [("decode", n) for n in args.depth]
        return [Case(phase, n, t) for t in args.threads for phase, n in lengths]

    def left(self, preset, engine, case):
        """Rounds of a case that have not been run."""
        done = self.rows.of(preset=preset, engine=engine.name, format=engine.form, threads=case.threads, phase=case.phase,
                            context=case.context)
        if any(r["tok_s"] is None for r in done):
            return 0
        return max(0, self.rounds(engine) - sum(r["repeats"] for r in done))

    def in_time(self, seconds):
        """Leaves while there is time to, if so many more would be too many."""
        if self.args.minutes and time.monotonic() - self.start + seconds > 60 * self.args.minutes:
            self.write()
            print("compare: runs are left: the same command goes on with them", file=sys.stderr)
            sys.exit(LEFT)

    def run(self, preset, engine, weights, case, repeat):
        """Runs a case so many times in one process, and writes it down."""
        same = dict(preset=preset, engine=engine.name, format=engine.form, threads=case.threads, phase=case.phase,
                    context=case.context)
        before = self.rows.seconds(**same) or self.rows.seconds(preset=preset, engine=engine.name, phase=case.phase) or 0
        self.in_time(1.2 * before)
        start = time.monotonic()
        found = engine.run(weights, case.phase, [case.context], case.threads, repeat)[case.context]
        row = dict(date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), machine=self.args.machine, commit=self.args.commit,
                   **same, **found, seconds=round(time.monotonic() - start, 1))
        self.rows.add(row)
        speed = "too slow" if row["tok_s"] is None else f"{row['tok_s']:.2f} tok/s"
        print(f"{preset}: {label(engine)}, {case.threads} threads, {case.phase} {case.context}: {speed}", file=sys.stderr)

    def weights(self, preset):
        """Those of each engine that has runs left, by format."""
        forms = [e.weights for e in self.engines if any(self.left(preset, e, c) for c in self.cases())]
        return {f: Weights(preset, f, self.args.weights, self.args.lily) for f in dict.fromkeys(forms)}

    def in_blocks(self, weights):
        if self.args.blocks != "auto":
            return self.args.blocks == "always"
        folder = self.args.weights
        folder.mkdir(parents=True, exist_ok=True)
        new = sum(w.bytes for w in weights.values() if not w.complete)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # the file cache has to hold all of them, beside what the engines copy
        return new + MARGIN > shutil.disk_usage(folder).free or sum(w.bytes for w in weights.values()) > 0.6 * memory

    def preset(self, preset):
        weights = self.weights(preset)
        if not self.args.keep:
            # those that earlier runs kept too
            self.made += [Weights(preset, form, self.args.weights, self.args.lily) for form in ["mlx", *FORMATS]]
        if self.in_blocks(weights):
            for w in weights.values():
                self.block(preset, w)
        else:
            self.alternate(preset, weights)

    def block(self, preset, weights):
        """All that runs on these weights."""
        engines = [e for e in self.engines if e.weights == weights.form]
        if not weights.complete:
            self.in_time(weights.bytes / MAKING + 60)
        weights.ready()
        for engine in engines:
            for case in self.cases():
                if left := self.left(preset, engine, case):
                    self.run(preset, engine, weights, case, left)
        if not self.args.keep:
            weights.delete()

    def alternate(self, preset, weights):
        """Round after round; who goes first alternates too."""
        for w in weights.values():
            w.ready()
        for i in range(self.args.rounds):
            for case in self.cases():
                for engine in self.engines[:: 1 if i % 2 == 0 else -1]:
                    left = self.left(preset, engine, case)
                    if left and self.rounds(engine) - left == i:
                        self.run(preset, engine, weights[engine.weights], case, 1)

    def write(self):
        """Tables of all that has been run so far."""
        lines = summary(self.rows)
        if not lines:
            return
        (self.args.out / "summary.json").write_text(json.dumps(lines, indent=1) + "\n")
        versions = {name(r): r["version"] for r in lines}
        commits = sorted({r["commit"] for r in lines})
        text = [f"# Lily {', '.join(commits)} beside its peers", "", f"{self.args.machine}. {'; '.join(f'{n}: {v}' for n, v in versions.items())}.", "",
                "Tokens a second: median (least to most), share of the floor; the ratio is Lily's median to the better peer's. The floor of decode "
                "is what a token reads in the engine's own format by the bandwidth that `lily bench` measured with as many threads; that of "
                "prefill is float32 arithmetic, the same for all, which products of integers may exceed."]
        order = ["lily", *(f"llama.cpp-{f}" for f in FORMATS), "mlx-lm"]
        for preset in dict.fromkeys(r["preset"] for r in lines):
            text += ["", f"## {preset}", "", table(lines, preset, order)]
        (self.args.out / "README.md").write_text("\n".join(text) + "\n")
        print("\n".join(text))

    def finish(self):
        """Nothing large stays behind, however this ends."""
        for w in self.made:
            w.delete()


def main():
    # SIGTERM as Ctrl-C: weights are deleted on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(flags())
    try:
        for preset in bench.args.presets:
            bench.preset(preset)
        bench.write()
    finally:
        bench.finish()


if __name__ == "__main__":
    main()
