"""Right answers to the exercises of notebook 01."""

import numpy as np

from course_lib.lessons.nb01_divisible import KVCache, run_chunk


class KVCache_1:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.k = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]
        self.v = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]

    def append(self, layer, k, v):
        self.k[layer].append(k.copy())
        self.v[layer].append(v.copy())

    def view(self, layer):
        return np.concatenate(self.k[layer]), np.concatenate(self.v[layer])


class KVCache_2:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.room = np.full((2, num_layers, 4, kv_heads, head_dim), np.nan, np.float32)
        self.used = [0] * num_layers

    def append(self, layer, k, v):
        start, stop = self.used[layer], self.used[layer] + len(k)
        while stop > self.room.shape[2]:
            self.room = np.concatenate([self.room, np.full_like(self.room, np.nan)], axis=2)
        self.room[:, layer, start:stop] = k, v
        self.used[layer] = stop

    def view(self, layer):
        return [x[layer, : self.used[layer]] for x in self.room]


class KVCache_3:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.shape, self.tokens = (-1, kv_heads, head_dim), {}

    def append(self, layer, k, v):
        for pair in zip(k, v):
            self.tokens.setdefault(layer, []).append(np.array(pair))

    def view(self, layer):
        kept = self.tokens.get(layer, [])
        return tuple(np.array([pair[i] for pair in kept], np.float32).reshape(self.shape) for i in (0, 1))


def prefill_1(model, ids, sizes):
    cache = KVCache(model.config.num_layers, model.config.kv_heads, model.config.head_dim)
    ends = np.cumsum(sizes)
    for start, stop in zip([0, *ends[:-1]], ends):
        last = run_chunk(model, ids[start:stop], cache)
    return cache, last


def prefill_2(model, ids, sizes):
    cache = KVCache(kv_heads=model.config.kv_heads, head_dim=model.config.head_dim, num_layers=model.config.num_layers)
    todo = list(ids)
    for size in sizes:
        chunk, todo = todo[:size], todo[size:]
        logits = run_chunk(model, chunk, cache)
    return [cache, logits.tolist()]


def prefill_3(model, ids, sizes):
    class Pairs:
        def __init__(self):
            self.layers = {}

        def append(self, layer, k, v):
            old = self.layers.get(layer, (k[:0], v[:0]))
            self.layers[layer] = tuple(np.concatenate(pair) for pair in zip(old, (k, v)))

        def view(self, layer):
            return self.layers.get(layer, (np.zeros((0, 1, 1)), np.zeros((0, 1, 1))))

    def run(done, sizes, cache):
        logits = run_chunk(model, ids[done : done + sizes[0]], cache)
        return logits if len(sizes) == 1 else run(done + sizes[0], sizes[1:], cache)

    cache = Pairs()
    return cache, run(0, sizes, cache)
