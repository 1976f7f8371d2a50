"""Scenarios in the form of tests/data/cases.json: random ones, and how any of them is played on a server."""

from collections.abc import Iterator
from random import Random

GENERATED = 900_000  # the rule of the case files: the token generated at index p of a sequence has the id GENERATED + p


def token(index: int) -> int:
    return GENERATED + index


def play(server, case: dict, steps: int) -> Iterator[dict]:
    """What `server` did in each step, with its state behind it.

    A case may have, beside `requests`, `aborts` and `resets`: {step: ids} and [steps], done before that step.
    """
    last = max(request["arrival_step"] for request in case["requests"])
    for number in range(steps):
        if number > last and not server.unfinished:
            return
        for request in case["requests"]:
            if request["arrival_step"] == number:
                server.add(request, [base + i for base, count in request["prompt"] for i in range(count)])
        for name in case.get("aborts", {}).get(number, ()):
            server.abort(name)
        reset = server.reset_prefix_cache() if number in case.get("resets", ()) else None
        yield {**server.step(token), "reset": reset, "state": server.state()}


def random_case(seed: int) -> dict:
    """A small pool, few tokens, prompts that share beginnings, salts, aborts and resets; the same for a seed."""
    rng = Random(seed)
    size, budget = rng.choice((1, 2, 3, 4, 16)), rng.randint(1, 24)
    config = {
        "block_size": size, "usable_blocks": rng.randint(2, 20), "budget": budget,
        "cap": rng.choice((0, 0, 0, 1, 3, 7)), "max_num_seqs": rng.randint(1, 6), "caching": rng.random() < 0.8,
    }  # fmt: skip
    beginnings = [[1000 * (i + 1), rng.randint(1, 6 * size)] for i in range(rng.randint(1, 2))]
    requests = []
    for number in range(rng.randint(2, 9)):
        prompt = [[100_000 * (number + 1), rng.randint(1, 4 * size)]]
        if rng.random() < 0.7:
            shared, most = rng.choice(beginnings)
            beginning = [shared, most if rng.random() < 0.5 else rng.randint(1, most)]
            prompt = [beginning] if rng.random() < 0.3 else [beginning, *prompt]
        request = {
            "id": chr(ord("A") + number), "arrival_step": rng.choice((0, 0, 1, rng.randint(0, 12))), "prompt": prompt,
            "max_tokens": rng.choice((1, 2, rng.randint(1, 3 * size + 4))),
        }  # fmt: skip
        request |= {"salt": rng.choice("xy")} if rng.random() < 0.15 else {}
        request |= {"prompt_logprobs": True} if rng.random() < 0.1 else {}
        requests.append(request)
    aborts = {rng.randint(1, 9): [rng.choice(requests)["id"]]} if rng.random() < 0.25 else {}
    resets = [rng.randint(1, 14)] if rng.random() < 0.25 else []
    return {"config": config, "requests": requests, "aborts": aborts, "resets": resets}
