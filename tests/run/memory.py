"""What a process holds in memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ENVIRONMENT


def anonymous(pid: int) -> int:
    """Bytes of memory that a process has for itself, not counting mapped files; 0 where it has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def cost_of_libraries() -> int:
    """What `anonymous` says of a process that has imported all that a rank imports, and done nothing."""
    code = "import kgexp.cli, kgexp.run, kgexp.ranks.job, re; print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | ENVIRONMENT, capture_output=True, check=True)
    found = re.search(rb"RssAnon:\s+(\d+) kB", done.stdout)
    assert found
    return int(found[1]) * 1024
