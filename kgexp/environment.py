"""The machine and software that a run has: set up at its start, recorded with its results."""

import ctypes
import platform
import resource
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kgexp import __version__
from kgexp.cgroups import free_memory
from kgexp.errors import ConfigError
from kgexp.threads import thread_count, usable_cpus
from kgexp.world import ALONE, World

_LIBRARIES = ("torch", "triton", "numpy", "hydra-core", "omegaconf", "safetensors", "pyarrow", "wandb")

#: Parameters of glibc's malloc, as malloc.h numbers them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

#: What torch calls the dtypes of the factors of matrix products.
_PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}


def set_threads(threads: int | str, world: World = ALONE, workers: int = 1) -> int:
    """Pins the number of threads of every operation (`thread_count`) and returns it: sums are cut by it, so it is
    part of what makes a run repeatable. `auto` shares cores among the ranks that may run on the same ones: all of a
    machine, unless a launcher such as Slurm has given each its own; and among the workers of a rank."""
    mine = [socket.gethostname(), *usable_cpus()]
    count = thread_count(threads, workers * world.gather("the cores", mine).count(mine))
    torch.set_num_threads(count)
    return count


def set_matmul(dtype: str, device: torch.device) -> str | None:
    """Rounds the factors of float32 matrix products to `float32` (not at all), `tf32` or `bfloat16` from now on.

    Returns:
        A sentence where that changes nothing on this machine.
    """
    torch.set_float32_matmul_precision(_PRECISIONS[dtype])
    if device.type == "cuda" or dtype == "float32":
        return None
    if dtype == "bfloat16" and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return f"train.matmul_dtype={dtype} changes nothing here: this processor has no such products"


def keep_freed_memory() -> None:
    """Lets glibc's malloc keep what is freed for the next step: a step would otherwise give its temporaries back to the
    system and get them anew, page by page, for a tenth of its time. Another C library does as it does."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def choose_device(name: str, key: str = "train.device", local_rank: int | None = None) -> torch.device:
    """`cpu`, `cuda`, or `auto`: a GPU where there is one; `key` is the setting that says so.

    The GPU is torch's current one; with `local_rank`, the one that is this rank's turn, which becomes the current one.

    Raises:
        ConfigError: `cuda` where torch sees no GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}=cuda, but torch sees no GPU here: set {key}=cpu.")
    if name == "cuda" and local_rank is not None:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def device_identity(device: torch.device) -> str:
    """What tells a device from every other one of the job's machines."""
    name = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type
    return f"{socket.gethostname()}/{name}"


def describe(threads: int, device: torch.device) -> dict[str, Any]:
    """Versions, machine and threads, as JSON values."""
    versions = {name: version for name in _LIBRARIES if (version := _version(name))}
    return {
        "versions": {"kgexp": __version__, "python": platform.python_version(), **versions},
        "machine": {"platform": platform.platform(), "processor": _processor(), "device": _device_name(device)},
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "git_commit": git_commit(),
    }


def git_commit() -> str | None:
    """The commit of the checkout that the package runs from, with `+` when files differ from it; None outside one."""
    folder = Path(__file__).parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(folder), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if not git("ls-files", "--", str(Path(__file__))):
            return None  # an installed package that lies inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def peak_rss() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def available_memory(device: torch.device) -> dict[str, int]:
    """Bytes that are still to be had on the device, by what bounds them: the device, or the machine and the control
    groups around this process. Who is bounded by the same name shares them; empty where nothing is known."""
    if device.type == "cuda":
        free = {str(torch.cuda.get_device_properties(device).uuid): int(torch.cuda.mem_get_info(device)[0])}
    else:
        free = free_memory(Path("/"))
    return {f"{socket.gethostname()}/{name}": left for name, left in free.items()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
