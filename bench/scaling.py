"""What more threads would give on the CPU: a model of a decode step and of a prefill chunk, from the plan.

    lily plan --preset layer4 --device cpu --phase decode --context 512 --json | python3 bench/scaling.py --one 102 --two 150
    lily plan --preset layer4 --device cpu --phase prefill --context 512 --rows 512 --json |
        python3 bench/scaling.py --rows 512 --one 323 --two 576
    lily plan --device cpu --phase decode --context 512 --json | python3 bench/scaling.py --rate 30.5 --fixed 60 --bandwidth 200

A step is its stages one after the other. A stage takes the longest of what its busiest thread does (its tasks dealt out as
threads get free, each as long as its bytes, in prefill its operations), and its bytes by the machine's bandwidth; then a part that
no thread shares (`fixed`), and a barrier. What one thread does a second and the fixed part are solved from the speeds of one and two
threads, tokens a second, which are measured (or given, from a smaller model); barriers and bandwidth are assumptions. What two
threads lost to memory that was not twice as fast counts as fixed here, so that part is an upper bound.

The tasks of each launch follow the rules of crates/lily-cpu/src/kernels, for the sizes of Qwen3.6-35B-A3B.
"""
import argparse
import heapq
import json
import sys

# tasks a thread should find in a launch; outputs of the smallest task of a product, and of an expert's
TASKS_PER_THREAD, LEAST_OUTPUTS, LEAST_EXPERT_OUTPUTS = 4, 16, 32
# rows that meet a block of outputs; channels of a task of the convolution; rows of a state of a task of the scan
INTEGER_ROWS, CONV_CHANNELS, SCAN_ROWS = 128, 512, 32
EXPERTS, TOP_K, QUERY_HEADS, KV_HEADS, QUERIES, READING = 256, 8, 16, 2, 32, 4
VALUE_HEADS, VALUE_DIM = 32, 128


