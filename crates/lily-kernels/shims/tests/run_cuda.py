#!/usr/bin/env python3
"""The kernels of the shims' tests on an NVIDIA GPU: compiles them by NVRTC, runs every case, compares.

    run_cuda.py compile --arch sm_90a [-D MACRO]... FILE.metal...     machine code only, no GPU needed
    run_cuda.py run CASES                                             every case of CASES (written by `shims write`)

NVRTC and CUDA's headers come from --cuda FOLDER (lib/libnvrtc.so.*, include/cuda_fp16.h), else from the installed packages
nvidia-cuda-nvrtc and nvidia-cuda-runtime, else from /usr/local/cuda. `run` needs numpy.
"""
import argparse
import ctypes
import glob
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SHIMS = os.path.dirname(HERE)
sys.path.insert(0, SHIMS)
import entry_points  # noqa: E402

TESTS = ["math", "vectors", "simdgroups", "atomics", "examples", "tile"]
FUNCTION_CONSTANTS = ["-DFUNCTION_CONSTANT_0=4", "-DFUNCTION_CONSTANT_1=true"]  # examples.metal: rows a simdgroup, residual


def toolkits(chosen):
    """Folders that may hold lib/ and include/, best first."""
    if chosen:
        return [chosen]
    found = []
    try:
        import nvidia
        found += [folder for base in nvidia.__path__ for folder in sorted(glob.glob(base + "/cu*"), reverse=True)]
    except ImportError:
        pass
    return found + ["/usr/local/cuda", "/usr/local/cuda/targets/x86_64-linux"]


def find(folders, *patterns):
    for folder in folders:
        for pattern in patterns:
            hits = sorted(glob.glob(os.path.join(folder, pattern)))
            if hits:
                return hits[0]
    sys.exit(f"{patterns[0]} is in none of {', '.join(folders)}: install nvidia-cuda-nvrtc and nvidia-cuda-runtime, or give --cuda")


class Compiler:
    def __init__(self, chosen):
        folders = toolkits(chosen)
        self.lib = ctypes.CDLL(find(folders, "lib/libnvrtc.so.1[0-9]", "lib64/libnvrtc.so.1[0-9]", "lib/libnvrtc.so", "lib64/libnvrtc.so"))
        self.include = os.path.dirname(find(folders, "include/cuda_fp16.h"))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, paths, arch, macros=()):
        """Machine code of the kernels in `paths`; raises RuntimeError with NVRTC's log."""
        names = [os.path.basename(p) for p in paths]
        texts = {n: open(p, encoding="utf-8").read() for n, p in zip(names, paths)}
        source = "".join(f'#include "{n}"\n' for n in names)
        source += "".join(entry_points.cuda(*k) for t in texts.values() for k in entry_points.kernels(t))
        for folder in (SHIMS + "/cuda", os.path.dirname(SHIMS) + "/msl", HERE):
            for p in glob.glob(folder + "/*"):
                if os.path.isfile(p) and not p.endswith((".cpp", ".py", ".metal")):
                    texts[os.path.basename(p)] = open(p, encoding="utf-8").read()
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--device-as-default-execution-space", f"-I{self.include}",
                   "-diag-suppress=1097", "-DLAUNCH_THREADS=1024"] + FUNCTION_CONSTANTS + list(macros)  # 1097: [[buffer(0)]]
        return self.build(source, texts, options, "kernels", show=True)

    def build(self, source, headers, options, what, show=False):
        """Machine code of a source that includes `headers` by name; raises RuntimeError with NVRTC's log, prints its warnings on `show`."""
        def strings(values):
            return (ctypes.c_char_p * len(values))(*[v.encode() for v in values])

        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        if self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", len(headers), strings(list(headers.values())), strings(list(headers))):
            raise RuntimeError("nvrtcCreateProgram failed")
        status = self.lib.nvrtcCompileProgram(program, len(options), strings(options))
        self.lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.lib.nvrtcGetProgramLog(program, log)
        if status:
            raise RuntimeError(f"{what}: NVRTC error {status}\n{log.value.decode()[:6000]}")
        if show and log.value.strip():
            print(log.value.decode()[:2000])
        self.lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        self.lib.nvrtcGetCUBIN(program, code)
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return code.raw


