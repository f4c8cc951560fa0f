"""Kernels compile for a GPU: the interpreter takes much that the compiler refuses."""

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles(device, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = Path(__file__).with_name("compiled.py")
    subprocess.run([sys.executable, script], env=environment, check=True, stdout=subprocess.DEVNULL)
