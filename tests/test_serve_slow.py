"""10,000 requests, and every fifth client hangs up at some moment: no block or memory is lost, no token is wrong."""

import asyncio
import json
import random
import socket
import struct
from pathlib import Path

import pytest
from serving import alone, httpx, serve_process, tokens

REQUESTS, WARM_UP, MOST = 10_000, 1_500, 6
# Clients at once. The warm-up has more, so that whatever the allocator keeps for a peak is there before it is measured.
AT_ONCE, AT_ONCE_IN_WARM_UP = 32, 160
PROMPTS = [tokens(1 + n % 37, seed=n) for n in range(60)]


class Client:
    """Asks again and again, and counts."""

    def __init__(self, port: int, numbers):
        self.port, self.numbers = port, numbers
        self.answers = [alone(prompt, MOST) for prompt in PROMPTS]
        self.whole = self.gone = 0

    async def work(self) -> None:
        for number in self.numbers:
            await self.ask(random.Random(number))

    async def ask(self, choose: random.Random) -> None:
        prompt, max_tokens = choose.randrange(len(PROMPTS)), choose.randint(1, MOST)
        stream, leaves = choose.random() < 0.7, choose.random() < 0.2
        fields = {
            "prompt": PROMPTS[prompt], "max_tokens": max_tokens, "temperature": 0, "stream": stream,
            "return_token_ids": True,
        }  # fmt: skip
        body = json.dumps(fields).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        sent = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if leaves:
                self.gone += 1
                await self.leave(choose, reader, writer, sent)
                return
            writer.write(sent)
            ids = token_ids(await reader.read(), stream)
            assert ids == self.answers[prompt][:max_tokens]
            self.whole += 1
        finally:
            writer.close()

    async def leave(self, choose: random.Random, reader, writer, sent: bytes) -> None:
        """At some moment: before the request is out, while it waits or runs, or in the middle of the answer."""
        moment = choose.randrange(3)
        writer.write(sent[: choose.randrange(len(sent))] if moment == 0 else sent)
        await writer.drain()
        if moment == 1:
            await asyncio.sleep(choose.random() * 0.2)
        elif moment == 2:
            await reader.read(choose.randint(1, 1500))
        if choose.random() < 0.5:  # by a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def token_ids(answer: bytes, stream: bool) -> list[int]:
    if not stream:
        return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["token_ids"]
    lines = [line for line in answer.splitlines() if line.startswith(b"data: {")]
    assert b"data: [DONE]" in answer
    return [token for line in lines for token in json.loads(line[6:])["choices"][0]["token_ids"]]


def resident(pid: int) -> int:
    """Memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def crowd(client: Client, at_once: int) -> None:
    await asyncio.gather(*(client.work() for _ in range(at_once)))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_ten_thousand_requests_leave_blocks_and_memory_as_they_were():
    argv = ("--num-blocks", "24", "--max-num-seqs", "12", "--max-num-batched-tokens", "64", "--max-requests", "200")
    process, address = serve_process(*argv)
    try:
        port = int(address.rpartition(":")[2])
        client = Client(port, iter(range(WARM_UP)))
        asyncio.run(crowd(client, AT_ONCE_IN_WARM_UP))
        before = resident(process.pid)
        client.numbers = iter(range(WARM_UP, REQUESTS))
        asyncio.run(crowd(client, AT_ONCE))
        growth = resident(process.pid) / before - 1
        with httpx.Client(base_url=address, trust_env=False) as http:
            while (report := http.get("/health").json())["running"] or report["waiting"]:
                pass
        assert client.whole + client.gone == REQUESTS and client.gone > REQUESTS / 6
        assert report["free_blocks"] == report["num_blocks"] == 24
        print(f"{client.gone} of {REQUESTS} clients left, {before / 2**20:.1f} MiB, growth {growth:+.2%}")
        assert growth < 0.01
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
