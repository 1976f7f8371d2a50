"""The museum: a collection of public faults, mistakes that real engines made, each built into ours as a wrong line.

FAULTS      number -> a fault, with the changes that give it to our engine
ELSEWHERE   number -> where it is tested instead, or why our engine cannot have it
"""

import inspect
from dataclasses import dataclass, field
from textwrap import dedent

from oracle_model import OracleModel

from course_lib.attention.mask import chunk_attention_mask
from course_lib.cache.allocator import BlockAllocator
from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex, block_hash, extend_hashes
from course_lib.cache.radix_manager import RadixManager
from course_lib.engine import Engine
from course_lib.positions import positions
from course_lib.schedule.build_step import StepBuilder
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import Profile
from course_lib.schedule.refusals import room_for, why_never
from course_lib.schedule.scheduler import Scheduler


@dataclass(frozen=True)
class Fault:
    """A mistake in an engine.

    record           where: an issue, a pull request or a commit; "our own" for two that we made
    what             the mistake
    changes          places that make it, each as (function, right text, wrong text): the right text stands there once
    says             a pattern of what a workload says of an engine that has it
    profile, knobs   of the workloads that find it
    """

    record: str
    what: str
    changes: list
    says: str
    profile: str = "course"
    knobs: dict = field(default_factory=dict)


def build_in(fault: Fault, monkeypatch) -> None:
    """Change the functions until the test ends: their code itself, which every module that imported them runs."""
    sources = {function: dedent(inspect.getsource(function)) for function, _, _ in fault.changes}
    for function, right, wrong in fault.changes:
        times = sources[function].count(right)
        assert times == 1, f"{function.__qualname__} has this {times} times, not once: {right}"
        sources[function] = sources[function].replace(right, wrong)
    for function, source in sources.items():
        compiled = {}
        exec(source, dict(function.__globals__), compiled)
        monkeypatch.setattr(function, "__code__", compiled[function.__name__].__code__)


WRONG_KV = "holds another prefix|alone it gets|holds None"  # the KV of other tokens was used, or KV that nobody wrote
BOOKS = "blocks are counted|free .* held|lost|released 2 times|did not add up"
NO_CAP = {"max_chunk": 0}
MANY_DECODES = {"max_chunk": 0, "budget": 6, "max_num_seqs": 6, "num_blocks": 12}

HITS = {
    "1": Fault(
        "nano-vllm#114", "All blocks of a prompt may be hits, and nothing is left to compute its logits from.",
        [(CacheManager.match, "(request.num_tokens - 1) // self.block_size", "request.num_tokens // self.block_size")],
        says="nothing is planned|leaves",
    ),
    "2": Fault(
        "nano-vllm 77dd709", "A request's tokens are counted as they were before its hit.",
        [(plan_step, "min(request.num_uncomputed,", "min(request.num_uncomputed + request.num_cached,")],
        says="list index|sampled|computed",
    ),
    "3": Fault(
        "nano-vllm 812eb1c", "A request with a hit, and with more prompt than its first chunk, never joins running.",
        [(StepBuilder._admit, "s.running.append(request)",
          "if not hit or chunk.stop == request.num_tokens:\n"
          "        s.running.append(request)")],
        says="run, not",
    ),
    "4": Fault(
        "vllm#11186", "After a full hit only the last token is recomputed, so the hit ends inside a block.",
        [
            (CacheManager.match, "(request.num_tokens - 1) // self.block_size",
             "request.num_tokens // self.block_size"),
            (StepBuilder._look_up, "len(hit) * self.cache.block_size",
             "min(len(hit) * self.cache.block_size, request.num_tokens - 1)"),
        ],
        says="not in whole blocks",
    ),
    "6": Fault(
        "vllm#3251", "A prompt reads the cache although the logits of all its positions are wanted.",
        [(CacheManager.match, "self.prefix is None or not request.read_cache", "self.prefix is None")],
        says="reads no cache, and hit",
    ),
    "7": Fault(
        "dynamo#13188", "The prompt is cut first and looked up second, so a hit is no longer than the first chunk.",
        [(StepBuilder._look_up, "hit = self.cache.match(request)",
          "first = self.scheduler.max_chunk or self.scheduler.max_num_batched_tokens\n"
          "    hit = self.cache.match(request)[: first // self.cache.block_size]")],
        says="hit . tokens, and .* are cached",
    ),
    "8": Fault(
        "xllm#97", "The chain of hashes starts again in each chunk.",
        [
            (CacheManager.publish, "hashes = self._hashes(request, blocks.stop)",
             "first = blocks.start * self.block_size\n"
             "    extend_hashes(hashes := [], request.token_ids[first:], self.block_size, request.keys)"),
            (CacheManager.publish, "hashes[block]", "hashes[block - blocks.start]"),
        ],
        says=WRONG_KV,
    ),
    "9": Fault(
        "vllm-ascend#16270", "Hits are rounded down to more than a block.",
        [(CacheManager.match, "return blocks", "return blocks[: len(blocks) // 2 * 2]")],
        says="hit . tokens, and .* are cached",
    ),
    "10": Fault(
        "nano-vllm bb823b3", "A decode gets a new block if its length % block_size is 1: never, in blocks of 1.",
        [(CacheManager.allocate, "new = max(self.blocks_for(stop) - have, 0)",
          "new = (stop % self.block_size == 1) if request.decoding else max(self.blocks_for(stop) - have, 0)")],
        says="list index out of range",
    ),
}  # fmt: skip

