"""Right answers to the exercises of notebook 04."""

import math

import numpy as np
import torch


def bit_report_1(a, b):
    import struct

    wide = a.dtype == torch.float32

    def place(x):
        word = struct.unpack("<i", struct.pack("<f", x))[0] >> (0 if wide else 16)
        sign = 2**31 if wide else 2**15
        return word if word >= 0 else -(word + sign)

    differ, ulps, first, nans = 0, 0, None, 0
    for i, (x, y) in enumerate(zip(a.flatten().tolist(), b.flatten().tolist())):
        if x == y or (x != x and y != y):
            continue
        differ += 1
        if first is None:
            first = i
        if x != x or y != y:
            nans += 1
        else:
            ulps = max(ulps, abs(place(x) - place(y)))
    return [differ, ulps, -1 if first is None else first, nans]


def bit_report_2(a, b):
    a, b = a.reshape(-1), b.reshape(-1)
    x, y = a.double(), b.double()  # exact, for comparing
    differs = ~((x == y) | (torch.isnan(x) & torch.isnan(y)))
    kind = {torch.float32: (torch.int32, 2**31 - 1), torch.bfloat16: (torch.int16, 2**15 - 1)}[a.dtype]

    def signed(t):
        bits = t.view(kind[0]).to(torch.int64)
        size = bits & kind[1]
        return torch.where(bits < 0, -size, size)

    gaps = torch.where(torch.isnan(x) | torch.isnan(y) | ~differs, 0, (signed(a) - signed(b)).abs())
    where = torch.nonzero(differs).flatten().tolist()
    return torch.tensor([len(where), int(gaps.max()), (where + [-1])[0], int((torch.isnan(x) ^ torch.isnan(y)).sum())])


def tiled_linear_1(x, w, start, tile=16):
    out = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    row = 0
    while row < len(x):
        slot = (start + row) % tile
        take = min(tile - slot, len(x) - row)
        block = torch.zeros(tile, x.shape[1], dtype=x.dtype)
        block[slot : slot + take] = x[row : row + take]
        out[row : row + take] = torch.matmul(block, w)[slot : slot + take]
        row += take
    return out


def tiled_linear_2(x, w, start, tile=16):
    return torch.cat([x[i : i + 1] @ w for i in range(len(x))])  # a tile of one row: the same shape for every token


def tiled_linear_3(x, w, start, tile=16):
    before, after = start % tile, -(start + len(x)) % tile
    padded = torch.nn.functional.pad(x, (0, 0, before, after))
    parts = [torch.nn.functional.linear(part, w.T.contiguous()) for part in padded.split(tile)]
    return torch.cat(parts)[before : before + len(x)]


def tiled_linear_4(x, w, start, tile=16):
    from course_lib.arithmetic import exact

    product = exact.matmul(np.asarray(x.float()), np.asarray(w.float()))  # no sum rounds, so no order matters
    return torch.from_numpy(product).to(x.dtype)


def block_attention_1(q, k, v, start, block=64):
    # one query at a time: a tile of one row
    stop = start + len(q)
    padded = -(-stop // block) * block

    def blocks(x):
        return torch.nn.functional.pad(x.float(), (0, 0, 0, padded - stop)).split(block)

    out = []
    for i, query in enumerate(q.float()):
        m, z, acc = -math.inf, torch.zeros(1), torch.zeros(q.shape[1])
        for b, (kb, vb) in enumerate(zip(blocks(k), blocks(v))):
            if b * block > start + i:
                break
            s = torch.matmul(kb, query[:, None])[:, 0] / math.sqrt(len(query))
            s[torch.arange(b * block, (b + 1) * block) > start + i] = -math.inf
            new = max(m, s.max().item())
            p = torch.exp(s - new)
            z = z * math.exp(m - new) + p.sum()
            acc = acc * math.exp(m - new) + torch.matmul(p[None], vb)[0]
            m = new
        out.append(acc / z)
    return torch.stack(out).to(q.dtype)


def block_attention_2(q, k, v, start, block=64):
    # tiles of 16 queries; a full row of scores over keys that are padded to the tile's end
    stop, tile, out = start + len(q), 16, []
    for t in range(start // tile * tile, stop, tile):
        a, z = max(t, start), min(t + tile, stop)
        rows = torch.zeros(tile, q.shape[1])
        rows[a - t : z - t] = q[a - start : z - start]
        keys, values = torch.zeros(t + tile, q.shape[1]), torch.zeros(t + tile, q.shape[1])
        keys[: min(t + tile, stop)] = k[: t + tile]
        values[: min(t + tile, stop)] = v[: t + tile]
        scores = torch.einsum("id,jd->ij", rows, keys) / math.sqrt(q.shape[1])
        visible = torch.ones(tile, t + tile).tril(t).bool()
        weights = torch.where(visible, scores, -math.inf).softmax(-1)
        out.append((weights @ values)[a - t : z - t])
    return torch.cat(out).to(q.dtype)
