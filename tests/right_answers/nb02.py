"""Right answers to the exercises of notebook 02."""

import numpy as np

from course_lib.arithmetic import exact


def chunk_attention_mask_1(chunk_len, cached_len):
    return np.tril(np.ones((chunk_len, cached_len + chunk_len), dtype=bool), k=cached_len)


def chunk_attention_mask_2(chunk_len, cached_len):
    return [[key <= cached_len + row for key in range(cached_len + chunk_len)] for row in range(chunk_len)]


def chunk_attention_mask_3(chunk_len, cached_len):
    seen = np.ones((chunk_len, cached_len))
    own = 1 - np.triu(np.ones((chunk_len, chunk_len)), k=1)
    return np.asfortranarray(np.hstack([seen, own])).astype(np.uint8)


def ragged_mask_1(q_lens, kv_lens):
    blocks = []
    for q_len, kv_len in zip(q_lens, kv_lens):
        blocks.append(np.tril(np.ones((q_len, kv_len), dtype=int), k=kv_len - q_len))
    rows = []
    for r, block in enumerate(blocks):
        zeros = [np.zeros((q_lens[r], n), dtype=int) for n in kv_lens]
        rows.append(np.hstack([*zeros[:r], block, *zeros[r + 1 :]]))
    return np.vstack(rows)


def ragged_mask_2(q_lens, kv_lens):
    queries = [(r, kv - q + i) for r, (q, kv) in enumerate(zip(q_lens, kv_lens)) for i in range(q)]
    keys = [(r, j) for r, kv in enumerate(kv_lens) for j in range(kv)]
    return [[kr == qr and j <= p for kr, j in keys] for qr, p in queries]


def attend_1(q, k, v, mask):
    scores = exact.matmul(q, k.T) * np.float32(1 / np.sqrt(q.shape[1]))
    scores[~mask] = -1e9
    return exact.weighted_mean(exact.exp(scores - np.max(scores, axis=1)[:, None]), v)


def attend_2(q, k, v, mask):
    rows = []
    for query, sees in zip(q, mask):
        keys, values = k[sees], v[sees]
        scores = exact.matmul(query[None, :] / np.sqrt(np.float32(len(query))), keys.T)
        rows.append(exact.weighted_mean(exact.exp(scores - scores.max()), values)[0])
    return np.array(rows)


def attend_3(q, k, v, mask):
    import math

    out = []
    for query, sees in zip(q.astype(np.float64), mask):
        score = [math.fsum(query * key) / math.sqrt(len(query)) for key in k[sees].astype(np.float64)]
        weight = np.array([math.exp(s - max(score)) for s in score])
        out.append([math.fsum(weight * column) / math.fsum(weight) for column in v[sees].T])
    return np.array(out, dtype=np.float32)
