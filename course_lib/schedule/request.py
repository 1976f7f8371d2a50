"""A request and a chunk of it: plain integers, so that planner, simulator and step record can all carry them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, stop) of one request, computed in one step. A decode is a chunk of one."""

    request_id: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(eq=False)
class Request:
    """One prompt and what becomes of it. Only the scheduler changes it.

    token_ids      the prompt, then what was generated; prompt_len tells them apart
    max_tokens     tokens to generate at most
    arrival        when it came, in whatever unit the caller counts; the queue's order decides, not this number
    num_computed   tokens [0, num_computed) whose K and V are in the cache. Advances when a step commits
    num_cached     of those, how many were found in the prefix cache at the last admission
    block_table    blocks of the tokens, in token order
    block_hashes   chained hashes of its full blocks, kept so that none is computed twice (cache.prefix)
    salt           requests see each other's cached prefixes only if their salts are equal
    temperature, seed   how its tokens are drawn (sampling.py)
    read_cache     False: attach nothing, because the logits of every position are wanted (prompt_logprobs)
    """

    id: int
    token_ids: list[int]
    max_tokens: int = 16
    arrival: int = 0
    salt: str = ""
    read_cache: bool = True
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    seed: int = 0
    prompt_len: int = -1  # len(token_ids) unless given
    num_computed: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    finish_reason: str = ""  # "", or one of: length, stop, aborted
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.prompt_len < 0:
            self.prompt_len = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to compute: the rest of the prompt, one for a decode, prompt and answer after a preemption."""
        return len(self.token_ids) - self.num_computed

    @property
    def decoding(self) -> bool:
        """Only its newest token is left to compute, and it has generated that token itself since its admission.

        A request that was preempted is not decoding, even if all but one of its tokens are found cached.
        """
        newest = len(self.token_ids) - 1
        return self.num_computed == newest >= self.prompt_len and self.num_computed > self.num_cached

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What besides tokens decides whether a cached block fits: (kind, value) pairs."""
        return (("salt", self.salt),) if self.salt else ()

    def why_done(self) -> str:
        """Why it is finished: "length", "stop", or "" while it is not."""
        if self.token_ids[-1] in self.stop_token_ids and self.num_tokens > self.prompt_len:
            return "stop"
        return "length" if self.num_tokens - self.prompt_len >= self.max_tokens else ""
