"""Commands beside training: `python -m kgexp.tools.X`."""

from kgexp.threads import let_idle_threads_sleep

let_idle_threads_sleep()  # the tools import torch at their top
