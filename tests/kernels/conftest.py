"""Kernels run on a GPU where there is one, and else in Triton's interpreter, which takes milliseconds a program.

Triton is no requirement of kgexp: torch's builds for GPUs bring it. Where it is not installed these tests are skipped;
`pip install triton` is enough to run them anywhere.
"""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton asks when it is imported


@pytest.fixture(scope="session")
def device():
    pytest.importorskip("triton", reason="Triton is not installed: it comes with torch's builds for GPUs")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def everywhere(device, monkeypatch):
    """Kernels are launched for tensors of any device, and count their launches."""
    import kgexp.kernels
    import kgexp.models.distance
    import kgexp.optim.base

    def usable(*tensors):
        return all(t.dtype == torch.float32 for t in tensors)

    for module in (kgexp.models.distance, kgexp.optim.base):
        monkeypatch.setattr(module, "usable", usable)
    return device
