"""Answers that attack a grader: by name, the body of a `positions(cached, computed, take)` that earns nothing.

SECRET_FILE is a file outside of the sandbox, PORT a port on which this machine listens.
"""

import textwrap

BODIES = {
    "returns what equals everything": """
        class Always:
            def __eq__(self, other): return True
            def __array__(self, *a, **k): raise ValueError
        return Always()
    """,
    "returns an array whose class lies": """
        import numpy as np
        class Lies(np.ndarray):
            def __eq__(self, other): return np.ones(self.shape, bool)
            def tolist(self): return list(range(cached + computed, cached + computed + take))
        return np.zeros(take, dtype=np.int64).view(Lies)
    """,
    "patches numpy": """
        import numpy as np
        np.array_equal = lambda *a, **k: True
        np.testing.assert_array_equal = lambda *a, **k: None
        return np.zeros(take, dtype=np.int64)
    """,
    "patches the checks": """
        from autograder import answers, judge, plain
        plain.equal = plain.fits = judge.judge = lambda *a, **k: True
        return 0
    """,
    "asks the oracle's module": """
        import sys
        from autograder.exercises import EXERCISES
        for group in EXERCISES["positions"].groups:
            object.__setattr__(group, "judge", lambda calls, outcomes: True)
        return 0
    """,
    "ends the process": "import os; os._exit(0)",
    "exits": "raise SystemExit(0)",
    "interrupts": "raise KeyboardInterrupt",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "kills its parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL); return 0",
    "kills everything": "import os, signal; os.kill(-1, signal.SIGKILL); return 0",
    "never returns": "while True: pass",
    "sleeps": "import time; time.sleep(10_000)",
    "recurses": "return positions(cached, computed, take)",
    "takes all memory": "x = [bytearray(1 << 30) for _ in range(1000)]; return 0",
    "takes memory slowly": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "prints without end": "while True: print('x' * 1000)",
    "writes to the judge": """
        import os, struct
        for fd in range(3, 64):
            try: os.write(fd, struct.pack(">II", 15, 0) + b'["ended", 0]   ')
            except OSError: pass
        return 0
    """,
    "announces gigabytes": """
        import os, struct
        for fd in range(3, 64):
            try: os.write(fd, struct.pack(">II", 2**32 - 1, 2**32 - 1))
            except OSError: pass
        return 0
    """,
    "floods the judge": """
        import os
        for fd in range(3, 64):
            try:
                for _ in range(100_000): os.write(fd, b"x" * 65536)
            except OSError: pass
        return 0
    """,
    "returns a huge array": "import numpy as np; return np.zeros(1 << 27, dtype=np.int64)",
    "returns a lazy giant": "import numpy as np; return np.broadcast_to(np.zeros(1), (1 << 40,))",
    "returns deep lists": "x = []\nfor _ in range(10_000): x = [x]\nreturn x",
    "returns itself": "x = []; x.append(x); return x",
    "returns a generator without end": "import itertools; return itertools.count()",
    "returns NaN": "import numpy as np; return np.full(take, np.nan)",
    "raises what cannot be said": """
        class Odd(Exception):
            def __str__(self): raise RuntimeError
            __repr__ = __str__
        raise Odd
    """,
    "raises html": "raise ValueError('<script>alert(1)</script>')",
    "raises a stub's error": "raise NotImplementedError('Exercise 3.1')",
    "reads a secret": "raise ValueError(open(SECRET_FILE).read())",
    "reads the secret by proc": """
        import glob
        found = []
        for root in glob.glob("/proc/*/root" + SECRET_FILE):
            try: found.append(open(root).read())
            except OSError: pass
        raise ValueError(str(found))
    """,
    "writes a file": "open(SECRET_FILE, 'w').write('changed')",
    "removes what it can": "import shutil; shutil.rmtree('/', ignore_errors=True); return 0",
    "connects": """
        import socket
        socket.create_connection(("127.0.0.1", PORT), timeout=2).send(b"hello")
        return 0
    """,
    "leaves a child behind": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3)
                open(SECRET_FILE, "w").write("changed")
            os._exit(0)
        return 0
    """,
    "forks without end": """
        import os
        try:
            while True: os.fork()
        except OSError: pass
        return 0
    """,
    "opens all files": "x = [open('/dev/null') for _ in range(100_000)]; return 0",
    "starts a shell": "import subprocess; subprocess.run('echo changed > ' + SECRET_FILE, shell=True); return 0",
    "fills the disk": """
        with open("/tmp/large", "wb") as f:
            while True: f.write(b"x" * (1 << 20))
    """,
    "makes another answer's file": """
        import autograder, os
        path = os.path.join(os.path.dirname(autograder.__file__), "exercises", "nb03_positions.py")
        open(path, "w").write("")
        return 0
    """,
    "mounts": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0, "no"
        return 0
    """,
    "traces its parent": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace(16, os.getppid(), None, None)
        return 0
    """,
    "remembers calls": """
        positions.calls = getattr(positions, "calls", 0) + 1
        return list(range(take)) if positions.calls > 1 else []
    """,
    "changes its arguments' type": "return type('T', (), {'__index__': lambda s: 0})()",
    "looks for the judge in its frames": """
        import sys
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_locals.values()):
                if type(value).__name__ in ("Call", "Exercise", "Group"):
                    facts = getattr(value, "facts", {}) or {}
                    if facts: raise ValueError(repr(facts))
            frame = frame.f_back
        return 0
    """,
    # what comes back
    "an integer that lies": """
        class Int(int):
            __le__ = __ge__ = __eq__ = lambda *a: True
            def __int__(self): return 10**4000
            __index__ = __trunc__ = __int__
        return [Int(1)] * take
    """,
    "a text that lies about its length": """
        class Text(str):
            def __len__(self): return 0
        return Text("x" * (1 << 27))
    """,
    "a tuple that never ends": """
        class Endless(tuple):
            def __len__(self): return take
            def __iter__(self):
                while True: yield 0
        return Endless([0])
    """,
    "claims to be an array": """
        import numpy as np
        class Claims:
            __class__ = np.ndarray
            __array_interface__ = {"shape": (1 << 40,), "typestr": "<i8", "data": (0, False), "version": 3}
        return Claims()
    """,
    "no attribute can be read": """
        class Closed:
            def __getattribute__(self, name): raise SystemExit(0)
        return Closed()
    """,
    "another array each time": """
        import numpy as np
        class Turns:
            def __array__(self, *a, **k):
                import random
                return np.array([random.random()] * take)
        return Turns()
    """,
    "copies itself when it is copied": """
        class Grows(list):
            def __deepcopy__(self, memo): return Grows([self, self])
            def __reduce__(self): raise RuntimeError
        return Grows([1])
    """,
    "dtypes that cannot travel": """
        import numpy as np
        odd = [np.zeros(take, np.longdouble), np.zeros(take, "M8[s]"), np.zeros(take, "S5"), np.zeros(take, "V8")]
        return odd[(cached + computed) % 4]
    """,
    "a masked array": "import numpy as np; return np.ma.masked_all(take, dtype=np.int64)",
    "an array that is freed": """
        import ctypes, numpy as np
        buffer = (ctypes.c_int64 * take)()
        array = np.frombuffer(buffer, dtype=np.int64)
        return np.lib.stride_tricks.as_strided(array, (take,), (1 << 40,))
    """,
    "raises a type with a wild name": "raise type('<img src=x onerror=alert(1)>', (Exception,), {})('x')",
    "raises a formula": "raise ValueError('=HYPERLINK(\"http://example.org\")')",
    "raises what no file can hold": "raise ValueError('\\ud800 \\x00 \\x1b[2J \\u202e')",
    "raises a group of errors": "raise type('G', (Exception,), {'__str__': lambda s: 'x' * (1 << 28)})",
    "an error that is its own cause": """
        error = ValueError("x")
        error.__cause__ = error.__context__ = error
        raise error
    """,
    # the wire
    "answers twice": """
        _send(b'["outcome","returned",[0],""]')
        return [0] * take
    """,
    "answers ahead": """
        for _ in range(100): _send(b'["outcome","returned",{"array":["<i8",[1]]},""]', b"\\0" * 8)
        return [0] * take
    """,
    "never answers and stays": "import select; select.select([], [], [])",
    "half a frame": "_send(b'[\"outcome\",', more=50); import time; time.sleep(100)",
    "no JSON": "_send(b'outcome, returned, 0'); return 0",
    "deep JSON": "_send(b'[' * (1 << 20)); return 0",
    "wide JSON": "_send(b'[' + b'[],' * 1_000_000 + b'0]'); return 0",
    "a number without end": "_send(b'[\"outcome\",\"returned\",' + b'9' * 100_000 + b',\"\"]'); return 0",
    "not a number in JSON": '_send(b\'["outcome","returned",NaN,""]\'); return float(\'inf\')',
    "a shape larger than its bytes": """
        _send(b'["outcome","returned",{"array":["<i8",[1048576,1048576]]},""]', b"\\0" * 8)
        return 0
    """,
    "a shape below nothing": '_send(b\'["outcome","returned",{"array":["<i8",[-1,-1]]},""]\', b\'0\' * 8); return 0',
    "an array of objects": '_send(b\'["outcome","returned",{"array":["|O",[1]]},""]\', b\'0\' * 8); return 0',
    "kinds that there are not": """
        for text in (b'["passed"]', b'["verdict",true]', b'["outcome"]', b'["outcome","passed",1,2]', b'[]', b'7',
                     b'{"list":[]}', b'["outcome","returned",{"function":[0,"x"]},7]', b'[["outcome"]]'):
            _send(text)
        return 0
    """,
    "asks where nothing may be asked": "_send(b'[\"ask\",0,[]]'); return 0",
    "asks with a text for a number": '_send(b\'["ask","__class__",[]]\'); return 0',
    "says that it has ended": "_send(b'[\"ended\",0]'); return 0",
    "says hello": '_send(b\'["hello"]\'); _send(b\'["ready",""]\'); return 0',
    "an outcome whose texts are none": '_send(b\'["outcome","raised",0,[],{"bytes":""},null]\'); return 0',
    "a thread that answers later": """
        import threading, time
        def later():
            while True:
                time.sleep(0.001)
                _send(b'["outcome","returned",[0],""]')
        threading.Thread(target=later, daemon=True).start()
        return [0] * take
    """,
    "closes all descriptors": "import os; os.closerange(0, 256); return 0",
    "takes the judge's words": """
        import os
        for fd in range(3, 64):
            try: os.set_blocking(fd, False), os.read(fd, 1 << 20)
            except OSError: pass
        return 0
    """,
    "patches the worker": """
        import gc
        from autograder.grading import wire, worker
        worker.packed = lambda outcome: ("returned", True, "Passed")
        worker.Channel.send = lambda self, *message: None
        wire.encode = lambda value: b""
        return 0
    """,
    "patches every function that it finds": """
        import gc, types
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__module__ and found.__module__.startswith("autograder"):
                found.__code__ = (lambda *a, **k: True).__code__
        return 0
    """,
    "patches what Python is made of": """
        import builtins, json, os, numpy as np
        builtins.isinstance = builtins.all = lambda *a: True
        builtins.len = lambda x: take
        json.dumps = lambda *a, **k: '["outcome","returned",true,"Passed"]'
        np.ndarray = object
        return 0
    """,
    "watches all calls": """
        import sys
        sys.setprofile(lambda frame, event, arg: frame.f_locals.update(passed=True, outcome=True))
        sys.settrace(lambda *a: None)
        sys.addaudithook(lambda *a: None)
        return 0
    """,
    "replaces modules": """
        import sys
        for name in list(sys.modules): sys.modules[name] = None
        return 0
    """,
    # processes
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); return 0",
    "stops its parent": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); return 0",
    "kills its group": "import os, signal; os.killpg(0, signal.SIGKILL); return 0",
    "handles all signals": """
        import signal
        for number in signal.valid_signals():
            try: signal.signal(number, lambda *a: None)
            except (OSError, ValueError): pass
        while True: pass
    """,
    "reads its parent's memory": """
        import os
        found = b""
        try:
            with open(f"/proc/{os.getppid()}/maps") as maps, open(f"/proc/{os.getppid()}/mem", "rb") as memory:
                for line in maps:
                    begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                    try:
                        memory.seek(begin)
                        part = memory.read(end - begin)
                    except (OSError, ValueError, OverflowError): continue
                    for word in (b"canary-", b"hidden", b"seed="):
                        at = part.find(word)
                        if at >= 0: found += part[at:at + 40]
        except OSError: pass
        raise ValueError(found.decode("latin1"))
    """,
    "writes into its parent's memory": """
        import os
        try:
            with open(f"/proc/{os.getppid()}/maps") as maps, open(f"/proc/{os.getppid()}/mem", "r+b") as memory:
                for line in maps:
                    if "[heap]" in line:
                        memory.seek(int(line.split("-")[0], 16))
                        memory.write(b"\\0" * 4096)
        except OSError: pass
        return 0
    """,
    "a new namespace": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.unshare(0x10000000 | 0x00020000)
        libc.mount(b"tmpfs", b"/usr", b"tmpfs", 0, None)
        open(SECRET_FILE, "w").write("changed")
        return 0
    """,
    "raises its limits": """
        import resource
        for what in range(16):
            try: resource.setrlimit(what, (resource.RLIM_INFINITY,) * 2)
            except (OSError, ValueError): pass
        return bytearray(1 << 40)
    """,
    "fills shared memory": """
        with open("/dev/shm/large", "wb") as f:
            while True: f.write(b"x" * (1 << 20))
    """,
    "a file in memory without end": """
        import os
        fd = os.memfd_create("x")
        while True: os.write(fd, b"x" * (1 << 20))
    """,
    "writes into site-packages": """
        import numpy, os
        for folder in (os.path.dirname(numpy.__file__), "/usr/lib", "/etc", "/", os.path.expanduser("~")):
            try: open(folder + "/sitecustomize.py", "w").write("changed")
            except OSError: pass
        return 0
    """,
    "leaves many children behind": """
        import os, time
        for _ in range(20):
            if os.fork() == 0:
                os.setsid()
                end = time.time() + 5
                while time.time() < end:
                    try: open(SECRET_FILE, "w").write("changed")
                    except OSError: pass
                os._exit(0)
        return 0
    """,
    "threads without end": """
        import threading, time
        try:
            while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except RuntimeError: pass
        return 0
    """,
    "connects by other families": """
        import socket
        for family in range(50):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                try: socket.socket(family, kind).sendto(b"hello", ("127.0.0.1", PORT))
                except Exception: pass
        return 0
    """,
    "serves the network": """
        import socket
        with socket.create_server(("0.0.0.0", 0)) as server: server.accept()
    """,
    "ends at exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit('Passed')",
    "waits in a finalizer": """
        import time
        class Slow:
            def __del__(self): time.sleep(1000)
        Slow()
        return 0
    """,
    "matches without end": "import re; re.match('(a+)+$', 'a' * 64 + 'b'); return 0",
    "a number that is never finished": "return 9 ** 9 ** 9",
    "a finder for imports": """
        import sys
        class Finder:
            def find_spec(self, name, path=None, target=None): raise SystemExit(0)
        sys.meta_path.insert(0, Finder())
        sys.modules.pop("autograder.plain", None)
        return 0
    """,
    "goes deep in C": """
        x = ()
        for _ in range(1_000_000): x = (x,)
        return hash(x)
    """,
}

WAIT = {  # these end when their time is over, or take long
    "takes all memory",
    "never returns", "sleeps", "takes memory slowly", "prints without end", "a tuple that never ends", "half a frame",
    "never answers and stays", "stops itself", "stops its parent", "handles all signals", "serves the network",
    "waits in a finalizer", "matches without end", "a number that is never finished", "traces its parent",
    "closes all descriptors", "floods the judge", "leaves many children behind", "threads without end",
    "a file in memory without end", "takes the judge's words", "patches the worker",
}  # fmt: skip

SEND = """
def _send(text, body=b"", more=0):
    import os, struct
    frame = struct.pack(">II", len(text) + more, len(body)) + text + body
    for fd in range(3, 64):
        try: os.write(fd, frame)
        except OSError: pass
"""


def answer(name: str, secret: str = "/nowhere", port: int = 9) -> str:
    """The text of a hostile answer to `positions`."""
    body = textwrap.dedent(BODIES[name]).strip("\n").replace("SECRET_FILE", repr(secret)).replace("PORT", str(port))
    helper = SEND if "_send(" in body else ""
    return helper + "def positions(cached, computed, take):\n" + textwrap.indent(body, "    ") + "\n"
