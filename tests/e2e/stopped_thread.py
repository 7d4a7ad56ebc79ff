"""Stops one thread of another process, as a lock that is never released or a hung disk does."""

import ctypes
import os
import pathlib
import time

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
# waitpid also for threads.
WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request, thread):
    if _libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request} of thread {thread}: {os.strerror(error)}")


def threads(pid, name):
    """Ids of the threads of that name."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(task.name) for task in tasks if (task / "comm").read_text().strip() == name]


def stands_still(pid):
    """Whether every thread of a process that was sent SIGSTOP has stopped: the signal alone does not wait for that."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


class StoppedThread:
    """The thread of a process with that name stands still from enter to exit, which come from one
    thread. The others run on."""

    def __init__(self, pid, name):
        # A thread gets its name a moment after it starts.
        end = time.monotonic() + 10
        while not (found := threads(pid, name)) and time.monotonic() < end:
            time.sleep(0.01)
        (self.id,) = found

    def __enter__(self):
        _ptrace(PTRACE_ATTACH, self.id)
        os.waitpid(self.id, WALL)
        return self

    def cpu_seconds(self):
        """Processor time that the thread has used so far."""
        times = pathlib.Path(f"/proc/{self.id}/schedstat").read_text().split()
        return int(times[0]) / 1e9

    def __exit__(self, *exception):
        try:
            _ptrace(PTRACE_DETACH, self.id)
        except ProcessLookupError:
            # The process has ended: its parent can notice that once this thread is detached.
            os.waitpid(self.id, WALL)
