"""Faults that real engines had, each built into ours as one wrong line or two. Numbers: the museum of public faults.

FAULTS    number -> what went wrong, and a maker of the faulty engine
ELSEWHERE number -> where it is tested instead, or why this engine cannot have it
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from oracle import OracleModel

from course_lib.cache import manager as manager_module
from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex, block_hash, root_hash
from course_lib.cache.radix_manager import RadixManager
from course_lib.engine import Engine
from course_lib.sampling import sample
from course_lib.schedule.build_step import StepBuilder
from course_lib.schedule.plan import plan_step
from course_lib.schedule.policies import plan_whole_prompt
from course_lib.schedule.request import Chunk
from course_lib.schedule.scheduler import Scheduler


@dataclass(frozen=True)
class Fault:
    """where: the public record; what: the mistake in a sentence; says: what a workload says of it (a pattern);
    make: builds an engine that has it; profile, knobs: where it shows."""

    where: str
    what: str
    says: str
    make: Callable
    profile: str = "course"
    knobs: dict = field(default_factory=dict)


# --- makers: the right engine with one part replaced


def engine_with(cache=None, scheduler=None, builder=None, model=None, patch=None, engine=Engine, **fixed):
    """Engine, whose cache or scheduler becomes a faulty subclass before it has seen a request."""

    def make(oracle, **arguments):
        if model is not None:
            oracle.__class__ = model
        made = engine(oracle, **arguments, **fixed)
        if scheduler is not None:
            made.scheduler.__class__ = scheduler
        if builder is not None:
            made.scheduler.builder = builder
        if cache is not None:
            made.scheduler.cache.__class__ = cache
        if patch is not None:
            patch(made.scheduler)
        return made

    return make


# --- A. hit length, last token, slices


class FullHit(CacheManager):
    def match(self, request):
        if self.prefix is None or not request.read_cache:
            return []
        return self.prefix.match(self._hashes(request, request.num_tokens // self.block_size))


class LengthBeforeHit(Scheduler):
    def schedule(self):
        step = super().schedule()
        for request in step.admitted:
            if request.num_cached and request.id in step.chunks:
                take = min(request.num_tokens, self.max_chunk or self.max_num_batched_tokens)
                step.chunks[request.id] = Chunk(request.id, request.num_cached, request.num_cached + take)
        return step


class HitNeverRuns(Scheduler):
    def schedule(self):
        step = super().schedule()
        for request in step.admitted:
            if request.num_cached and step.chunks[request.id].stop < request.num_tokens:
                self.running.remove(request)
        return step


class UnalignedFullHit(StepBuilder):
    def _look_up(self, request):
        hit, size = super()._look_up(request), self.cache.block_size
        if hit and request.num_tokens % size == 0:
            full = self.cache.prefix.match(self.cache._hashes(request, request.num_tokens // size))
            if len(full) * size == request.num_tokens:
                request.num_computed = request.num_cached = request.num_tokens - 1
                return full
        return hit


class ReadsCacheForLogprobs(CacheManager):
    def match(self, request):
        wanted, request.read_cache = request.read_cache, True
        hit = super().match(request)
        request.read_cache = wanted
        return hit


class ChunkThenMatch(StepBuilder):
    def _look_up(self, request):
        first = self.scheduler.max_chunk or self.scheduler.max_num_batched_tokens
        hit = super()._look_up(request)[: first // self.cache.block_size]
        request.num_computed = request.num_cached = len(hit) * self.cache.block_size
        return hit


class HashFromChunk(CacheManager):
    def publish(self, request, start, stop):
        if self.prefix is not None:
            parent = root_hash(request.keys)
            for block in self._filled(start, stop):
                first = block * self.block_size
                parent = block_hash(parent, request.token_ids[first : first + self.block_size])
                self.prefix.publish(parent, request.block_table[block])


class CoarserHit(CacheManager):
    def match(self, request):
        hit = super().match(request)
        return hit[: len(hit) // 2 * 2]


class NewBlockWhenOneOver(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        if request.block_table and stop - request.num_computed == 1 and stop % self.block_size != 1:
            return True  # "the table needs a block when len % block_size == 1": never true for blocks of 1
        return super().allocate(request, stop, hit=hit, room_for=room_for)


# --- B. positions, masks, reads


def _decode_one_too_far(cached, computed, take):
    return cached + computed + np.arange(take) + (take == 1 and cached + computed > 0)


def _causal(take, cached):
    return np.arange(cached + take)[None, :] <= cached + np.arange(take)[:, None]


def _mask_leaks(take, cached):
    return np.arange(cached + take)[None, :] <= cached + np.arange(take)[:, None] + (cached >= 4)


def _mask_of_aligned_prefix(take, cached):
    key = np.arange(cached + take)[None, :]
    return _causal(take, cached) & ((key < cached // 4 * 4) | (key >= cached))


class ReadsWholeTable(OracleModel):
    def read_to(self, chunk, pool):
        return len(chunk.block_table) * pool.block_size


# --- C. sampling of middle chunks


class SamplesIdleRows(Engine):
    def _compute(self, planned):
        sampled = super()._compute(planned)
        for request in self.scheduler.running:
            if request.id not in planned.chunks and planned.chunks:
                sampled[request.id] = 0  # from the last row of the logits, whosever it is
        return sampled


class StatefulSampler(Engine):
    def _compute(self, planned):
        sampled = super()._compute(planned)
        calls = self.__dict__.setdefault("calls", {})
        for i in planned.chunks:
            calls[i] = calls.get(i, -1) + 1  # moved by middle chunks and by what is recomputed, too
            request = self.scheduler.requests[i]
            if i in sampled:
                sampled[i] = sample(
                    self.logits[i], temperature=request.temperature, seed=request.seed,
                    index=request.prompt_len + calls[i],
                )  # fmt: skip
        return sampled


# --- D. blocks, counts, eviction


class RevivedBlockLosesHash(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        revived = any(self.allocator.is_free(block) for block in hit)
        done = super().allocate(request, stop, hit=hit, room_for=room_for)
        if done and revived:  # the block after the hit is hashed as if it had no parent
            fresh: list[bytes] = []
            manager_module.extend_hashes(
                fresh, request.token_ids[len(hit) * self.block_size :], self.block_size, request.keys
            )
            request.block_hashes[len(hit) :] = fresh
        return done


class StaleTailHash(CacheManager):
    def _hashes(self, request, count):
        hashes = list(super()._hashes(request, count))
        full = len(request.token_ids) // self.block_size
        tail = request.token_ids[full * self.block_size :]
        if tail and request.num_preemptions and len(request.block_hashes) == full:
            parent = request.block_hashes[-1] if full else root_hash(request.keys)
            request.block_hashes.append(block_hash(parent, tail))  # and stays, when the block is full
        return hashes


class HitCountedAsFree(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        have = len(request.block_table) + len(hit)
        if max(self.blocks_for(stop), self.blocks_for(room_for)) - have > self.allocator.num_free:
            return False
        self.allocator.touch(hit)
        request.block_table += [*hit, *self.allocator.allocate(max(self.blocks_for(stop) - have, 0))]
        return True


class GateForgetsRevived(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        have = len(request.block_table) + len(hit)
        if self.blocks_for(room_for) - have > self.allocator.num_free:
            return False
        return super().allocate(request, stop, hit=hit)


class Remembers(PrefixIndex):
    """Never forgets, and lets a block be published again."""

    def forget(self, block):
        pass

    def publish(self, value, block):
        self._hashes[block] = value
        self._blocks.setdefault(value, []).append(block)

    def check(self):
        pass


def _remember(scheduler):
    if scheduler.cache.prefix is not None:
        scheduler.cache.prefix.__class__ = Remembers


class ReleasesTwice(CacheManager):
    def release(self, request):
        table = request.block_table
        super().release(request)
        for block in reversed(table):
            if self.allocator.refs[block] == 0:
                self.allocator._free[block] = None  # to the back, and once more
            else:
                self.allocator.refs[block] -= 1


class FreesUnwrittenSlot(CacheManager):
    def release(self, request):
        if request.finish_reason:
            last = (request.num_tokens - 1) // self.block_size  # of the token that was sampled last and has no KV
            request.block_table += request.block_table[last : last + 1]
        super().release(request)


class MatchTakes(CacheManager):
    def match(self, request):
        hit = super().match(request)
        self.allocator.touch(hit)
        return hit


class TreeBlocksFreed(RadixManager):
    def release(self, request):
        if not request.finish_reason or request.finish_reason == "aborted":
            self._free.extend(request.block_table[: self._locked[request.id][1]])
        super().release(request)


class NoInsertNoAdvance(Scheduler):
    def commit(self, step, sampled, duration_us=None):
        before = {i: self.requests[i].num_computed for i in step.chunks}
        requests = {i: self.requests[i] for i in step.chunks}
        record = super().commit(step, sampled, duration_us)
        for i, request in requests.items():
            if not request.read_cache and i not in sampled and request.block_table:
                request.num_computed = before[i]
        return record


class PublishesAhead(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        return super().allocate(request, max(stop, room_for), hit=hit, room_for=room_for)

    def publish(self, request, start, stop):
        super().publish(request, start, min(request.prompt_len, len(request.block_table) * self.block_size))


class CreditsReuse(Scheduler):
    def schedule(self):
        step = super().schedule()
        for request in step.admitted:
            if request.num_cached and request.id in step.chunks:  # the allocator does not deliver it after all
                stop = step.chunks[request.id].stop
                self.cache.release(request)
                self.cache.allocate(request, stop)
                request.num_computed = request.num_cached = 0
                step.chunks[request.id] = Chunk(request.id, 0, stop)
        return step


# --- E. scheduling


class VictimStaysPlanned(StepBuilder):
    late: tuple = ()

    def _preempt(self):
        chunk = self.step.chunks.get(self.scheduler.running[-1].id)
        super()._preempt()
        self.late = (chunk,) if chunk is not None else ()

    def build(self):
        super().build()
        for chunk in self.late:
            self.step.chunks[chunk.request_id] = chunk


def _negative_chunk(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    chunks = [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests if r.decoding]
    size = max_num_batched_tokens if len(chunks) < 3 else 2  # the dynamic schedule shrinks
    for request in requests:
        left = size - sum(chunk.num_tokens for chunk in chunks)
        if not request.decoding and left != 0 and len(chunks) < max_num_seqs:
            take = min(request.num_uncomputed, left)
            chunks.append(Chunk(request.id, request.num_computed, request.num_computed + take))
    return tuple(chunks)


def _no_cap(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    return plan_step(requests, max_num_batched_tokens=max_num_batched_tokens, max_chunk=0, max_num_seqs=max_num_seqs)


class WholeBlockPerDecode(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        if request.block_table and request.decoding and self.num_free == 0:
            return False
        return super().allocate(request, stop, hit=hit, room_for=room_for)


def _gate_on_first_chunk(scheduler):
    scheduler.profile = replace(scheduler.profile, room="first chunk")


def _no_chunking(scheduler):
    scheduler.plan_step = plan_whole_prompt


def _accept_stuck(scheduler):
    scheduler.refuse_stuck = False


# --- F. identity


class ShortHash(CacheManager):
    def _hashes(self, request, count):
        del request.block_hashes[:]
        parent = root_hash(request.keys)
        for block in range(count):
            first = block * self.block_size
            parent = block_hash(parent, request.token_ids[first : first + self.block_size])[:1]
            parent = bytes([parent[0] % 16])  # a chain of 4 bits
            request.block_hashes.append(parent)
        return request.block_hashes


class NoSalt(CacheManager):
    def _hashes(self, request, count):
        if not request.block_hashes:
            manager_module.extend_hashes(request.block_hashes, request.token_ids, self.block_size)
        return super()._hashes(request, count)


# --- our own: what a failing step leaves, and a look-up that does not see this step's evictions


class UndoKeepsPublished(Scheduler):
    def undo(self, step):
        self.publish_early = False
        super().undo(step)
        self.publish_early = True


class AdvancesBeforeForward(Scheduler):
    def schedule(self):
        step = super().schedule()
        for i, chunk in step.chunks.items():
            self.requests[i].num_computed = chunk.stop
        return step


class LooksUpAtTheStart(StepBuilder):
    def build(self):
        self.found = {r.id: self.cache.match(r) for r in self.scheduler.waiting}
        super().build()

    def _look_up(self, request):
        super()._look_up(request)
        hit = self.found.get(request.id, [])
        request.num_computed = request.num_cached = len(hit) * self.cache.block_size
        return hit


WRONG_KV = "holds another prefix|alone it gets|holds None"  # another token's KV was used, or nobody's
BOOKS = "blocks are counted|free .* held|lost|released 2 times|did not add up"
NO_CAP = {"max_chunk": 0}
CROWDED = {"num_blocks": 7, "block_size": 2, "budget": 8, "max_num_seqs": 3, "caching": True}
MANY_DECODES = {"max_chunk": 0, "budget": 6, "max_num_seqs": 6, "num_blocks": 12}

FAULTS: dict[str, Fault] = {
    "1": Fault("nano-vllm#114", "a full hit leaves nothing to compute", "nothing is planned|leaves",
               engine_with(cache=FullHit)),
    "2": Fault("nano-vllm 77dd709", "tokens counted before the hit", "list index|sampled|computed",
               engine_with(scheduler=LengthBeforeHit)),
    "3": Fault("nano-vllm 812eb1c", "a chunk with a hit never joins running", "run, not",
               engine_with(scheduler=HitNeverRuns)),
    "4": Fault("vllm#11186", "a full hit recomputes one token, unaligned", "not in whole blocks",
               engine_with(builder=UnalignedFullHit)),
    "6": Fault("vllm#3251", "cached prefix read although all logits count", "reads no cache, and hit",
               engine_with(cache=ReadsCacheForLogprobs)),
    "7": Fault("dynamo#13188", "chunk first, match second", "hit . tokens, and .* are cached",
               engine_with(builder=ChunkThenMatch)),
    "8": Fault("xllm#97", "hash chain restarts at each chunk", WRONG_KV, engine_with(cache=HashFromChunk)),
    "9": Fault("vllm-ascend#16270", "hits rounded down to more than a block", "hit . tokens, and .* are cached",
               engine_with(cache=CoarserHit)),
    "10": Fault("nano-vllm bb823b3", "a new block when len % size == 1", "list index out of range",
                engine_with(cache=NewBlockWhenOneOver)),
    "11": Fault("transformers#43082", "positions restart in every chunk", WRONG_KV,
                engine_with(positions=lambda cached, computed, take: np.arange(take))),
    "12": Fault("nano-vllm f5b4840", "a decode's position is one too high", WRONG_KV,
                engine_with(positions=_decode_one_too_far)),
    "13": Fault("nano-vllm#212", "attention reads slots behind the chunk", "which nobody has written",
                engine_with(model=ReadsWholeTable)),
    "14": Fault("candle#3743", "a mask that does not know the cached keys", WRONG_KV,
                engine_with(mask=lambda n, c: np.arange(c + n)[None, :] <= np.arange(n)[:, None])),
    "16": Fault("tt-metal#48899", "the mask leaks one key once enough are cached", WRONG_KV,
                engine_with(mask=_mask_leaks)),
    "17": Fault("tt-metal#54435", "a prefix is read in whole kernel tiles", WRONG_KV,
                engine_with(mask=_mask_of_aligned_prefix)),
    "20": Fault("transformers#47597", "positions do not count what was attached", WRONG_KV,
                engine_with(positions=lambda cached, computed, take: computed + np.arange(take))),
    "21": Fault("tt-xla#5830", "a request without a chunk is sampled", "tokens were sampled for requests",
                engine_with(engine=SamplesIdleRows), profile="sglang-prefill-first"),
    "22": Fault("vllm#29045", "middle chunks move the sampler's state", "alone it gets",
                engine_with(engine=StatefulSampler)),
    "23": Fault("nano-vllm 9fa256a", "a revived block loses its hash", WRONG_KV,
                engine_with(cache=RevivedBlockLosesHash)),
    "24": Fault("nano-vllm 77dd709", "an unfinished block keeps a hash", "tokens, and .* are cached",
                engine_with(cache=StaleTailHash), knobs=CROWDED),
    "25": Fault("vllm#11565", "hit blocks counted as free", "NoneType|did not add up",
                engine_with(cache=HitCountedAsFree)),
    "26": Fault("vllm#4761", "an evicted block stays findable", WRONG_KV, engine_with(patch=_remember)),
    "27": Fault("vllm#6849", "the gate forgets revived blocks", "it will be preempted",
                engine_with(cache=GateForgetsRevived)),
    "28": Fault("vllm-ascend#15990", "a table is freed twice", BOOKS, engine_with(cache=ReleasesTwice)),
    "29": Fault("sglang-jax#982", "the last token's slot is freed as well", BOOKS,
                engine_with(cache=FreesUnwrittenSlot)),
    "30": Fault("sglang#16067", "match takes blocks, and nobody is admitted", BOOKS, engine_with(cache=MatchTakes)),
    "31": Fault("sglang#38319", "freed on abort while the tree still points there", BOOKS,
                engine_with(cache=TreeBlocksFreed), profile="sglang-prefill-first"),
    "32": Fault("sglang#36855", "no insert, no progress", "0 computed|with . computed",
                engine_with(scheduler=NoInsertNoAdvance)),
    "33": Fault("TensorRT-LLM#12673", "blocks published before they are computed", WRONG_KV,
                engine_with(cache=PublishesAhead)),
    "34": Fault("TensorRT-LLM#12665", "reuse credited and not delivered", "tokens in a step of",
                engine_with(scheduler=CreditsReuse), knobs=NO_CAP),
    "35": Fault("nano-vllm f438ce4", "a prompt over the budget never runs", "nothing is planned",
                engine_with(patch=_no_chunking), knobs=NO_CAP),
    "36": Fault("vllm#37307", "admission looks at the first chunk only", "it will be preempted",
                engine_with(patch=_gate_on_first_chunk)),
    "37": Fault("vllm#28558", "a victim keeps its place in the step", "list index out of range",
                engine_with(builder=VictimStaysPlanned)),
    "38": Fault("sarathi-serve", "a chunk of negative length", "at least one token",
                engine_with(plan_step=_negative_chunk), knobs=MANY_DECODES),
    "39": Fault("sarathi-serve", "a whole free block per decode", "preempted with . blocks free",
                engine_with(cache=WholeBlockPerDecode)),
    "40": Fault("sglang S12, TensorRT-LLM T02", "block > chunk is accepted", "can never be served, and were accepted",
                engine_with(patch=_accept_stuck), profile="tensorrt-llm"),
    "41": Fault("sglang#34554", "one prompt takes the whole budget, cap or not", "a chunk over max_chunk",
                engine_with(plan_step=_no_cap)),
    "42": Fault("vllm#12621", "hashes short enough to collide", WRONG_KV, engine_with(cache=ShortHash)),
    "43": Fault("CVE-2025-46570", "no salt in the hash", "hit a block of salt", engine_with(cache=NoSalt)),
    "undo": Fault("claims with care", "a failed step's blocks stay published", WRONG_KV,
                  engine_with(scheduler=UndoKeepsPublished), profile="vllm-0.33.0"),
    "advance": Fault("nano-vllm#208", "computed before the forward", "computed",
                     engine_with(scheduler=AdvancesBeforeForward)),
    "purity": Fault("recorded cases", "looked up before evictions", WRONG_KV,
                    engine_with(builder=LooksUpAtTheStart)),
}  # fmt: skip

ELSEWHERE = {
    "5": "the fault of 1 in other engines (vLLM V0, llama.cpp): nothing is left that could give logits",
    "15": "a recurrent state took the one-step path for a chunk: this model has attention only, no such state",
    "18": "partial attention results of several prompts were merged wrongly: here each request attends in one call, "
    "and nothing is merged across requests (tests/test_bit_identity.py runs ragged batches)",
    "19": "uninitialised memory, or another kernel for small chunks: tests/test_bit_identity.py starts from a pool of "
    "NaN and compares every cut, bit for bit",
    "44": "an adapter called like a salt: the engine has no adapters; tests/test_prefix.py keeps the faulty key",
}
