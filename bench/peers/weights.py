"""Random weights of the sizes of a preset, made when they are wanted and deleted afterwards."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gen_gguf
from common import config

# layers, vocabulary, experts; `tiny` is for trying the harness, the others are presets of `lily synth`
PRESETS = {
    "tiny": (4, 4096, 16),
    "layer4": (4, 32768, 256),
    "layer4-fullvocab": (4, 248320, 256),
    "layer8": (8, 32768, 256),
    "qwen3.6-35b-a3b": (40, 248320, 256),
}
# bytes of disk that stay free
MARGIN = 2 << 30
HERE = Path(__file__).parent


class Weights:
    """The weights of a preset in one format: `mlx` (Lily reads it too), `q4_0` or `q4_k_s`."""

    def __init__(self, preset, form, folder, lily):
        self.preset, self.form, self.lily = preset, form, lily
        self.path = folder / (f"{preset}-mlx" if form == "mlx" else f"{preset}-{form}.gguf")
        # beside what this program made and may delete, nothing else
        self.mark = folder / f"{self.path.name}.made"
        self.sizes = config(*PRESETS[preset])

    @property
    def bytes(self):
        # MLX's four bits with a scale and a bias for 64 weights are as many as Q4_0's
        return gen_gguf.file_bytes(self.sizes, "q4_0" if self.form == "mlx" else self.form)

    @property
    def complete(self):
        return (self.path / "config.json").exists() if self.form == "mlx" else self.path.exists()

    def ready(self):
        """Makes them, and has them read from disk by the engine itself: how a file is cached, in small pages or huge ones, is up to
        whoever read or wrote it first, and Lily's decode is a fifth slower from small ones."""
        self.make()
        for file in [self.path] if self.path.is_file() else self.path.iterdir():
            with open(file, "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def make(self):
        if self.complete:
            return
        self.delete()
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < self.bytes + MARGIN:
            sys.exit(f"compare: {self.path} takes {self.bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: make room, or name "
                     "a folder on another disk with --weights")
        self.mark.touch()
        layers, vocab, experts = PRESETS[self.preset]
        if self.form == "mlx":
            command = [self.lily, "synth", "--out", str(self.path)]
            command += ["--preset", "layer4", "--vocab", str(vocab), "--experts", str(experts)] if self.preset == "tiny" else [
                "--preset", self.preset]
        else:
            command = [sys.executable, str(HERE / "gen_gguf.py"), str(self.path), "--format", self.form, "--layers", str(layers),
                       "--vocab", str(vocab), "--experts", str(experts)]
        print(f"making {self.path}, {self.bytes / 1e9:.1f} GB", file=sys.stderr)
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            self.delete()
            sys.exit(f"compare: could not make {self.path}: {' '.join(command)}")

    def delete(self):
        """What `make` made, complete or not; other people's files stay."""
        if not self.mark.exists():
            return
        if self.path.is_dir():
            shutil.rmtree(self.path)
        for file in [self.path, Path(f"{self.path}.partial")]:
            file.unlink(missing_ok=True)
        self.mark.unlink()
