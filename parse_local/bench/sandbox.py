"""Run as a program of its own: shuts itself in, then runs the code that comes on stdin.

    python -I -S sandbox.py TIMEOUT_S MEMORY_BYTES < code

The first line of stdin is a secret. It is written to stdout when the code has run to its end,
so that no exit status of the code's own, nor anything it prints, can say so instead. What shuts
it in is irrevocable for the process; `PROTECTIONS` of `execution` says what there is. Imports
nothing of parse_local, because it runs without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Any

# Linux system calls that make processes, sockets or rings (io_uring opens sockets unseen), or
# reach into other processes.
_X86_64 = {
    "socket": 41, "socketpair": 53, "connect": 42, "clone": 56, "fork": 57, "vfork": 58,
    "execve": 59, "kill": 62, "ptrace": 101, "tkill": 200, "tgkill": 234, "unshare": 272,
    "setns": 308, "process_vm_writev": 311, "execveat": 322, "io_uring_setup": 425, "clone3": 435,
    "pidfd_send_signal": 424,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "connect": 203, "clone": 220, "execve": 221, "kill": 129,
    "ptrace": 117, "tkill": 130, "tgkill": 131, "unshare": 97, "setns": 268,
    "process_vm_writev": 271, "execveat": 281, "io_uring_setup": 425, "clone3": 435,
    "pidfd_send_signal": 424,
}  # fmt: skip
_FILTERS = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
_EVENTS = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn",
           "os.system", "os.kill", "os.startfile", "ctypes.")  # fmt: skip


def _limit(timeout_s: int, memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; the parent's time-out is left
        return
    for name, value in (
        ("RLIMIT_AS", memory_bytes),
        ("RLIMIT_CPU", timeout_s),
        ("RLIMIT_FSIZE", 1 << 20),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_CORE", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (ValueError, OSError, AttributeError):
            continue  # macOS refuses RLIMIT_AS; what there is counts


def _isolate(libc: Any) -> None:
    # A network of its own with nothing in it. Refused in many containers; the filter is there too.
    new_user, new_net, new_ipc = 0x10000000, 0x40000000, 0x08000000
    libc.unshare(new_user | new_net | new_ipc)


def _lock_files(libc: Any, directory: str) -> None:
    """Landlock: everything may be read, only the directory may be written to."""
    create, add, restrict = 444, 445, 446
    abi = libc.syscall(create, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return
    # write, remove and make things; from the second version on also move, then truncate
    writes = 0x1FF2 | (0x2000 if abi >= 2 else 0) | (0x4000 if abi >= 3 else 0)
    handled = ctypes.c_uint64(writes)
    ruleset = libc.syscall(create, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    for path, allowed in ((directory, writes), (os.devnull, writes & 0x4002)):
        fd = os.open(path, getattr(os, "O_PATH", 0))
        rule = struct.pack("=Qi", allowed, fd)
        libc.syscall(add, ruleset, 1, rule, 0)
        os.close(fd)
    libc.syscall(restrict, ruleset, 0)
    os.close(ruleset)


def _filter_calls(libc: Any) -> None:
    """seccomp: no sockets, no processes, no signals to others; the calls fail with EPERM."""
    if platform.machine() not in _FILTERS or sys.maxsize < 1 << 32:
        return
    arch, calls = _FILTERS[platform.machine()]
    load, equal, at_least, done = 0x20, 0x15, 0x35, 0x06  # BPF opcodes
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (done, 0, 0, kill), (load, 0, 0, 0)]
    # Numbers from 0x40000000 on are x32's names for the same calls.
    program.append((at_least, len(calls) + 1, 0, 0x40000000))
    for i, number in enumerate(calls.values()):
        program.append((equal, len(calls) - i, 0, number))
    program += [(done, 0, 0, allow), (done, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    set_seccomp, by_filter = 22, 2
    libc.prctl(set_seccomp, by_filter, ctypes.c_char_p(header), 0, 0)


def _refuse(event: str, _arguments: tuple[object, ...]) -> None:
    # Works everywhere and cannot be taken out again, but knows Python's own calls only.
    if event.startswith(_EVENTS):
        raise PermissionError(f"{event} is not allowed here")


def main() -> None:
    """Shut in, run, report."""
    secret, _, code = sys.stdin.read().partition("\n")
    report = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    _limit(int(sys.argv[1]), int(sys.argv[2]))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        _isolate(libc)
        no_new_privileges = 38
        libc.prctl(no_new_privileges, 1, 0, 0, 0)
        _lock_files(libc, ".")
        _filter_calls(libc)
    sys.addaudithook(_refuse)
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    os.write(report, secret.encode())


if __name__ == "__main__":
    main()