READS = {
    "11": Fault(
        "transformers#43082", "Positions start again at 0 in every chunk.",
        [(positions, "np.arange(cached + computed, cached + computed + take)", "np.arange(take)")],
        says=WRONG_KV,
    ),
    "12": Fault(
        "nano-vllm f5b4840", "A decode's position is one too high.",
        [(positions, "cached + computed + take)", "cached + computed + take) + (take == 1 and cached + computed > 0)")],
        says=WRONG_KV,
    ),
    "13": Fault(
        "nano-vllm#212", "Attention reads the slots behind the chunk as well.",
        [(OracleModel.read_to, "chunk.start + len(chunk.token_ids)", "len(chunk.block_table) * pool.block_size")],
        says="which nobody has written",
    ),
    "14": Fault(
        "candle#3743", "The mask does not know that there are cached keys.",
        [(chunk_attention_mask, "cached_len + np.arange(chunk_len)[:, None]", "np.arange(chunk_len)[:, None]")],
        says=WRONG_KV,
    ),
    "16": Fault(
        "tt-metal#48899", "The mask shows one key too many once enough are cached.",
        [(chunk_attention_mask, "key <= query", "key <= query + (cached_len >= 4)")],
        says=WRONG_KV,
    ),
    "17": Fault(
        "tt-metal#54435", "Of the cached keys only whole tiles of the kernel are read.",
        [(chunk_attention_mask, "key <= query",
          "(key <= query) & ((key < cached_len // 4 * 4) | (key >= cached_len))")],
        says=WRONG_KV,
    ),
    "20": Fault(
        "transformers#47597", "Positions do not count the tokens that were attached from the cache.",
        [(positions, "np.arange(cached + computed, cached + computed + take)", "np.arange(computed, computed + take)")],
        says=WRONG_KV,
    ),
}  # fmt: skip

SAMPLING = {
    "21": Fault(
        "tt-xla#5830", "A running request without a chunk in the step is sampled, from logits that are not its own.",
        [
            (Engine._compute, "sample(self.logits[r.id],", "sample(self.logits.get(r.id, [0.0]),"),
            (Engine._compute, "for r in ends\n    }",
             "for r in self.scheduler.running if r.id in sampled or r.id not in planned.chunks\n"
             "    }"),
        ],
        says="tokens were sampled for requests", profile="sglang-prefill-first",
    ),
    "22": Fault(
        "vllm#29045", "The sampler keeps a state, which chunks in the middle of a prompt move as well.",
        [
            (Engine._compute, "request = requests[chunk.request_id]",
             "request = requests[chunk.request_id]\n"
             "        request.draws = getattr(request, 'draws', -1) + 1"),
            (Engine._compute, "index=r.num_tokens", "index=r.prompt_len + r.draws"),
        ],
        says="alone it gets",
    ),
}  # fmt: skip