def ceil(a, b):
    return -(-a // b)


def attend(rows, threads):
    group = QUERY_HEADS // KV_HEADS
    heads = min((h for h in range(group, 0, -1) if group % h == 0),
                key=lambda h: ceil(rows * QUERY_HEADS // h, threads) * (h + READING))
    block = max(1, QUERIES // group)
    together = heads == group and ceil(rows, block) * KV_HEADS >= threads * TASKS_PER_THREAD
    return ceil(rows, block if together else 1) * QUERY_HEADS // heads


def tasks(launch, rows, threads):
    """How many tasks a launch offers to so many threads."""
    kernel, wanted = launch["kernel"], threads * TASKS_PER_THREAD
    # results are float32; only the last row has logits
    rows = 1 if launch["label"] in ("norm", "lm_head") else rows
    if kernel in ("Matmul", "Swiglu"):
        panels = ceil(rows, INTEGER_ROWS)
        outputs = launch["written"] // 4 // rows
        return panels * min(ceil(wanted, panels), ceil(outputs, LEAST_OUTPUTS))
    if kernel in ("ExpertSwiglu", "ExpertDown"):
        active = min(EXPERTS, rows * TOP_K)
        outputs = launch["written"] // 4 // (rows * TOP_K)
        return active * min(ceil(wanted, active), ceil(outputs, LEAST_EXPERT_OUTPUTS))
    if kernel == "ConvSilu":
        return ceil(launch["written"] // 4 // rows, CONV_CHANNELS)
    if kernel == "DeltaScan":
        return VALUE_HEADS * VALUE_DIM // SCAN_ROWS
    if kernel == "Attend":
        return attend(rows, threads)
    return 1 if kernel in ("Group", "ConvState") else rows


def busiest(stage, work, rows, threads):
    """Work of the thread that has most when tasks are taken in order by whoever is free."""
    loads = [0.0] * threads
    for launch in stage:
        n = tasks(launch, rows, threads)
        for _ in range(n):
            heapq.heapreplace(loads, loads[0] + work(launch) / n)
    return max(loads)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--one", type=float, help="tokens a second of one thread, measured")
    ap.add_argument("--two", type=float, help="of two")
    ap.add_argument("--rate", type=float, help="GB/s of one thread (prefill: GFLOP/s), in place of --one and --two")
    ap.add_argument("--fixed", type=float, help="microseconds a stage, likewise")
    ap.add_argument("--rows", type=int, default=1, help="tokens of the chunk; 1 is a decode step")
    ap.add_argument("--bandwidth", type=float, default=60, help="GB/s that many threads read")
    ap.add_argument("--barrier", type=float, default=0.2, help="microseconds a stage and thread: each writes one shared line twice")
    ap.add_argument("--stages", action="store_true", help="tasks of each kind of launch")
    args = ap.parse_args()
    given = [[args.one, args.two], [args.rate, args.fixed]]
    if not args.stages and sum(all(pair) for pair in given) != 1:
        ap.error("either --one and --two, or --rate and --fixed")
    launches = json.load(sys.stdin)["launches"]
    stages = {}
    for launch in launches:
        stages.setdefault(launch["stage"], []).append(launch)
    stages = list(stages.values())
    bytes_of = lambda launch: launch["read"] + launch["written"]
    work = bytes_of if args.rows == 1 else lambda launch: launch["flops"]
    counts = [1, 2, 4, 8, 16]
    if args.stages:
        print("| launch | MB | GFLOP |" + "".join(f" {t} |" for t in counts) + "\n|---|---:|---:|" + "---:|" * len(counts))
        seen = {}
        for launch in launches:
            seen.setdefault((launch["label"], launch["written"]), launch)
        for launch in seen.values():
            offered = "".join(f" {tasks(launch, args.rows, t)} |" for t in counts)
            print(f"| {launch['label']} | {bytes_of(launch) / 1e6:.2f} | {launch['flops'] / 1e9:.3f} |{offered}")
        return
    loads = {t: [busiest(s, work, args.rows, t) for s in stages] for t in counts}
    share = {t: sum(of_stages) for t, of_stages in loads.items()}
    barrier = {t: len(stages) * args.barrier * 1e-6 * (t if t > 1 else 0) for t in counts}
    if args.rate:
        seconds_per_work, fixed = 1e-9 / args.rate, len(stages) * args.fixed * 1e-6
        one = share[1] * seconds_per_work + fixed
    else:
        one, two = args.rows / args.one, args.rows / args.two - barrier[2]
        # one = share / rate + fixed, two likewise
        seconds_per_work = (one - two) / (share[1] - share[2])
        fixed = one - share[1] * seconds_per_work
    reading = [sum(map(bytes_of, s)) / (args.bandwidth * 1e9) for s in stages]
    memory = sum(reading)
    unit = "GB/s" if args.rows == 1 else "GFLOP/s"
    print(f"{len(stages)} stages, {sum(map(bytes_of, launches)) / 1e6:.0f} MB, {sum(l['flops'] for l in launches) / 1e9:.1f} GFLOP; one thread: "
          f"{1e-9 / seconds_per_work:.1f} {unit}; fixed: {1e3 * fixed:.2f} ms, {1e6 * fixed / len(stages):.0f} us a stage")
    print("| threads | busiest thread | memory | fixed | barriers | in all | tok/s | times one |\n|---:|" + "---:|" * 7)
    for t in counts:
        own = share[t] * seconds_per_work
        # one and two threads are what was measured; memory bounds the others
        bounded = t > 2 or args.rate
        bound = sum(max(x * seconds_per_work, r) for x, r in zip(loads[t], reading)) if bounded else own
        total = bound + fixed + barrier[t]
        ms = lambda x: f"{1e3 * x:.2f}"
        print(f"| {t} | {ms(own)} | {ms(memory)} | {ms(fixed)} | {ms(barrier[t])} | {ms(total)} ms | {args.rows / total:.{0 if args.rows / total >= 100 else 1}f} | {one / total:.2f} |")


if __name__ == "__main__":
    main()
