#!/usr/bin/env python3
"""The kernels' texts on an NVIDIA GPU, over the cases that the crate's example `kernel_cases` writes (kernels.cpp describes them).

    run_kernels.py compile FOLDER --arch sm_90a [--sample ...]    every text with every set of constants; no GPU needed
    run_kernels.py run FOLDER [--json FILE]                     every case

NVRTC and CUDA's headers are found as run_cuda.py finds them. `run` needs numpy. Prints 'N passed, N failed' last.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import glob
import json
import os
import sys
import time

import run_cuda
from run_cuda import SHIMS, entry_points

ACT = dict(f32="float", bf16="bfloat", f16="half")
SIZES = dict(f32=4, bf16=2, f16=2, u32=4, u8=1)
Buffer = collections.namedtuple("Buffer", "init bytes check store want error count touch read written")


def cases(folder):
    """Yields the cases of cases.txt as dicts."""
    case = None
    for line in open(folder + "/cases.txt", encoding="utf-8"):
        word, *rest = line.split()
        if word == "case":
            case = dict(name=rest[1], buffers=[])
        elif word == "kernel":
            case["kernel"], case["act"] = rest
        elif word in ("constants", "memory"):
            case[word] = tuple(int(v) for v in rest[1:])
        elif word in ("grid", "threads"):
            case[word] = [int(v) for v in rest]
        elif word == "buffer":
            case["buffers"].append(Buffer(*[v if v.isalnum() and not v.isdigit() else int(v) for v in rest]))
        elif word == "end":
            yield case


class Texts(run_cuda.Compiler):
    """NVRTC over a folder of texts."""

    def __init__(self, chosen, folder):
        super().__init__(chosen)
        self.folder = folder
        self.headers = {os.path.basename(p): open(p, encoding="utf-8").read() for p in glob.glob(SHIMS + "/cuda/*")}

    def text(self, name):
        return open(f"{self.folder}/units/{name}.metal", encoding="utf-8").read()

    def machine_code(self, name, act, constants, threads, arch):
        text = self.text(name)
        source = "#define ACT %s\n#define ACT_IS_%s\n%s\n" % (ACT[act], act.upper(), text)
        source += "".join(entry_points.cuda(*k) for k in entry_points.kernels(text))
        # --fmad=false: where a text wants a fused multiply-add it says fma, so that its bits do not depend on the compiler.
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space", f"-I{self.include}", "-diag-suppress=1097", f"-DLAUNCH_THREADS={threads}"]
        options += [f"-DFUNCTION_CONSTANT_{i}={v}" for i, v in enumerate(constants)]
        return self.build(source, self.headers, options, f"{name} {act} {constants}")


def variant(case):
    """What a case's machine code depends on; how many threads share the registers counts."""
    x, y, z = case["threads"]
    return case["kernel"], case["act"], case["constants"], x * y * z


def variants(found):
    return sorted({variant(c) for c in found})


def compile_all(texts, keys, arch):
    """Machine code by variant; what does not compile is reported and left out."""
    def one(key):
        try:
            return key, texts.machine_code(*key, arch), None
        except RuntimeError as error:
            return key, None, str(error)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(one, keys))
    for _, _, error in done:
        if error:
            print(f"FAIL {error}")
    return {key: code for key, code, _ in done if code}, sum(1 for _, _, error in done if error)


