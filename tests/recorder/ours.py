"""Our scheduler and cache with the methods of theirs.Theirs, so that one scenario can be played on both."""

from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler


class Ours:
    """A server with the knobs of a case's `config`, under one of our profiles."""

    def __init__(self, config: dict, profile: str):
        rules = profile_named(profile)
        cache = rules.new_cache(config["usable_blocks"], config["block_size"], enable_prefix_caching=config["caching"])
        self.scheduler = Scheduler(
            cache, rules, max_num_batched_tokens=config["budget"], max_chunk=config["cap"],
            max_num_seqs=min(config["max_num_seqs"], config["budget"]), refuse_stuck=False,
        )  # fmt: skip
        self._names: list[str] = []  # by our id

    def add(self, given: dict, token_ids: list[int]) -> None:
        self.scheduler.add(
            Request(
                len(self._names), token_ids, max_tokens=given["max_tokens"], salt=given.get("salt", ""),
                read_cache=not given.get("prompt_logprobs"),
            )
        )  # fmt: skip
        self._names.append(given["id"])

    def step(self, token) -> dict:
        s = self.scheduler
        step = s.schedule()
        record = s.commit(step, {i: token(step.chunks[i].stop) for i in s.ends(step)})
        s.check()
        return {
            "slices": [[self._names[i], start, stop] for i, start, stop in record.chunks],
            "sampled": [self._names[i] for i, _ in record.sampled],
            "preempted": sorted(self._names[i] for i in record.preempted),
        }

    def abort(self, name: str) -> None:
        if name in self._names and (id := self._names.index(name)) in self.scheduler.requests:
            self.scheduler.abort(id)

    def reset_prefix_cache(self) -> bool:
        return self.scheduler.reset_prefix_cache()

    @property
    def unfinished(self) -> bool:
        return bool(self.scheduler.requests)

    def state(self) -> dict:
        cache = self.scheduler.cache
        blocks = range(1, cache.num_blocks + 1)
        tables = {self._names[r.id]: list(r.block_table) for r in self.scheduler.running}
        return {
            "free_order": cache.allocator.free_order,
            "cached": [block for block in blocks if cache.prefix is not None and block in cache.prefix],
            "refs": {str(block): cache.allocator.refs[block] for block in blocks if cache.allocator.refs[block]},
            "tables": dict(sorted(tables.items())),
        }
