"""Shapes of Qwen3.6-35B-A3B (text) and helpers of the generator.

Everything is derived from the public config values; the weights are random.
"""
import numpy as np

CFG = dict(
    hidden=2048, layers=40, interval=4, heads=16, kv_heads=2, head_dim=256,
    rope_frac=0.25, theta=1e7, experts=256, top_k=8, moe_ff=512, shared_ff=512,
    lk_heads=16, lv_heads=32, lk_dim=128, lv_dim=128, conv=4, vocab=248320,
    eps=1e-6, ctx=262144,
)


def config(layers=None, vocab=None, experts=None):
    c = dict(CFG)
    if layers:
        c["layers"] = layers
    if vocab:
        c["vocab"] = vocab
    if experts:
        c["experts"] = experts
    return c


def is_linear(c, i):
    return (i + 1) % c["interval"] != 0


class Rng:
    """Random bytes and numbers from one seed."""

    def __init__(self, seed=0):
        self.n = np.random.default_rng(seed)

    def u8(self, n):
        return np.frombuffer(self.n.bytes(n), np.uint8)

    def normal(self, shape, std=1.0):
        return (self.n.standard_normal(shape, dtype=np.float32) * std).astype(np.float32)

    def uniform(self, shape, lo, hi):
        return self.n.uniform(lo, hi, shape).astype(np.float32)
