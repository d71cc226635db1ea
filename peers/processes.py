"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Looked up before any fork: between fork and exec a child had better not load libraries.
prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def die_with_parent(parent):
    """Has Linux kill this process when the thread that forked it ends, by whatever cause; `parent` is its process id."""
    if prctl is None:
        return
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os._exit(1)


def tied():
    """A `preexec_fn` for subprocess that ties the child to this process."""
    parent = os.getpid()
    return lambda: die_with_parent(parent)


def allowed_cores():
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