BLOCKS = {
    "23": Fault(
        "nano-vllm 9fa256a", "A hit that was free loses its hash: the block behind it is hashed as a prompt's first.",
        [(CacheManager.allocate, "request.block_table += [*hit, *blocks]",
          "request.block_table += [*hit, *blocks]\n"
          "    if revived:\n"
          "        behind = request.token_ids[len(hit) * self.block_size :]\n"
          "        extend_hashes(hashes := [], behind, self.block_size, request.keys)\n"
          "        request.block_hashes[len(hit) :] = hashes")],
        says=WRONG_KV,
    ),
    "24": Fault(
        "nano-vllm 77dd709", "A block that is not full has a hash, and keeps it when it is full.",
        [(extend_hashes, "len(token_ids) // block_size", "-(-len(token_ids) // block_size)")],
        says="tokens, and .* are cached",
    ),
    "25": Fault(
        "vllm#11565", "A hit that is free still counts as a block that can be allocated.",
        [(CacheManager.allocate, " + revived > self.allocator.num_free", " > self.allocator.num_free")],
        says="NoneType|did not add up",
    ),
    "26": Fault(
        "vllm#4761", "An evicted block is still found by the content that it had.",
        [
            (PrefixIndex.forget, "blocks.remove(block)", "return"),
            (PrefixIndex.check, "assert pairs == sorted(self._hashes.items())", "assert True"),  # it would see it
        ],
        says=WRONG_KV,
    ),
    "27": Fault(
        "vllm#6849", "Admission asks for room for the prompt, and forgets that a hit that is free takes some of it.",
        [(CacheManager.allocate, "max(new, self.blocks_for(room_for) - have) + revived",
          "max(new + revived, self.blocks_for(room_for) - have)")],
        says="it will be preempted",
    ),
    "28": Fault(
        "vllm-ascend#15990", "A block table is released twice, and the allocator does not notice.",
        [
            (CacheManager.release, "self.allocator.release(request.block_table)",
             "for _ in range(2):\n"
             "        self.allocator.release(request.block_table)"),
            (BlockAllocator.release, "if times > refs[block]:", "if False:"),
            (BlockAllocator.release, "count = refs[block] - 1", "count = max(refs[block] - 1, 0)"),
        ],
        says=BOOKS,
    ),
    "29": Fault(
        "sglang-jax#982", "The slot of the token that was sampled last is freed as well, though it was never computed.",
        [(CacheManager.release, "(request.block_table)",
          "(request.block_table + request.block_table[(request.num_tokens - 1) // self.block_size :])")],
        says=BOOKS,
    ),
    "30": Fault(
        "sglang#16067", "A look-up holds the blocks that it finds, whether the request is admitted or not.",
        [(CacheManager.match, "return blocks", "self.allocator.touch(blocks)\n    return blocks")],
        says=BOOKS,
    ),
    "31": Fault(
        "sglang#38319", "An abort frees all blocks of the request, those in the tree included.",
        [(RadixManager.release, "self._unlock(request) :",
          "self._unlock(request) * (request.finish_reason != 'aborted') :")],
        says=BOOKS, profile="sglang-prefill-first",
    ),
    "32": Fault(
        "sglang#36855", "A prompt that does not use the cache makes no progress with a chunk in its middle.",
        [(Scheduler.advance, "request.num_computed = chunk.stop",
          "request.num_computed = chunk.stop if request.read_cache or request_id in sampled else chunk.start")],
        says="0 computed|with . computed",
    ),
    "33": Fault(
        "TensorRT-LLM#12673", "All blocks of a prompt are published with its first chunk, before they are computed.",
        [
            (CacheManager.allocate, "self.blocks_for(stop) - have", "self.blocks_for(max(stop, room_for)) - have"),
            (CacheManager.publish, "self._filled(start, stop)",
             "self._filled(start, min(request.prompt_len, len(request.block_table) * self.block_size))"),
        ],
        says=WRONG_KV,
    ),
    "34": Fault(
        "TensorRT-LLM#12665", "The budget counts on a hit, and then the prompt is computed from its first token.",
        [
            (plan_step, "Chunk(request.id, request.num_computed,",
             "Chunk(request.id, request.num_computed if request.num_computed > request.num_cached else 0,"),
            (StepBuilder._admit, "hit=hit", "hit=()"),
        ],
        says="tokens in a step of", knobs=NO_CAP,
    ),
}  # fmt: skip

