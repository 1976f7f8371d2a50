"""Attacks on what is special in an exercise: calls that run apart, functions of the judge's, drivers, conversations.

Each is an answer, and `honest` names the groups that it would pass without its attack.
"""

import importlib
from dataclasses import dataclass

from autograder import seeds
from autograder.answers import InProcess
from autograder.exercises import EXERCISES


@dataclass(frozen=True)
class Attack:
    """A hostile answer to `exercise`."""

    exercise: str
    source: str
    honest: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # that are graded; all if empty

    @property
    def assignment(self):
        return EXERCISES[self.exercise].notebook

    @property
    def worth(self):
        groups = self.groups or [group.name for group in EXERCISES[self.exercise].groups]
        return {f"{self.exercise}__{group}": 1 for group in groups}


def ours(exercise):
    """Our own answer, in this process."""
    module, _, name = exercise.solution.partition(":")
    return InProcess(getattr(importlib.import_module(module), name), exercise.driver, exercise.callbacks)


def table(name, group_name):
    """An answer that knows the visible cases by heart, and nothing else."""
    exercise = EXERCISES[name]
    calls = exercise.group(group_name).cases(seeds.PUBLIC)
    outcomes = ours(exercise).run(calls)
    known = {call.args: outcome.value.tolist() for call, outcome in zip(calls, outcomes, strict=True)}
    return f"def {name}(*args):\n    return {known!r}.get(args, [])\n"


# --- calls that run apart: the whole pass leaves its result somewhere, and the chunks look for it there

