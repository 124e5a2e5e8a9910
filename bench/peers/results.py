"""Rows of measurements, one JSON object a line, and the tables that are made of them."""
import json
import statistics


class Rows:
    """OUT/raw.jsonl: what has been run, in order."""

    def __init__(self, path):
        self.path = path
        self.all = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, row):
        self.all.append(row)
        with self.path.open("a") as out:
            out.write(json.dumps(row) + "\n")

    def of(self, **wanted):
        """Rows with these fields."""
        return [r for r in self.all if all(r.get(k) == v for k, v in wanted.items())]

    def seconds(self, **wanted):
        """How long the longest of these took; None of none."""
        return max((r["seconds"] for r in self.of(**wanted)), default=None)


def floor(rows, row):
    """Tokens a second that memory and arithmetic allow: in decode the row's bytes by the median of the bandwidths that Lily
    measured, in prefill Lily's own floor (float32 operations), the same for all; None before Lily has run."""
    same = dict(preset=row["preset"], threads=row["threads"])
    lily = rows.of(engine="lily", phase=row["phase"], context=row["context"], **same)
    if row["phase"] == "prefill":
        return statistics.median(r["floor_tok_s"] for r in lily) if lily else None
    bandwidth = [r["read_bytes_per_second"] for r in rows.of(engine="lily", **same)]
    # mlx-lm reads the same weights as Lily
    needed = row.get("bytes_per_token") or (lily and lily[0]["bytes_per_token"])
    return statistics.median(bandwidth) / needed if bandwidth and needed else None


def summary(rows):
    """A row for each case: the median of its rounds, with spread, least and most, and share of the floor."""
    groups = {}
    for row in rows.all:
        key = tuple(row[k] for k in ("preset", "threads", "phase", "context", "engine", "format"))
        groups.setdefault(key, []).append(row)
    out = []
    for group in groups.values():
        first = group[0]
        if first["tok_s"] is None:
            out.append(first)
            continue
        speeds = [r["tok_s"] for r in group]
        row = {k: v for k, v in first.items() if k not in ("round", "seconds", "floor_tok_s", "read_bytes_per_second")}
        row |= dict(tok_s=statistics.median(speeds), min=min(r["min"] for r in group), max=max(r["max"] for r in group))
        if len(group) > 1:
            row |= dict(spread=statistics.stdev(speeds), repeats=sum(r["repeats"] for r in group))
        limit = floor(rows, first)
        row |= dict(floor_tok_s=limit, share_of_floor=limit and row["tok_s"] / limit)
        out.append(row)
    return out


def cell(row):
    """Median (least to most), share of the floor."""
    if row is None:
        return "-"
    if row["tok_s"] is None:
        return "too slow"
    digits = 1 if row["tok_s"] >= 10 else 2
    text = f"{row['tok_s']:.{digits}f}"
    if row["repeats"] > 1:
        text += f" ({row['min']:.{digits}f} to {row['max']:.{digits}f})"
    if row.get("share_of_floor"):
        text += f", {100 * row['share_of_floor']:.0f}%"
    if row["phase"] == "prefill" and row["tokens"] < row["context"]:
        text += f", {row['tokens']} tokens only"
    return text


def table(rows, preset, order):
    """A line for each case; Lily's median over the best peer's."""
    lines = [row for row in rows if row["preset"] == preset]
    names = [n for n in order if any(n == name(r) for r in lines)]
    text = [f"| threads | test | {' | '.join(names)} | ratio |", "|---:|---|" + "---:|" * (len(names) + 1)]
    cases = sorted({(r["phase"] == "decode", r["threads"], r["context"]) for r in lines})
    for decode, threads, context in cases:
        found = {name(r): r for r in lines if (r["phase"] == "decode", r["threads"], r["context"]) == (decode, threads, context)}
        speeds = {n: r["tok_s"] for n, r in found.items() if r["tok_s"]}
        peers = [v for n, v in speeds.items() if n != "lily"]
        ratio = f"{speeds['lily'] / max(peers):.2f}" if "lily" in speeds and peers else "-"
        test = f"tg @ d{context}" if decode else f"pp{context}"
        text.append(f"| {threads} | {test} | {' | '.join(cell(found.get(n)) for n in names)} | {ratio} |")
    return "\n".join(text)


def name(row):
    return f"llama.cpp-{row['format']}" if row["engine"] == "llama.cpp" else row["engine"]
