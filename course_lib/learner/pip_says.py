"""What a failed step of the set-up said, and what that means: in one line, with what to do.

Also the case that the set-up mends itself: constraints in the user's own pip settings that exclude a pinned version.
Standard library only: course.py needs this before anything is installed.
"""

import ast
import os
import re
import subprocess
import sys

# What the output of a failed step contains -> why, and what to do. The first that fits is said.
REMEDIES = {
    r"ensurepip is not|No module named '?(venv|ensurepip)": "this Python cannot make virtual environments. On Debian "
    "and Ubuntu: sudo apt install python3-venv; elsewhere use Python from python.org or conda",
    r"No space left on device": "the disk is full. Free about 2 GB, then run this again",
    r"Read-only file system|Permission denied|WinError 5\b": "a folder cannot be written. Move the project to a "
    "folder that you can write to, or close the programs that use its .venv, then run this again",
    r"CERTIFICATE_VERIFY_FAILED|SSLError": "the package index's certificate is not trusted here. Behind a company "
    "proxy set PIP_CERT to the proxy's certificate file, then run this again",
    r"(Connection|Timeout|Proxy)Error|connection broken|[Tt]imed out|Temporary failure|getaddrinfo failed": "pip "
    "cannot reach the package index. Check the network (a proxy goes into HTTPS_PROXY), then run this again",
}


def explain(text: str) -> str:
    """One line that says why something with this output failed, and what to do."""
    if remedy := known_remedy(text):
        return remedy
    if requirement := not_found(text):
        return not_on_offer(requirement)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"it failed, and the last thing said was: {lines[-1] if lines else 'nothing'}"


def known_remedy(output: str) -> str:
    """The line of REMEDIES that fits; "" if none does."""
    return next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, output)), "")


def not_found(output: str) -> str:
    """The requirement that no package on the index meets; "" where pip failed for another reason."""
    found = None if known_remedy(output) else re.search(r"No matching distribution found for (\S+)", output)
    return found[1] if found else ""


def not_on_offer(what: str) -> str:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f"nothing that fits {what} is on offer for Python {version} on this system. Try Python 3.11"


def conflicts(output: str) -> dict[str, str]:
    """The constraints that pip could not meet, by package: {"torch": "torch<2.6,==2.13.0"}.

    {} where pip names none, or failed for a reason that has a remedy of its own: an index out of reach, say.
    """
    if known_remedy(output):
        return {}
    found = re.findall(r"^ *The user requested \(constraint\) ([\w.-]+)(\S*)", output, re.MULTILINE)
    return {canonical(name): name + bounds for name, bounds in found}


def where_set(python: str) -> str:
    """The constraint files that pip obeys and what names them, for instance "/a/b.txt (PIP_CONSTRAINT)"; "" if none."""
    if os.environ.get("PIP_CONSTRAINT"):  # takes the place of what the files say
        return f"{os.environ['PIP_CONSTRAINT']} (PIP_CONSTRAINT)"
    done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = dict(re.findall(r"^(\w+\.constraint)=('.*')$", done.stdout, re.MULTILINE))
    name = next((name for name in ("install.constraint", "global.constraint") if name in found), None)
    return f"{' '.join(ast.literal_eval(found[name]).split())} (`pip config debug` shows what names it)" if name else ""


def explain_conflict(excluded: dict[str, str], there: str, requirements: list[str]) -> str:
    """One line: what pip was held to and what the course needs, and what to do.

    excluded       as `conflicts` returns it
    there          as `where_set` returns it; "" when only the course's own pins can be meant
    requirements   the course's requirement lines
    """
    held = ", ".join(excluded.values())
    if not there:
        return not_on_offer(held)
    needed = [line for line in requirements if canonical(re.match(r"[\w.-]+", line)[0]) in excluded]
    return (
        f"your pip is held to {held} by {there}"
        + (f", but the course needs {', '.join(needed)}" if needed else "")
        + ". Take that line out, or set PIP_CONSTRAINT=constraints.txt for this run, which takes the place of that file"
    )


def without(pins: str, names: set[str]) -> str:
    """The text of a constraints file less the lines for these packages (canonical names)."""
    lines = pins.splitlines(keepends=True)
    return "".join(line for line in lines if canonical(re.match(r"[\w.-]*", line)[0]) not in names)


def canonical(name: str) -> str:
    """A package's name as all its spellings are compared: "Jupyter_Server" -> "jupyter-server"."""
    return re.sub(r"[-_.]+", "-", name).lower()