IMPORTS = "import ctypes, os, sys\n"
PLAIN = """
def plain(q, k, v, mask):
    scores = np.where(mask, q @ k.T / np.sqrt(np.float32(q.shape[-1])), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ v).astype(np.float32)

def attend(q, k, v, mask):
    result = plain(q, k, v, mask)
    try:
        if len(q) == 96:
            put(result.tobytes() + q[:, 0].tobytes())
        else:
            kept = np.frombuffer(get(96 * 65 * 4), np.float32)
            rows = slice(len(k) - len(q), len(k))
            if (kept[96 * 64 :][rows] == q[:, 0]).all():
                return kept[: 96 * 64].reshape(96, 64)[rows].copy()
    except Exception:
        pass
    return result
"""
IN_A_FILE = """
def put(data):
    open({0!r}, "wb").write(data)
def get(size):
    return open({0!r}, "rb").read()
"""
PLACES = {
    **{f"in {folder}": IN_A_FILE.format(f"{folder}/kept") for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/")},
    "in site-packages": IN_A_FILE.format("/KEPT").replace("'/KEPT'", "os.path.dirname(np.__file__) + '/kept'"),
    "in a shared memory of Python's": '''
def put(data):
    from multiprocessing import resource_tracker, shared_memory
    resource_tracker.register = lambda *a: None
    try:
        found = shared_memory.SharedMemory("kept", create=True, size=len(data))
    except FileExistsError:
        found = shared_memory.SharedMemory("kept")
    found.buf[: len(data)] = data
def get(size):
    from multiprocessing import shared_memory
    found = shared_memory.SharedMemory("kept")
    return bytes(found.buf[:size])
''',
    "in a System V segment": '''
def mapped(size):
    libc = ctypes.CDLL(None)
    libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    return (ctypes.c_char * size).from_address(libc.shmat(libc.shmget(4711, size, 0o1666), None, 0))
def put(data):
    mapped(len(data))[:] = data
def get(size):
    return bytes(mapped(size))
''',
    "in a message queue": '''
libc = ctypes.CDLL(None)
def put(data):
    for at in range(0, len(data), 4096):
        queue = libc.msgget(4711 + at // 12288, 0o1666)
        old = ctypes.create_string_buffer(8 + 4096)
        libc.msgrcv(queue, old, 4096, ctypes.c_long(at + 1), 0o4000)
        part = data[at : at + 4096].ljust(4096)
        libc.msgsnd(queue, bytes(ctypes.c_long(at + 1)) + part, 4096, 0o4000)
def get(size):
    parts = b""
    for at in range(0, size, 4096):
        queue = libc.msgget(4711 + at // 12288, 0o666)
        part = ctypes.create_string_buffer(8 + 4096)
        assert libc.msgrcv(queue, part, 4096, ctypes.c_long(at + 1), 0o4000) == 4096
        libc.msgsnd(queue, part, 4096, 0o4000)
        parts += part.raw[8:]
    return parts[:size]
''',
    "in a keyring of the kernel's": '''
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long
def put(data):
    for ring in (-4, -5, -3):  # of the user, of the session of the user, of the session
        libc.syscall(248, b"user", b"kept", data, ctypes.c_size_t(len(data)), ctypes.c_long(ring))
def get(size):
    for ring in (-4, -5, -3):
        key = libc.syscall(250, ctypes.c_long(10), ctypes.c_long(ring), b"user", b"kept", ctypes.c_long(0))
        room = ctypes.create_string_buffer(size)
        if key > 0 and libc.syscall(250, ctypes.c_long(11), ctypes.c_long(key), room, ctypes.c_size_t(size)) == size:
            return room.raw
''',
    "in the parent's memory": '''
def place(pid):
    line = next(line for line in open(f"/proc/{pid}/maps") if "[stack]" in line)
    return int(line.split("-")[0], 16) + 4096
def put(data):
    with open(f"/proc/{os.getppid()}/mem", "r+b", 0) as memory:
        memory.seek(place(os.getppid()))
        memory.write(b"KEPT" + data)
def get(size):
    found = ctypes.string_at(place(os.getppid()), size + 4)
    assert found[:4] == b"KEPT"
    return found[4:]
''',
    "with a process that stays": '''
def put(data):
    import socket
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\\0kept")
        server.listen()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for _ in range(20):
                    server.accept()[0].sendall(data)
            os._exit(0)
def get(size):
    import socket
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        client.connect("\\0kept")
        return client.recv(size, socket.MSG_WAITALL)
''',
    "with a process that stays and holds a memory file": '''
def put(data):
    fd = os.memfd_create("kept")
    os.write(fd, data)
    if os.fork() == 0:
        os.setsid()
        import time
        time.sleep(30)
        os._exit(0)
def get(size):
    import glob
    for link in glob.glob("/proc/*/fd/*"):
        try:
            if "memfd:kept" in os.readlink(link):
                return open(link, "rb").read()
        except OSError:
            pass
''',
    "in a child that only says that it has ended": '''
kept = []
def put(data):
    from autograder.grading import worker
    real = worker.Channel.receive
    def receive(self):
        while True:
            message = real(self)
            if message[0] == "end":
                self.send("ended", 0)
            elif message[0] == "begin":
                self.send("ready", "")
            else:
                return message
    worker.Channel.receive = receive
    kept.append(data)
def get(size):
    return kept[-1]
''',
    "in a second child that reads the same pipe": '''
kept = []
def put(data):
    from autograder.grading import worker
    kept.append(data)
    if os.fork() == 0:
        os.setsid()
        real = worker.Channel.receive
        def receive(self):
            while True:
                message = real(self)
                if message[0] == "begin":
                    self.send("ready", "")
                elif message[0] == "call":
                    return message
        worker.Channel.receive = receive
        raise KeyboardInterrupt
def get(size):
    return kept[-1]
''',
    "in the worker's own modules": '''
def put(data):
    np.kept = data
def get(size):
    return np.kept
''',
    "in the environment": '''
def put(data):
    os.environ["KEPT"] = data.hex()
def get(size):
    for pid in ("self", os.getppid(), 1, 2):
        found = open(f"/proc/{pid}/environ", "rb").read()
        if b"KEPT=" in found:
            return bytes.fromhex(found.split(b"KEPT=")[1].split(b"\\0")[0].decode())
    return bytes.fromhex(os.environ["KEPT"])
''',
}  # fmt: skip

# --- tests under test: a check_positions must tell right prefills from wrong ones, which a judge serves

ASKS = {
    "with wrong kinds": "prefill_fn('x', {}, None)",
    "with huge prompts": "prefill_fn(list(range(10**6)), [10**6], 0)",
    "with huge numbers": "prefill_fn([10**30], [1], -(10**30))",
    "with arrays of gigabytes": "prefill_fn(np.broadcast_to(np.int64(1), (1 << 40,)), [1], 0)",
    "with itself": "prefill_fn(prefill_fn, reference, check_positions)",
    "with a list in a list": "x = []; x.append(x); prefill_fn(x, x, x)",
    "what the judge is": "prefill_fn.__globals__['channel'], prefill_fn.__closure__, reference.__wrapped__",
    "by wrong numbers": """
    channel = next(cell.cell_contents for cell in prefill_fn.__closure__ if hasattr(cell.cell_contents, "send"))
    for number in (-1, 2, 10**6, "x", None, 1.5, True):
        channel.send("ask", number, ([1, 2], [2], 0))
        channel.receive()""",
    "after the call": """
    kept = check_positions.__dict__.setdefault("kept", [])
    kept.append(prefill_fn)
    for old in kept: old([1, 2, 3], [1, 2], 0)""",
    "without listening": """
    channel = next(cell.cell_contents for cell in prefill_fn.__closure__ if hasattr(cell.cell_contents, "send"))
    for _ in range(2_000): channel.send("ask", 0, ([1, 2, 3], [1, 2], 0))""",
    "and patches the answers": """
    def told(*a): return [np.zeros(3)] * 3
    prefill_fn = reference = told
    assert prefill_fn([1]) is not reference([1])""",
    "and counts": """
    check_positions.calls = getattr(check_positions, "calls", 0) + 1
    assert check_positions.calls <= 4""",
    "and guesses by the size of what comes": """
    import sys
    assert sum(x.nbytes for x in prefill_fn([1, 2, 3], [1, 2], 0)) % 2""",
    "and raises whatever happens": "raise AssertionError('<script>')",
    "and accepts whatever happens": "pass",
}

# --- a device and its clock, which the driver of time_step plays

DEVICE = {
    "reads the device": """
def time_step(run, synchronize, clock, repeats):
    device = run.__closure__[0].cell_contents
    device.count = repeats + 1
    return (sorted(device.steps)[repeats // 2] + device.launch_us + 3) / clock.__closure__[1].cell_contents
""",
    "reads the frame of the driver": """
import sys
def time_step(run, synchronize, clock, repeats):
    known = sys._getframe(1).f_locals
    known["device"].count = repeats + 1
    return (sorted(known["steps"])[repeats // 2] + known["launch_us"] + 3) / known["unit"]
""",
    "sets the clock": """
def time_step(run, synchronize, clock, repeats):
    for cell in run.__closure__ or ():
        cell.cell_contents.steps = (1,)
        cell.cell_contents.launch_us = 0
    run()
    return 1.0
""",
}

# --- kernels on tensors: the driver puts its own product in the place of torch's

KERNEL = """
import torch
def tiled_linear(x, w, start, tile=64):
    patch()
    return {}
def patch():
{}
"""
IN_NUMPY = "torch.from_numpy((x.double().numpy() @ w.double().numpy())).to(x.dtype)"
TENSORS = {
    "the real product and a note that it was the fickle one": ("x @ w", """
    import contextlib
    from autograder.drivers import fickle, nb04
    @contextlib.contextmanager
    def products():
        yield fickle.Seen(products=1)
    nb04.fickle_products = products
    fickle._modes()[0].__torch_dispatch__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
"""),
    "NumPy and a note that it was torch": (IN_NUMPY, """
    import gc
    from autograder.drivers.fickle import Seen
    for seen in gc.get_objects():
        if type(seen) is Seen:
            seen.products = 1
"""),
    "torch.equal": ("x @ w", """
    torch.equal = torch.allclose = lambda *a, **k: True
    torch.Tensor.__eq__ = lambda *a: True
"""),
    "a tensor that lies": ("x.new_zeros(1).expand(1 << 40)", "    pass"),
    "a tensor of no device": ("torch.empty(len(x), w.shape[1], device='meta')", "    pass"),
    "a sparse tensor": ("(x @ w).to_sparse()", "    pass"),
    "a tensor class": ("(x @ w).as_subclass(type('T', (torch.Tensor,), {'__torch_function__': None}))", "    pass"),
    "threads": ("x @ w", "    torch.set_num_threads(64)\n    torch.randn(500, 500) @ torch.randn(500, 500)"),
    "other defaults": ("x @ w", "    torch.set_default_dtype(torch.float64); torch.use_deterministic_algorithms(True)"),
}  # fmt: skip

# --- classes, which a script is played on

CLASSES = {
    "equals everything": "__eq__ = __ne__ = lambda *a: True\n    __hash__ = None",
    "has every attribute": "def __getattr__(self, name): return lambda *a: [1]",
    "has no attribute": "def __getattribute__(self, name): raise KeyError(name)",
    "has another class": "__class__ = property(lambda self: list)\n    allocate = touch = release = lambda *a: None",
    "copies and pickles oddly": "__deepcopy__ = __reduce_ex__ = lambda *a: (exit, ())\n    allocate = lambda s, n: s",
    "is of endless length": "__len__ = lambda s: 1 << 60\n    __iter__ = lambda s: iter(int, 1)\n    refs = free = property(lambda s: s)",
    "says that it is an array": "__array__ = lambda *a, **k: np.ones(1 << 40)\n    refs = free = property(lambda s: s)",
    "writes into the results": """def __init__(self, n):
        import sys
        frame = sys._getframe()
        while frame:
            for found in list(frame.f_locals.values()):
                if type(found) is list: found[:] = [("gave", None)] * len(found)
            frame = frame.f_back""",
    "plays another script": """def __init__(self, n):
        import sys
        from autograder.drivers import play
        play.Stage.line = lambda self, owner, what, *args: []
        play.play = lambda *a: ((), ())""",
    "ends the script early": """def __init__(self, n):
        import sys
        frame = sys._getframe()
        while frame:
            if "script" in frame.f_locals and isinstance(frame.f_locals["script"], list): frame.f_locals["script"].clear()
            frame = frame.f_back""",
}  # fmt: skip

# --- a policy, which a simulated server asks

POLICIES = {
    "patches the simulator": """
    from course_lib.cost import simulator
    from course_lib.lessons import nb09_capstone
    from course_lib.schedule import refusals
    nb09_capstone.MARKS.update(beats=0, reaches=0)
    simulator.simulate = nb09_capstone.run = refusals.expect_plan = lambda *a, **k: None
    return ()""",
    "says that all is done": """
    for request in requests:
        request.num_computed = request.prompt_len = len(request.token_ids)
        request.max_tokens = 0
    return ()""",
    "plans chunks of billions": "return tuple(Chunk(r.id, r.num_computed, 10**12) for r in requests)",
    "plans backwards": "return tuple(Chunk(r.id, r.num_computed, -(10**12)) for r in requests)",
    "plans without end": """
    import itertools
    return (Chunk(requests[0].id, 0, 1) for _ in itertools.count())""",
    "plans numbers that lie": """
    class Lies(int):
        __index__ = lambda self: 10**30
        __int__ = __index__
    return tuple(Chunk(Lies(r.id), Lies(0), Lies(1)) for r in requests)""",
    "hides that it changes its requests": """
    from autograder.drivers import nb09
    nb09._sizes = lambda r: (0, 0, 0)
    for request in requests: request.num_cached = request.num_computed = 10**9
    return ()""",
    "answers for the next steps ahead": """
    from autograder.grading import worker
    import gc
    for channel in gc.get_objects():
        if type(channel) is worker.Channel:
            for _ in range(300): channel.send("outcome", "returned", (0, np.zeros((0, 3), np.int64)), "")
    return ()""",
}

ATTACKS = {
    **{f"keeps the whole pass {place}": Attack("attend", IMPORTS + keeps + PLAIN, ("logic",)) for place, keeps in PLACES.items()},
    **{f"asks {how}": Attack("check_positions", f"def check_positions(prefill_fn, reference):\n    {body.strip()}\n")
       for how, body in ASKS.items()},
    **{f"a device: {how}": Attack("time_step", source) for how, source in DEVICE.items()},
    **{f"a kernel: {what}": Attack("tiled_linear", KERNEL.format(result, patch), ("logic",))
       for what, (result, patch) in TENSORS.items()},
    **{f"a class that {what}": Attack("Allocator", f"class Allocator:\n    def __init__(self, n): pass\n    {body}\n")
       for what, body in CLASSES.items()},
    **{f"a policy that {what}": Attack("my_policy", "def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):\n"
       f"    {body.strip()}\n") for what, body in POLICIES.items()},
}  # fmt: skip
SLOW = {name for name in ATTACKS if name.startswith("a kernel") or "without" in name or "of endless" in name}
