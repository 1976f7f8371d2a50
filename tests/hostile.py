"""Answers that attack a grader: by name, the body of a `positions(cached, computed, take)` that returns wrong numbers.

{secret} is a file outside of the sandbox, {port} a port on which this machine listens.
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
    "reads a secret": "raise ValueError(open({secret!r}).read())",
    "reads the secret by proc": """
        import glob
        found = []
        for root in glob.glob("/proc/*/root" + {secret!r}):
            try: found.append(open(root).read())
            except OSError: pass
        raise ValueError(str(found))
    """,
    "writes a file": "open({secret!r}, 'w').write('changed')",
    "removes what it can": "import shutil; shutil.rmtree('/', ignore_errors=True); return 0",
    "connects": """
        import socket
        socket.create_connection(("127.0.0.1", {port}), timeout=2).send(b"hello")
        return 0
    """,
    "leaves a child behind": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3)
                open({secret!r}, "w").write("changed")
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
    "starts a shell": "import subprocess; subprocess.run('echo changed > ' + {secret!r}, shell=True); return 0",
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
    "changes its arguments' type": "return type('T', (), {{'__index__': lambda s: 0}})()",
    "looks for the judge in its frames": """
        import sys
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_locals.values()):
                if type(value).__name__ in ("Call", "Exercise", "Group"):
                    facts = getattr(value, "facts", {{}}) or {{}}
                    if facts: raise ValueError(repr(facts))
            frame = frame.f_back
        return 0
    """,
}


def answer(name: str, secret: str = "/nowhere", port: int = 9) -> str:
    """The text of a hostile answer to `positions`."""
    body = textwrap.dedent(BODIES[name]).strip("\n").format(secret=secret, port=port)
    return "def positions(cached, computed, take):\n" + textwrap.indent(body, "    ") + "\n"
