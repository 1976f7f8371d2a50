"""Puts this process, with Linux's own calls, where a few folders are all there is, and can be read only.

`confine` is for a fork server: namespaces with a root of their own, no network and no shared memory. `detach` is for
each of its children, one after another: no other process. Both need no privilege; they raise OSError where the kernel
lacks a part or forbids it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from autograder.grading.seccomp import number_of

# flags of unshare(2), mount(2), umount(2), prctl(2)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE, RELATIME = 1, 2, 4, 32, 4096, 16384, 1 << 18, 1 << 21
DETACH = 2
DIE_WITH_PARENT, CAPBSET_DROP, NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES_3 = 0x20080522  # the version of capset's structures, linux/capability.h
NOBODY = 65534
DEVICES = ("null", "zero", "full", "random", "urandom")
_KEPT = {os.ST_RDONLY: RDONLY, os.ST_NOSUID: NOSUID, os.ST_NODEV: NODEV, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024,
         os.ST_NODIRATIME: 2048, os.ST_RELATIME: RELATIME} if sys.platform == "linux" else {}  # fmt: skip


def confine(visible: Sequence[str], root: str = "/tmp") -> None:
    """Move this process into namespaces in which only the folders and files `visible` exist, none of them writable.

    root   any folder; the new root is mounted over it, where nobody else sees it

    The process must have one thread. It keeps capabilities over its own namespaces, to `detach` its children.
    """
    user, group = os.geteuid(), os.getegid()
    _unshare(NEWUSER | NEWNS | NEWNET | NEWIPC | NEWUTS)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
    _mount(None, "/", None, REC | PRIVATE)  # nothing that is mounted here is seen outside
    # a copy of each before anything is mounted over `root`, below which they may lie
    sources = {path: os.open(path, os.O_PATH) for path in visible if os.path.exists(path)}
    links = {path: os.readlink(path) for path in visible if os.path.islink(path)}
    devices = {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    _mount("tmpfs", root, "tmpfs", NOSUID | NODEV)
    for path, source in (sources | devices).items():
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path in links:
            os.symlink(links[path], target)
        elif not os.path.lexists(target):
            _bind(source, target)
        os.close(source)
    os.makedirs(root + "/tmp", exist_ok=True)
    for target in _mounts_below(root):
        _read_only(target)
    os.chdir(root)
    _call("pivot_root", _libc().syscall(number_of("pivot_root"), b".", b"."))
    _call("umount", _libc().umount2(b".", DETACH))  # the old root, which lies over the new one
    os.chdir("/")
    _call("sethostname", _libc().sethostname(b"sandbox", 7))


def detach() -> None:
    """Take the other processes from a child of a confined one. What it forks next is the first of new processes.

    That first process ends with this one, and all others with it.
    """
    _unshare(NEWPID)


def drop() -> None:
    """Give up all capabilities, and with them all ways to mount and unmount; programs can give none back."""
    libc = _libc()
    for capability in range(64):
        if libc.prctl(CAPBSET_DROP, capability, 0, 0, 0):
            break  # there are no more
    _call("no_new_privs", libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    head = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _call("capset", libc.syscall(number_of("capset"), head, none))


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _call("prctl", _libc().prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0))


def _bind(source: int, target: str) -> None:
    """Show the folder or file behind a descriptor at `target`, with what is mounted below it."""
    path = f"/proc/self/fd/{source}"
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(path, target, None, BIND | REC)


def _mounts_below(root: str) -> list[str]:
    with open("/proc/self/mountinfo") as file:
        targets = [line.split()[4] for line in file]
    names = [target.encode().decode("unicode_escape") for target in targets]  # a blank is written \040
    return [name for name in names if name == root or name.startswith(f"{root}/")]


def _read_only(target: str) -> None:
    """Remount it read-only; the flags that it has must stay, or the kernel refuses."""
    flags = os.statvfs(target).f_flag
    kept = sum(mount for stat, mount in _KEPT.items() if flags & stat)
    nodev = 0 if target.rpartition("/")[0].endswith("/dev") else NODEV
    _mount(None, target, None, BIND | REMOUNT | RDONLY | NOSUID | nodev | kept)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int) -> None:
    _call("unshare", _libc().unshare(flags))


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    text = [None if part is None else os.fsencode(part) for part in (source, target, kind)]
    _call(f"mount on {target}", _libc().mount(*text, ctypes.c_ulong(flags), None))


def _call(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