STEPS = {
    "35": Fault(
        "nano-vllm f438ce4", "A prompt runs whole or not at all, so one over the budget never runs.",
        [(plan_step, "take = min(request.num_uncomputed, max_chunk or left, left)",
          "take = request.num_uncomputed\n"
          "                if take > left:\n"
          "                    return tuple(chunks)")],
        says="nothing is planned", knobs=NO_CAP,
    ),
    "36": Fault(
        "vllm#37307", "Admission asks for room for the first chunk only.",
        [(room_for, "return request.num_tokens", "return 0")],
        says="it will be preempted",
    ),
    "37": Fault(
        "vllm#28558", "A request that is preempted keeps its chunk in the step.",
        [
            (StepBuilder._preempt, "step.chunks.pop(victim.id, None)", "step.chunks.get(victim.id)"),
            (StepBuilder._allocate, "step.chunks = {", "step.chunks |= {"),
        ],
        says="list index out of range",
    ),
    "38": Fault(
        "sarathi-serve", "The budget shrinks below the decodes that are in it, and a prompt gets the negative rest.",
        [
            (plan_step, "for request in requests:", "left -= 4 * (len(chunks) > 2)\n        for request in requests:"),
            (plan_step, "left <= 0", "left == 0"),
            (Profile.plan_step_for, "else self.policy", "else partial(checked_plan, self.policy)"),  # as a learner's is
        ],
        says="at least one token", knobs=MANY_DECODES,
    ),
    "39": Fault(
        "sarathi-serve", "A decode wants a whole free block, even where its last one has a free slot.",
        [(CacheManager.allocate, "return True  # most decodes", "return not request.decoding or self.num_free > 0")],
        says="preempted with . blocks free",
    ),
    "40": Fault(
        "sglang S12, TensorRT-LLM T02", "A prompt is accepted although a chunk holds no whole block, and is cut to 0.",
        [(why_never, "most < cache.block_size and", "most < 1 and")],
        says="can never be served, and were accepted", profile="tensorrt-llm",
    ),
    "41": Fault(
        "sglang#34554", "One prompt takes all that is left of the budget, whatever max_chunk says.",
        [(plan_step, "max_chunk or left, left)", "left)")],
        says="a chunk over max_chunk",
    ),
}  # fmt: skip

IDENTITY = {
    "42": Fault(
        "vllm#12621", "Hashes are so short that two prompts may share one.",
        [(block_hash, ".digest()", ".digest()[:1]")],
        says=WRONG_KV,
    ),
    "43": Fault(
        "CVE-2025-46570", "The salt is left out of the hash.",
        [(CacheManager._hashes, "self.block_size, request.keys", "self.block_size")],
        says="hit a block of salt",
    ),
}  # fmt: skip

OUR_OWN = {
    "undo": Fault(
        "our own", "What a step published early is still found after the step has failed.",
        [(Scheduler.undo, "if self.publish_early:", "if False:")],
        says=WRONG_KV, profile="vllm-0.33.0",
    ),
    "advance": Fault(
        "nano-vllm#208", "Requests advance before the forward, so a step that fails counts as computed.",
        [(Scheduler.schedule, "return step",
          "for chunk in step.chunks.values():\n"
          "        self.requests[chunk.request_id].num_computed = chunk.stop\n"
          "    return step")],
        says="computed",
    ),
    "purity": Fault(
        "our own", "A request is admitted with the hit that it had before this step evicted blocks.",
        [(StepBuilder._admit, "version != self.cache.version", "False")],
        says=WRONG_KV,
    ),
}  # fmt: skip

FAULTS: dict[str, Fault] = HITS | READS | SAMPLING | BLOCKS | STEPS | IDENTITY | OUR_OWN

ELSEWHERE = {
    "5": "the fault of 1 in other engines (vLLM V0, llama.cpp): nothing is left that could give logits",
    "15": "a recurrent state took the one-step path for a chunk: this model has attention only, no such state",
    "18": "partial attention results of several prompts were merged wrongly: here each request attends in one call, "
    "and nothing is merged across requests (tests/test_bit_identity.py runs ragged batches)",
    "19": "uninitialised memory, or another kernel for small chunks: tests/test_bit_identity.py starts from a pool of "
    "NaN and compares every cut, bit for bit",
    "44": "an adapter called like a salt: the engine has no adapters; tests/test_prefix.py keeps the faulty key",
}