class Gpu:
    """The driver's API, as much as one launch needs."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        major, minor, driver = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.call("cuDriverGetVersion", ctypes.byref(driver))
        self.name = name.value.decode()
        self.arch = f"sm_{major.value}{minor.value}"
        self.driver = f"{driver.value // 1000}.{driver.value % 1000 // 10}"

    def call(self, function, *arguments):
        status = getattr(self.lib, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{function}: {(text.value or b'unknown').decode()} ({status})")

    def load(self, code):
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        return module

    def run(self, module, case, parameters, contents):
        """Launches one case; returns what its buffers hold afterwards (None for arguments by value)."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, (case["kernel"] + "__cuda").encode())
        values, addresses = [], {}
        for p in parameters:
            if p["attr"] != "buffer":
                continue
            data = contents[p["index"]]
            if entry_points.by_value(p):
                values.append(ctypes.create_string_buffer(data, len(data)))
                continue
            address = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, len(data))))  # an empty pool has an address too
            self.call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))
            addresses[p["index"]] = address
            values.append(address)
        offset, offsets = 0, []
        for size in case["parameter_bytes"]:
            offsets.append(offset)
            offset += size
        values += [ctypes.c_uint32(offsets[p["index"]]) for p in parameters if p["attr"] == "TG_PARAM"]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        self.call("cuLaunchKernel", function, *case["grid"], *case["threads"], offset, None, pointers, None)
        self.call("cuCtxSynchronize")
        after = []
        for n, data in enumerate(contents):
            if n not in addresses:
                after.append(None)
                continue
            back = ctypes.create_string_buffer(len(data))
            self.call("cuMemcpyDtoH_v2", back, addresses[n], ctypes.c_size_t(len(data)))
            self.call("cuMemFree_v2", addresses[n])
            after.append(back.raw)
        return after


def complaint(number, buffer, before, after, blob):
    """What is wrong with a buffer, by the rules of harness.h; '' if nothing."""
    import numpy as np
    if after is None:
        return ""
    if buffer["check"] == "none":
        return "" if after == before else f"buffer {number} is an input and was written"
    kinds = dict(f32=np.float32, f16=np.float16, bf16=np.uint16, i32=np.int32, u32=np.uint32, u16=np.uint16)
    got = np.frombuffer(after, kinds[buffer["type"]])
    if buffer["type"] == "bf16":
        got = (got.astype(np.uint32) << 16).view(np.float32)
    got = got.astype(np.float64)
    want = np.frombuffer(blob, np.float64, buffer["count"], buffer["want"])
    got = got[:len(want)]
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if buffer["check"] != "exact":
        room = buffer["tolerance"] * (np.abs(want) if buffer["check"] == "relative" else 1.0)
        room = room + (buffer["tiny"] if buffer["check"] == "relative" else 0.0)
        with np.errstate(invalid="ignore"):
            same |= np.isfinite(got) & np.isfinite(want) & (np.abs(got - want) <= room)
    if same.all():
        return ""
    at = int(np.argmin(same))
    return (f"buffer {number} [{at}]: got {got[at]:.9g}, want {want[at]:.9g} ({buffer['check']} {buffer['tolerance']:.3g}), "
            f"{int((~same).sum())} of {len(want)} differ")


def run(folder, compiler):
    gpu = Gpu()
    print(f"{gpu.name}, {gpu.arch}, driver API {gpu.driver}, NVRTC {compiler.version}")
    # The cubin of an architecture's own features where it has them.
    arch = {"sm_90": "sm_90a", "sm_100": "sm_100a"}.get(gpu.arch, gpu.arch)
    modules, kernels, start = {}, {}, time.time()
    for test in TESTS:
        path = f"{HERE}/{test}.metal"
        module = gpu.load(compiler.compile([path], arch))
        for name, parameters in entry_points.kernels(open(path, encoding="utf-8").read()):
            modules[name], kernels[name] = module, parameters
    print(f"compiled for {arch} in {time.time() - start:.1f} s")
    cases = json.load(open(folder + "/cases.json", encoding="utf-8"))
    blob = open(folder + "/cases.bin", "rb").read()
    failed = 0
    for case in cases:
        contents = [blob[b["init"]:b["init"] + b["bytes"]] for b in case["buffers"]]
        try:
            after = gpu.run(modules[case["kernel"]], case, kernels[case["kernel"]], contents)
        except RuntimeError as error:
            print(f"FAIL {case['name']}: {error}")
            print(f"0 passed, {len(cases)} failed")   # the context is lost with the first error
            return 1
        wrong = [w for w in (complaint(n, b, contents[n], after[n], blob) for n, b in enumerate(case["buffers"])) if w]
        failed += bool(wrong)
        print(f"FAIL {case['name']}: {wrong[0]}" if wrong else f"ok   {case['name']}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return int(failed != 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", help="folder with lib/ and include/")
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile")
    compiling.add_argument("--arch", required=True, action="append")
    compiling.add_argument("-D", dest="macros", action="append", default=[])
    compiling.add_argument("files", nargs="+")
    running = commands.add_parser("run")
    running.add_argument("cases")
    chosen = parser.parse_args()
    compiler = Compiler(chosen.cuda)
    if chosen.command == "run":
        sys.exit(run(chosen.cases, compiler))
    try:
        for arch in chosen.arch:
            start = time.time()
            code = compiler.compile(chosen.files, arch, ["-D" + m for m in chosen.macros])
            print(f"{arch}: {len(code)} bytes in {time.time() - start:.1f} s")
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
