"""What runs one case of one engine. Each run is a process of its own, pinned, that loads, warms up and then times."""
import hashlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gen_gguf

HERE = Path(__file__).parent


@dataclass
class Case:
    """`prefill` of `context` tokens, or `decode` after as many, on `threads` processors."""
    phase: str
    context: int
    threads: int


def processors(threads):
    """The first `threads` processors that this process may use."""
    return sorted(os.sched_getaffinity(0))[:threads]


def output(command, threads):
    """Standard output of a command that runs on as many processors."""
    cores = processors(threads)
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if done.returncode != 0:
        sys.exit(f"compare: {' '.join(command)}: status {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def digest(file):
    """Enough of a program's hash to see that it is another one."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def seen(samples, **more):
    """Measured speeds as a row has them; spread is the standard deviation, 0 of one."""
    spread = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return dict(tok_s=statistics.median(samples), spread=spread, min=min(samples), max=max(samples), repeats=len(samples), **more)


class Lily:
    name, form, weights, rounds = "lily", "mlx-4bit", "mlx", None

    def __init__(self, args):
        self.program, self.gen, self.precision = args.lily, args.gen, args.precision
        self.identity = digest(self.program)

    def run(self, weights, phase, contexts, threads, repeat):
        """A row for each context."""
        lengths = ",".join(map(str, contexts))
        case = ["--prompt", lengths, "--gen", "0"] if phase == "prefill" else [
            "--prompt", "0", "--gen", str(self.gen), "--depth", lengths]
        command = [self.program, "bench", "--device", "cpu", "--precision", self.precision, "--model", str(weights.path),
                   "--threads", str(threads), "--repeat", str(repeat), "--json", *case]
        report = json.loads(output(command, threads))
        shared = dict(version=report["version"], repeats=repeat, read_bytes_per_second=report["read_bytes_per_second"])
        kept = ["tok_s", "spread", "min", "max", "floor_tok_s", "tokens"]
        return {r["context"]: shared | {k: r[k] for k in kept} | {"bytes_per_token": r["floor_bytes_per_token"]}
                for r in report["results"]}


class Llama:
    name, rounds = "llama.cpp", None

    def __init__(self, args, form):
        self.program, self.gen, self.form, self.weights = args.llama, args.gen, form, form
        self.more = args.llama_args.split()
        self.identity = digest(self.program)
        version = Path(self.program).with_name("version")
        self.version = version.read_text().strip() if version.exists() else self.identity

    def run(self, weights, phase, contexts, threads, repeat):
        lengths = ",".join(map(str, contexts))
        case = ["-p", lengths, "-n", "0"] if phase == "prefill" else ["-p", "0", "-n", str(self.gen), "-d", lengths]
        mask = hex(sum(1 << core for core in processors(threads)))
        command = [self.program, "-m", str(weights.path), "-t", str(threads), "-C", mask, "--cpu-strict", "1", "-fa", "1",
                   "-r", str(repeat), "-o", "json", *self.more, *case]
        rows = {}
        for r in json.loads(output(command, threads)):
            context = r["n_prompt"] if phase == "prefill" else r["n_depth"]
            rows[context] = seen(r["samples_ts"], version=self.version, tokens=r["n_prompt"] + r["n_gen"])
            if phase == "decode":
                rows[context]["bytes_per_token"] = gen_gguf.token_bytes(weights.sizes, self.form, context)
        return rows


class Mlx:
    """mlx-lm on the processor: some seconds a token, so once each, and fewer tokens where the case would take too long."""
    name, form, weights, rounds = "mlx-lm", "mlx-4bit", "mlx", 1

    def __init__(self, args):
        self.python, self.gen, self.longest = args.mlx_python, args.gen, args.longest
        list_command = [self.python, "-c", "from importlib.metadata import version as v; print(v('mlx-lm'), v('mlx'))"]
        self.identity = output(list_command, 1).strip()

    def run(self, weights, phase, contexts, threads, repeat):
        command = [self.python, str(HERE / "mlx_bench.py"), str(weights.path), "--phase", phase, "--contexts",
                   ",".join(map(str, contexts)), "--gen", str(self.gen), "--repeat", str(repeat), "--longest", str(self.longest)]
        report = json.loads(output(command, threads))
        rows = {}
        for r in report["results"]:
            rows[r["context"]] = dict(version=report["version"], tok_s=None, skipped=r["skipped"]) if "skipped" in r else seen(
                r["samples"], version=report["version"], tokens=r["tokens"])
        return rows


def chosen(args):
    """The engines that the flags give programs for."""
    engines = []
    if args.llama:
        engines += [Llama(args, form) for form in args.formats]
    engines.append(Lily(args))
    if args.mlx_python:
        engines.append(Mlx(args))
    return [e for e in engines if not args.engines or label(e) in args.engines or e.name in args.engines]


def label(engine):
    """How tables and --engines call it."""
    return f"llama.cpp-{engine.form}" if engine.name == "llama.cpp" else engine.name
