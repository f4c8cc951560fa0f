"""What a process sets for all of its operations."""

import platform
import subprocess
import sys

import pytest
import torch

from kgexp import environment


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "medium"), ("tf32", "high"), ("float32", "highest")])
def test_factors_of_products_are_rounded_as_asked_or_a_sentence_says_that_they_are_not(dtype, precision):
    idle = environment.set_matmul(dtype, torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == precision
    x = torch.randn(64, 64)
    exact = torch.allclose(x @ x, (x.double() @ x.double()).float(), rtol=1e-4, atol=1e-4)
    assert exact == (dtype == "float32" or idle is not None)
    assert idle is None or f"train.matmul_dtype={dtype} changes nothing" in idle


FAULTS = """
import resource, torch
from kgexp import environment

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(1 << 19) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

environment.keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's malloc")
def test_memory_that_is_freed_is_there_for_the_next_step():
    faults = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60, check=True)
    assert int(faults.stdout) < 20 * 8 * 512 / 10  # of as many pages
