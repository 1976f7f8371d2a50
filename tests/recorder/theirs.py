"""vLLM's own scheduler, cache manager and block pool, on a CPU and with no model: what it decides is vLLM's alone."""

import inspect
from types import SimpleNamespace

import torch
from vllm.config import SchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

try:
    from vllm.utils.hashing import sha256
except ImportError:  # 0.11
    from vllm.utils import sha256

MOST_TOKENS = 1 << 20  # of a request
NOT_GIVEN: set[str] = set()  # settings that vLLM asked for and nobody here gave; printed with every result


class Settings:
    """Attributes by name. One that was not given is None, as in vLLM's own optional settings, and is noted."""

    def __init__(self, name: str, **given):
        self.__dict__.update(given, _name=name)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        NOT_GIVEN.add(f"{self._name}.{name}")
        return None


def call(function, **possible):
    """Call with those of the arguments that it takes: their names differ between versions."""
    takes = inspect.signature(function).parameters
    return function(**{name: value for name, value in possible.items() if name in takes})


class Theirs:
    """A server with the knobs of a case's `config`."""

    def __init__(self, config: dict):
        self.block_size = config["block_size"]
        spec = call(
            FullAttentionSpec, block_size=self.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32,
            use_mla=False,
        )  # fmt: skip
        blocks = config["usable_blocks"] + 1  # with the null block
        group = KVCacheGroupSpec(["layer"], spec)
        init_none_hash(sha256)
        self.scheduler = call(
            Scheduler, vllm_config=_settings(config, blocks),
            kv_cache_config=call(KVCacheConfig, num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
            structured_output_manager=_NoGrammar(), block_size=self.block_size, log_stats=True,
        )  # fmt: skip

    def add(self, given: dict, token_ids: list[int]) -> None:
        sampling = SamplingParams(
            max_tokens=given["max_tokens"], ignore_eos=True, prompt_logprobs=1 if given.get("prompt_logprobs") else None
        )
        request = call(
            Request, request_id=given["id"], prompt_token_ids=token_ids, sampling_params=sampling, pooling_params=None,
            eos_token_id=None, arrival_time=float(given["arrival_step"]), cache_salt=given.get("salt") or None,
            block_hasher=get_request_block_hasher(self.block_size, sha256),
        )  # fmt: skip
        self.scheduler.add_request(request)

    def step(self, token) -> dict:
        """One step; token(index) is what the model would generate as the token at `index` of its sequence."""
        s = self.scheduler
        before = {request.request_id for request in s.running}
        out = s.schedule()
        slices, sampled = [], {}
        for name, count in out.num_scheduled_tokens.items():
            request = s.requests[name]
            stop = request.num_computed_tokens  # which schedule() has advanced already
            slices.append([name, stop - count, stop])
            sampled[name] = [token(request.num_tokens)] if stop >= request.num_tokens else []
        preempted = [name for name in before if s.requests[name].status == RequestStatus.PREEMPTED]
        if slices:
            names = list(sampled)
            made = call(
                ModelRunnerOutput, req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=list(sampled.values()), spec_token_ids=None, logprobs=None, prompt_logprobs_dict={},
                pooler_output=[],
            )  # fmt: skip
            s.update_from_output(out, made)
        return {
            "slices": slices,
            "sampled": [name for name, tokens in sampled.items() if tokens],
            "preempted": sorted(preempted),
        }

    def abort(self, name: str) -> None:
        if name in self.scheduler.requests:
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(self) -> bool:
        return self.scheduler.reset_prefix_cache()

    @property
    def unfinished(self) -> bool:
        return bool(self.scheduler.requests)

    def state(self) -> dict:
        """As `expected.end` of a case."""
        manager = self.scheduler.kv_cache_manager
        pool = manager.block_pool
        held = {name: list(manager.get_block_ids(name)[0]) for name in self.scheduler.requests}
        return {
            "free_order": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            "cached": sorted(block.block_id for block in pool.blocks if block.block_hash is not None),
            "refs": {str(b.block_id): b.ref_cnt for b in pool.blocks if b.ref_cnt > 0 and not b.is_null},
            "tables": {name: table for name, table in sorted(held.items()) if table},
        }


class _NoGrammar:
    """In place of the manager of structured output: no request here has a grammar, so every token is accepted."""

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: True if name == "accept_tokens" else None


def _settings(config: dict, blocks: int) -> Settings:
    """What vLLM's VllmConfig would say for a dense decoder on one GPU."""
    budget = config["budget"]
    scheduler = call(
        SchedulerConfig, max_num_batched_tokens=budget, max_num_seqs=min(config["max_num_seqs"], budget),
        long_prefill_token_threshold=config["cap"], max_model_len=MOST_TOKENS, enable_chunked_prefill=True,
        policy="fcfs", is_encoder_decoder=False, async_scheduling=False,
    )  # fmt: skip
    cache = Settings(
        "cache_config", num_gpu_blocks=blocks, block_size=config["block_size"], mamba_cache_mode="none",
        enable_prefix_caching=config["caching"], prefix_caching_hash_algo="sha256", sliding_window=None,
    )  # fmt: skip
    model = Settings(
        "model_config", max_model_len=MOST_TOKENS, runner_type="generate", uses_mrope=False, is_encoder_decoder=False,
        is_multimodal_model=False, is_diffusion=False, is_hybrid=False, supports_multimodal_inputs=False,
    )  # fmt: skip
    parallel = Settings(
        "parallel_config", data_parallel_size=1, data_parallel_rank=0, data_parallel_index=0, pipeline_parallel_size=1,
        decode_context_parallel_size=1, prefill_context_parallel_size=1,
    )  # fmt: skip
    return Settings(
        "vllm_config", scheduler_config=scheduler, cache_config=cache, model_config=model, parallel_config=parallel,
        observability_config=Settings("observability_config", kv_cache_metrics_sample=0.0),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False), lora_config=None, speculative_config=None,
        kv_transfer_config=None, kv_events_config=None, ec_transfer_config=None, num_speculative_tokens=0,
        num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_hash_lookahead_tokens=0, max_concurrent_batches=1,
        max_in_flight_tokens=budget, is_mm_encoder_only=False, use_v2_model_runner=False,
    )  # fmt: skip
