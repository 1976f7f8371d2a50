"""Scheduler profiles: a policy, and the rules around it that differ between servers. Sources read on 2026-11-30."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.cache.radix_manager import RadixManager
from course_lib.schedule import policies
from course_lib.schedule.plan import plan_step
from course_lib.schedule.refusals import checked_plan, expect_prefix_cache


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One server's scheduling rules.

    policy            plan_step or one of policies.py
    chunks_prompts    False: the policy runs a prompt in one step, or not at all
    caps_chunks       False: max_chunk means nothing to the policy
    whole_blocks      the policy cuts at block boundaries and takes block_size as an argument
    decodes_all       a step without prompts decodes a token of every running request
    shown             how many waiting requests the policy sees: "front" (the first, and twice as many whenever all
                      shown are admitted), "admissible" (as many as may still run), or "all"
    publish           "commit": a block can be hit once its KV exists; "schedule": once it is planned, so that a
                      request with the same prefix, admitted later in the same step, hits it
    admission_needs   the tokens whose blocks must be free for a request to be admitted: "first chunk", "whole prompt",
                      or "whole request" (prompt and all it may generate, and what the running ones may still need)
    lone_request_ignores_max_chunk   True: a request that is the only one may exceed max_chunk
    uncached_first    order of freed blocks (BlockAllocator)
    radix             prefixes are kept in a radix tree instead of a hash table
    caches_prefixes   False: the server has no prefix cache
    """

    name: str
    about: str
    policy: Callable
    chunks_prompts: bool = True
    caps_chunks: bool = True
    whole_blocks: bool = False
    decodes_all: bool = True
    shown: str = "front"
    publish: str = "commit"
    admission_needs: str = "whole prompt"
    lone_request_ignores_max_chunk: bool = False
    uncached_first: bool = True
    radix: bool = False
    caches_prefixes: bool = True

    def plan_step_for(self, block_size: int) -> Callable:
        """The policy as a function with the arguments of plan_step."""
        return partial(self.policy, block_size=block_size) if self.whole_blocks else self.policy

    def without_chunking(self) -> "Profile":
        """These rules, but every prompt runs in one step."""
        return replace(
            self, policy=policies.plan_whole_prompt, chunks_prompts=False, caps_chunks=False, whole_blocks=False
        )

    def with_policy(self, plan_step: Callable) -> "Profile":
        """These rules with a policy from outside, of which nothing is known: each of its plans is checked.

        It may pick any waiting request. Asked again within a step, it may take back what it planned, so a block is
        published only when it is computed.
        """
        return replace(
            self, policy=partial(checked_plan, plan_step), chunks_prompts=True, caps_chunks=True, whole_blocks=False,
            decodes_all=False, shown="all", publish="commit",
        )  # fmt: skip

    def new_cache(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, prefix_cache=None):
        """An empty cache as this server keeps it.

        prefix_cache   your object with PrefixIndex's methods, in place of the hash table or the radix tree.
                       ValueError if a method is missing, or if there would be no use for it
        """
        if prefix_cache is not None:
            expect_prefix_cache(prefix_cache, self.name if not self.caches_prefixes else "", enable_prefix_caching)
        if not (enable_prefix_caching and self.caches_prefixes):
            return CacheManager(num_blocks, block_size, None, uncached_first=self.uncached_first)
        if self.radix and prefix_cache is None:
            return RadixManager(num_blocks, block_size)
        prefix = PrefixIndex() if prefix_cache is None else prefix_cache
        return CacheManager(num_blocks, block_size, prefix, uncached_first=self.uncached_first)


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="course",
            about="decodes first; max_chunk always holds; blocks are published at commit",
            policy=plan_step,
        ),
        Profile(
            name="vllm-0.33.0",
            about="vLLM 0.33.0: admission order; published when scheduled; a lone request ignores max_chunk",
            policy=policies.plan_in_order,
            publish="schedule",
            lone_request_ignores_max_chunk=True,
        ),
        Profile(
            name="vllm-0.11.0",
            about="vLLM 0.11.0 (0.8.5 is the same): admits when the first chunk fits; freed blocks go to the back",
            policy=policies.plan_in_order,
            publish="schedule",
            admission_needs="first chunk",
            uncached_first=False,
        ),
        Profile(
            name="whole-prompt",
            about="no chunking: a prompt runs in one step, beside the decodes (enable_chunked_prefill=False)",
            policy=policies.plan_whole_prompt,
            chunks_prompts=False,
            caps_chunks=False,
        ),
        Profile(
            name="sarathi",
            about="Sarathi-Serve 96f9911: stall-free batches; the budget is the chunk size, and never negative here",
            policy=policies.plan_sarathi,
            caps_chunks=False,
            caches_prefixes=False,
        ),
        Profile(
            name="sglang-prefill-first",
            about="SGLang 0.5.23 default: prompts alone, then decodes; cuts at block ends; radix tree",
            policy=policies.plan_prefill_first,
            whole_blocks=True,
            radix=True,
        ),
        Profile(
            name="sglang-mixed",
            about="SGLang 0.5.23 with --enable-mixed-chunk: decodes join the prompts",
            policy=partial(policies.plan_prefill_first, mixed=True),
            whole_blocks=True,
            radix=True,
        ),
        Profile(
            name="tensorrt-llm",
            about="TensorRT-LLM: chunks in whole blocks, first come first served; admits what can finish",
            policy=policies.plan_whole_blocks,
            whole_blocks=True,
            admission_needs="whole request",
        ),
        Profile(
            name="tensorrt-llm-equal-progress",
            about="TensorRT-LLM with EQUAL_PROGRESS: prompts grow a block each in turn",
            policy=partial(policies.plan_whole_blocks, equal_progress=True),
            shown="admissible",
            whole_blocks=True,
            admission_needs="whole request",
        ),
    )
}


def profile_named(name: str) -> Profile:
    """The profile called `name`; ValueError names those that exist."""
    if name not in PROFILES:
        raise ValueError(f"no profile {name!r}; there are {', '.join(PROFILES)}.")
    return PROFILES[name]