def wrong(case, after, blob):
    """What is wrong with a case's buffers; '' if nothing."""
    import numpy as np
    for n, (b, got) in enumerate(zip(case["buffers"], after)):
        if got is None:
            continue
        before = blob[b.init:b.init + b.bytes]
        if b.check == "same" and got != before:
            return f"buffer {n} is an input and was written"
        if b.check != "near":
            continue
        kinds = dict(f32=np.float32, f16=np.float16, bf16=np.uint16, u32=np.uint32, u8=np.uint8)
        raw = np.frombuffer(got, kinds[b.store])
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[SIZES[b.store]]
        kept = np.frombuffer(got, bits) == np.frombuffer(before, bits)
        values = (raw.astype(np.uint32) << 16).view(np.float32) if b.store == "bf16" else raw
        values = values.astype(np.float64)
        want, error = (np.frombuffer(blob, np.float64, b.count, at) for at in (b.want, b.error))
        with np.errstate(invalid="ignore"):
            right = np.where(np.isnan(want), kept, (np.abs(values - want) <= error) | (values == want))
        if not right.all():
            at = int(np.argmin(right))
            return f"buffer {n} [{at}]: got {values[at]:.9g}, want {want[at]:.9g} within {error[at]:.3g}, {int((~right).sum())} of {b.count} differ"
    return ""


def run(folder, texts, report):
    gpu = run_cuda.Gpu()
    print(f"{gpu.name}, {gpu.arch}, driver API {gpu.driver}, NVRTC {texts.version}")
    arch = {"sm_90": "sm_90a", "sm_100": "sm_100a"}.get(gpu.arch, gpu.arch)
    found, start = list(cases(folder)), time.time()
    codes, failed = compile_all(texts, variants(found), arch)
    print(f"{len(codes)} variants compiled for {arch} in {time.time() - start:.1f} s, {failed} did not compile")
    blob = open(folder + "/cases.bin", "rb").read()
    parameters = {name: dict(entry_points.kernels(texts.text(name)))[name] for name in {c["kernel"] for c in found}}
    modules, passed, results = {}, 0, collections.OrderedDict()
    for case in found:
        key = variant(case)
        if key not in codes:
            continue
        if key not in modules:
            modules[key] = gpu.load(codes[key])
        contents = [blob[b.init:b.init + b.bytes] for b in case["buffers"]]
        launch = dict(kernel=case["kernel"], grid=case["grid"], threads=case["threads"], parameter_bytes=case["memory"])
        try:
            after = gpu.run(modules[key], launch, parameters[case["kernel"]], contents)
        except RuntimeError as error:
            print(f"FAIL {case['act']} {case['name']}: {error}")
            print(f"{passed} passed, {len(found) - passed} failed")   # the context is lost with the first error
            return 1
        complaint = wrong(case, after, blob)
        tally = results.setdefault(f"{case['kernel']} {case['act']}", [0, 0])
        tally[bool(complaint)] += 1
        if complaint:
            failed += 1
            print(f"FAIL {case['act']} {case['name']}: {complaint}")
        else:
            passed += 1
    for name, (good, bad) in results.items():
        print(f"{'FAIL' if bad else 'ok  '} {name}: {good} cases" + (f", {bad} failed" if bad else ""))
    if report:
        json.dump(dict(gpu=gpu.name, arch=arch, driver=gpu.driver, nvrtc=texts.version, results=results), open(report, "w", encoding="utf-8"), indent=1)
    print(f"{passed} passed, {failed} failed")
    return int(failed != 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", help="folder with lib/ and include/")
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile")
    compiling.add_argument("folder")
    compiling.add_argument("--arch", default=[], action="append")
    compiling.add_argument("--sample", default=[], action="append", metavar="ARCH", help="one variant of each text and type for this one")
    running = commands.add_parser("run")
    running.add_argument("folder")
    running.add_argument("--json")
    chosen = parser.parse_args()
    texts = Texts(chosen.cuda, chosen.folder)
    if chosen.command == "run":
        sys.exit(run(chosen.folder, texts, chosen.json))
    keys, passed, failed = variants(cases(chosen.folder)), 0, 0
    few = list({key[:2]: key for key in keys}.values())
    for arch, wanted in [(a, keys) for a in chosen.arch] + [(a, few) for a in chosen.sample]:
        codes, bad = compile_all(texts, wanted, arch)
        print(f"{arch}: {len(codes)} variants compiled")
        passed, failed = passed + len(codes), failed + bad
    print(f"{passed} passed, {failed} failed")
    sys.exit(int(failed != 0))


if __name__ == "__main__":
    main()
