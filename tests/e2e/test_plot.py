"""bench/plot: what is drawn is what was measured."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def plot(*arguments):
    return subprocess.run([sys.executable, ROOT / "bench" / "plot", *map(str, arguments)], capture_output=True, text=True)


def drawn(path):
    """The series of a drawing by name: (x, y) of each point."""
    root = ElementTree.parse(path).getroot()
    lines = [[tuple(map(float, point.split(","))) for point in line.get("points").split()] for line in root.iter(SVG + "polyline")]
    names = [text.text for text in root.iter(SVG + "text") if text.get("text-anchor") is None]
    return dict(zip(names, lines, strict=True)), [text.text for text in root.iter(SVG + "text")]


def line(phase, context, tok_s, **rest):
    return {"phase": phase, "context": context, "tok_s": tok_s, "spread": 1, "floor_tok_s": 1000, **rest}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "2031-05-01-box"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"device": "x", "results": [line("decode", 512, 100), line("decode", 4096, 10)]}))
    (folder / "peer.json").write_text(json.dumps({"engine": "other", "results": [{"phase": "decode", "context": 512, "tok_s": 10}]}))
    (folder / "points.jsonl").write_text("\n".join(json.dumps(l) for l in [
        line("decode", 1024, 10 ** 1.5), line("decode", 1024, 3, without=["gqa-pack"]), line("prefill", 256, 7)]))
    return folder


def test_speeds_over_context(run):
    done = plot(run)
    assert done.returncode == 0 and done.stdout.split() == [str(run / "decode.svg"), str(run / "prefill.svg")], done.stderr
    series, texts = drawn(run / "decode.svg")
    assert list(series) == ["floor", "Lily", "other"] and "2031-05-01-box: decode" in texts and {"512", "1K", "4K"} <= set(texts)
    lily, other = series["Lily"], series["other"]
    # the axes are logarithmic: halfway between 100 and 10, and a third of the way from 512 to 4096
    assert len(lily) == 3 and other == [(lily[0][0], lily[2][1])]
    assert lily[1][1] == pytest.approx((lily[0][1] + lily[2][1]) / 2, abs=0.2)
    assert lily[1][0] == pytest.approx(lily[0][0] + (lily[2][0] - lily[0][0]) / 3, abs=0.2)
    assert lily[0][1] < lily[2][1] and [y for _, y in series["floor"]] == [series["floor"][0][1]] * 3


def test_rounds_are_put_together(tmp_path):
    folder = tmp_path / "2031-05-02-box-b"
    folder.mkdir()
    of = dict(preset="layer4", engine="lily", format="mlx-4bit", threads=2, phase="prefill", context=512)
    # null: an engine that was too slow to be timed
    rounds = [dict(of, tok_s=v) for v in [5, 100, 10, None]]
    (folder / "raw.jsonl").write_text("\n".join(map(json.dumps, rounds)))
    assert plot(folder).returncode == 0
    root = ElementTree.parse(folder / "prefill.svg").getroot()
    assert [c[0].text for c in root.iter(SVG + "circle")] == ["lily, 2 threads: 10.0"]


def test_history_has_a_place_for_each_date(run, tmp_path):
    later = tmp_path / "2031-06-01-box"
    later.mkdir()
    (later / "b.json").write_text(json.dumps({"results": [line("decode", 512, 1000)]}))
    assert plot("--history", tmp_path / "h.svg", later, run).returncode == 0
    series, texts = drawn(tmp_path / "h.svg")
    assert {"2031-05-01", "2031-06-01"} <= set(texts) and list(series) == ["box: decode 512", "box: decode 4K"]
    (x0, y0), (x1, y1) = series["box: decode 512"]
    assert x0 < x1 and y0 > y1 and math.isfinite(y1)


def test_what_is_no_run_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"results": [{"phase": "decode"}]}')
    done = plot(tmp_path)
    assert done.returncode == 1 and "x.json is no run" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "x.json").write_text("[]")
    done = plot(tmp_path)
    assert done.returncode == 1 and "holds no run" in done.stderr
    (tmp_path / "x.json").write_text(json.dumps({"results": [line("decode", 512, 5)]}))
    done = plot("--history", tmp_path / "h.svg", tmp_path)
    assert done.returncode == 1 and "wanted YYYY-MM-DD-MACHINE" in done.stderr


def test_the_runs_that_are_kept_can_be_drawn(tmp_path):
    kept = sorted(path for path in (ROOT / "bench" / "runs").iterdir() if path.is_dir())
    done = plot("--history", tmp_path / "h.svg", *kept)
    assert kept and done.returncode == 0, done.stderr
