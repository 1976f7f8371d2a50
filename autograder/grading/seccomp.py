"""Takes system calls from a process for good: starting others, sockets, shared memory, mounts, debugging.

Linux on x86-64 and 64-bit ARM. Numbers are those of the kernel's own tables (asm/unistd_64.h and asm-generic/unistd.h
of Linux 6.1), which never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

# What is refused, with its number on x86-64 and on ARM (0: it has none there). Refused means EPERM.
REFUSED = {
    # other processes and threads: none can be started, so none is left behind and no bomb of them goes off
    "fork": (57, 0), "vfork": (58, 0), "clone": (56, 220), "clone3": (435, 435), "tgkill": (234, 131),
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kcmp": (312, 272),
    "kill": (62, 129), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130),
    # what another process could see afterwards: a call that runs apart must not hear of an earlier one
    "socket": (41, 198), "socketpair": (53, 199), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451),
    "preadv2": (327, 286),
    # the file system and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "fsopen": (430, 430), "fspick": (433, 433), "fsmount": (432, 432), "move_mount": (429, 429),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "mknod": (133, 0), "mknodat": (259, 33),
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "file_setattr": (469, 469), "utime": (132, 0),
    "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88), "flock": (73, 32),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60),
    # parts of the kernel that have had many holes, or that only an administrator needs
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "acct": (163, 89), "personality": (135, 92), "fanotify_init": (300, 262),
    "inotify_init": (253, 0), "inotify_init1": (294, 26), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "vmsplice": (278, 75), "syslog": (103, 116), "lookup_dcookie": (212, 18), "iopl": (172, 0), "ioperm": (173, 0),
    "modify_ldt": (154, 0), "capset": (126, 91),
}  # fmt: skip
# Calls that are refused if an argument has one of some bits: numbers, offset of the argument (below), bits.
REFUSED_IF = {
    # memory that is shared: of it, what is unmapped in part stays as a whole, and no limit counts it
    "mmap": (9, 222, 40, 1),  # MAP_SHARED
    "prlimit64": (302, 261, 16, 0xFFFFFFFF),  # limits of another process
}
EVERY = (*REFUSED, *REFUSED_IF)
WORKER = ("fork", "vfork", "clone", "clone3", "execve", "execveat", "kill")  # left to it: it forks and ends children
# AUDIT_ARCH_* of linux/audit.h; then the place in the pairs above, and the number of seccomp(2)
MACHINES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
OTHER_ABI = 0x40000000  # x86-64's calls with 32-bit pointers have this bit
PR_SET_NO_NEW_PRIVS = 38
FILTER_MODE, ALLOW_SPECULATION = 1, 4  # arguments of seccomp(2): without the second, older kernels slow all code down
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF's instructions, of linux/bpf_common.h
NUMBER, ARCH = 0, 4  # offsets in struct seccomp_data; its arguments, of 8 bytes each, begin at 16


class Filter:
    """Refuses the calls of these names: made once, it can be applied in many children of this process.

    OSError where the machine is none of those above.
    """

    def __init__(self, names: Iterable[str] = EVERY):
        arch, place, seccomp = _machine()
        program = _program(arch, place, tuple(names))
        self._program = ctypes.create_string_buffer(program, len(program))
        head = struct.pack("@HP", len(program) // 8, ctypes.addressof(self._program))  # struct sock_fprog
        self._head = ctypes.create_string_buffer(head, len(head))
        libc = ctypes.CDLL(None, use_errno=True)
        self._prctl, self._syscall, self._number = libc.prctl, libc.syscall, seccomp

    def apply(self) -> None:
        """Refuse them to this process and to all that it starts; there is no way back.

        Processes that make calls of another kind of machine are ended. OSError where the kernel has no such filter.
        """
        if self._prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        if self._syscall(self._number, FILTER_MODE, ALLOW_SPECULATION, self._head):
            raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def number_of(name: str) -> int:
    """The number of one of the calls above on this machine. OSError where there is no table for it."""
    return REFUSED[name][_machine()[1]]


def _machine() -> tuple[int, int, int]:
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine or 'this machine'}")
    return MACHINES[machine]


def _program(arch: int, place: int, names: tuple[str, ...]) -> bytes:
    """The filter as BPF: instructions of (code, steps to jump if so, if not so, operand)."""
    refuse = (RETURN, 0, 0, REFUSE | errno.EPERM)
    parts = [
        (LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, KILL),
    ]  # fmt: skip
    for name in names:
        if name in REFUSED_IF:
            *numbers, argument, bits = REFUSED_IF[name]
            parts += [(EQUAL, 0, 4, numbers[place]), (LOAD, 0, 0, argument)]
            parts += [(ANY_BIT, 0, 1, bits), refuse, (LOAD, 0, 0, NUMBER)]
        elif number := REFUSED[name][place]:
            parts += [(EQUAL, 0, 1, number), refuse]
    parts.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *part) for part in parts)
