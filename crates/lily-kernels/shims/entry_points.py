#!/usr/bin/env python3
"""Writes what launches the kernels of Metal files: entry points for the emulator or for CUDA, or their table as JSON.

Usage: entry_points.py emu|cuda|table FILE.metal...

Reads every `kernel void name(type name [[attribute]], ...)`; the files themselves are never rewritten. A kernel has one
attribute a parameter: [[buffer(n)]], TG_PARAM(n), or a thread attribute of the shims. No templates with host_name, no
textures, no argument buffers.
"""
import json
import re
import sys


def kernels(text):
    """Yields (name, parameters) of each kernel; a parameter is a dict with type, name, attr, index (-1 without one)."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    for found in re.finditer(r"\bkernel\s+void\s+(\w+)\s*\(", text):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        parameters = []
        for piece in re.split(r",(?![^\[(<]*[\])>])", text[found.end():end - 1]):
            piece = re.sub(r"\bTG_PARAM\((\d+)\)", r"[[TG_PARAM(\1)]]", piece)
            part = re.fullmatch(r"\s*(.+?)\s*\b(\w+)\s*\[\[\s*(\w+)(?:\((\d+)\))?\s*\]\]\s*", piece, re.S)
            if not part:
                sys.exit(f"kernel {found[1]}: a parameter needs the form `type name [[attribute]]`: {piece.strip()}")
            kind, name, attr, index = part.groups()
            if attr == "threadgroup":
                sys.exit(f"kernel {found[1]}: write TG_PARAM({index}) in place of [[threadgroup({index})]] (portable.h)")
            parameters.append(dict(type=" ".join(kind.split()), name=name, attr=attr, index=int(index or -1)))
        yield found[1], parameters


def by_value(parameter):
    """Whether the launch passes the parameter's bytes and not an address."""
    return parameter["attr"] == "buffer" and parameter["type"].endswith("&")


def emulator(name, parameters):
    """`name__entry(buffers)`: buffers[n] is the address of [[buffer(n)]]."""
    arguments = []
    for p in parameters:
        if p["attr"] == "TG_PARAM":
            arguments.append(f"({p['type']})emu::tg_parameter({p['index']})")
        elif by_value(p):
            arguments.append(f"*({p['type'][:-1]}*)buffers[{p['index']}]")
        elif p["attr"] == "buffer":
            arguments.append(f"({p['type']})buffers[{p['index']}]")
        else:
            arguments.append(f"emu::{p['attr']}()")
    return (f"static void {name}__entry(void* user) {{\n    auto buffers = (void* const*)user;\n    (void)buffers;\n"
            f"    {name}({', '.join(arguments)});\n}}\n")


def cuda(name, parameters):
    """`name__cuda`: the buffers in their order (structs by value), then for each TG_PARAM(n) its byte offset in
    the launch's dynamic shared memory, a uint. LAUNCH_THREADS, the most threads of a threadgroup, bounds the registers of each."""
    formal, offsets, arguments = [], [], []
    for p in parameters:
        if p["attr"] == "TG_PARAM":
            offsets.append(f"uint {p['name']}__offset")
            arguments.append(f"({p['type']})(gpu::parameter_memory() + {p['name']}__offset)")
        elif p["attr"] == "buffer":
            formal.append(f"{p['type'].rstrip('& ')} {p['name']}")
            arguments.append(p["name"])
        else:
            arguments.append(f"gpu::{p['attr']}()")
    return (f"extern \"C\" __global__ void __launch_bounds__(LAUNCH_THREADS) {name}__cuda({', '.join(formal + offsets)}) {{\n"
            f"    {name}({', '.join(arguments)});\n}}\n")


def main():
    mode, *paths = sys.argv[1:]
    found = [k for path in paths for k in kernels(open(path, encoding="utf-8").read())]
    if mode == "table":
        print(json.dumps(dict(found), indent=1))
    else:
        print("".join({"emu": emulator, "cuda": cuda}[mode](*k) for k in found))


if __name__ == "__main__":
    main()
