"""What a process can tell of itself and of its machine."""

import os
import platform
import re
import sys
import time

from .clock import now
from .files import read_text


def process_start():
    """Start time of this process on the monotonic clock, or the current time if unknown (resolution on Linux: 10 ms)."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since boot, the name before it may hold anything
        since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now()  # the monotonic clock stops with the machine
        return max(0, min(since_boot - asleep, now()))
    except (OSError, ValueError, IndexError, AttributeError):
        return now()


def host():
    """An identifier common to all processes with the same monotonic clock."""
    return (read_text("/proc/sys/kernel/random/boot_id") or platform.node()).strip()


def peak_resident():
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine(engine):
    cpu = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu.group(1) if cpu else None,
        "cores": cores,
        "memory": int(memory.group(1)) * 1024 if memory else None,
        "kernel": platform.release() or None,
        "engine": engine,
    }


# What launchers call a process's number and how many there are; only as a pair.
PLACES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def place(torch=None):
    """The rank of this process and the number of ranks: as torch.distributed has it, else as the launcher says, else alone."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in PLACES:
        # A batch script on one node of Slurm has both, and is no rank: its tasks get a step of their own.
        if rank == "SLURM_PROCID" and "WORLD_SIZE" not in os.environ:
            continue
        try:
            found = int(os.environ[rank]), int(os.environ[world])
        except (KeyError, ValueError):
            continue
        if 0 <= found[0] < found[1]:
            return found
    return 0, 1
