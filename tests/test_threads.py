"""How many threads a process takes."""

import torch

from kgexp import environment, threads
from kgexp.world import Alone


class Shared(Alone):
    """A world in which others run beside this rank: on the same cores, on their own, on another machine."""

    def gather(self, name, value):
        host, *cpus = value
        return [value, value, [host, *(cpu + 8 for cpu in cpus)], ["elsewhere", *cpus]]


def test_ranks_share_the_cores_that_they_may_all_run_on(monkeypatch):
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    before = torch.get_num_threads()
    try:
        assert environment.set_threads("auto") == 8
        assert environment.set_threads("auto", Shared()) == 4
        assert environment.set_threads(3, Shared()) == 3 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
