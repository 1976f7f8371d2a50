"""The simulator agrees with published comparisons in sign and order. The magnitudes are another device's.

Step cost: the reference preset, a modelled device. Sources:
Sarathi-Serve   Agrawal et al., OSDI 2024 (arXiv 2403.02310v3): capacity under strict and relaxed P99 targets,
                and the ablation of its two techniques
TaiChi          Wang et al., 2025 (arXiv 2508.01989v1): aggregation against disaggregation under both kinds of targets
"""

from course_lib.cost.disaggregated import Transfer, simulate_disaggregated
from course_lib.cost.linear import PRESETS
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.workload import Lengths, Poisson
from course_lib.schedule.request import Chunk

COST = PRESETS["reference"]
SERVER = {"max_num_seqs": 128, "enable_prefix_caching": False}
PROMPT = Lengths(1, 8192, 1730, 1.0)  # as of long chats


def chat(rate, count):
    return Poisson(rate=rate, count=count, prompt=PROMPT, output=Lengths(1, 1024, 415, 0.6), seed=1)


def chunks_and_decodes_in_turn(chunk):
    """Chunked prefill without mixing: a chunk of one prompt, then the decodes, in turn."""
    last = {"seen": None, "prefill": False}

    def plan_step(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
        seen = tuple((r.id, r.num_computed) for r in requests if r.block_table)
        if seen != last["seen"]:  # a new step, not the same one planned again
            last.update(seen=seen, prefill=not last["prefill"])
        prompts = [r for r in requests if not r.decoding]
        decodes = [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests if r.decoding]
        if prompts and (last["prefill"] or not decodes):
            take = min(chunk, prompts[0].num_uncomputed)
            return (Chunk(prompts[0].id, prompts[0].num_computed, prompts[0].num_computed + take),)
        return tuple(decodes)

    return plan_step


def capacity(profile, budget, p99_target_us):
    """Largest tried rate, in requests per second, that is served with P99 inter-token latency within the target."""
    best = 0
    for rate in (1, 2, 3, 5, 8, 12, 16):
        config = ServerConfig(profile=profile, max_num_batched_tokens=budget, **SERVER)
        report = simulate(chat(rate, 80), config, COST)
        if report.itl.percentile(99) > p99_target_us or report.ttft.percentile(50) > 2_000_000:
            break
        best = rate
    return best


def test_stall_free_beats_whole_prompts_most_under_a_strict_target():
    """Sarathi-Serve: the stricter the P99 target, the larger the gain in capacity over vLLM 0.2, which runs prompts
    whole and alone."""
    gain = {}
    for name, target_us in (("strict", 50_000), ("relaxed", 300_000)):
        stall_free = capacity("sarathi", 2_048, target_us)
        gain[name] = stall_free / capacity("sglang-prefill-first", 16_384, target_us)
    assert gain["strict"] >= 2 > gain["relaxed"] >= 1, gain


def test_mixing_alone_helps_ttft_and_hurts_itl_chunking_alone_the_reverse():
    """Sarathi-Serve's ablation: both together are between them in TTFT, and as smooth as chunking alone."""
    mixing = ServerConfig(profile="whole-prompt", max_num_batched_tokens=16_384, **SERVER)
    chunking = ServerConfig(plan_step=chunks_and_decodes_in_turn(512), max_num_batched_tokens=16_384, **SERVER)
    both = ServerConfig(profile="sarathi", max_num_batched_tokens=640, **SERVER)
    runs = [simulate(chat(6, 80), config, COST) for config in (mixing, chunking, both)]
    ttft = [run.ttft.percentile(50) for run in runs]
    itl = [run.itl.percentile(99) for run in runs]
    assert ttft[0] < ttft[2] < ttft[1], ttft
    assert itl[0] > 2 * itl[1] and itl[0] > 2 * itl[2] and itl[2] <= 1.1 * itl[1], itl


def test_aggregation_wins_for_tight_ttft_and_disaggregation_for_tight_tpot():
    """TaiChi, two servers each way; TPOT is a request's mean gap, and aggregation takes the best of three chunks."""
    workload = Poisson(rate=14, count=120, prompt=PROMPT, output=Lengths(1, 1024, 200, 0.6), seed=1)
    server = {**SERVER, "max_num_batched_tokens": 2_048}
    split = simulate_disaggregated(workload, ServerConfig(**server), COST, transfer=Transfer(100, 437), keep=True)
    together = [
        simulate(workload, ServerConfig(**{**server, "max_num_batched_tokens": chunk}), COST, replicas=2, keep=True)
        for chunk in (256, 512, 2_048)
    ]

    def met(report, ttft_ms, tpot_ms):
        good = [
            row.ttft_us <= 1000 * ttft_ms and sum(row.gaps_us) <= 1000 * tpot_ms * len(row.gaps_us)
            for row in report.requests
        ]
        return sum(good) / len(good)

    tight_ttft, tight_tpot = (150, 20), (2_000, 5)
    assert max(met(report, *tight_ttft) for report in together) > met(split, *tight_ttft) + 0.1
    assert met(split, *tight_tpot) > max(met(report, *tight_tpot) for report in together) + 0.3
