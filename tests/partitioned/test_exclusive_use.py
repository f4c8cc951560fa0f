"""A slice is in one place at a time: stored before it is fetched again, resident while it is trained, never twice."""

import itertools
import threading
import time

import pytest
import torch
from trained import Trained, cut

from kgexp.errors import CheckpointError, NonFiniteError
from kgexp.sharding.backing import Backing
from kgexp.sharding.buffer import Buffer
from kgexp.sharding.itinerary import Itinerary
from kgexp.sharding.route import Route
from kgexp.sharding.rowfiles import Layout
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import LocalBlobs

N, SEED = 53, 3
CPU = torch.device("cpu")
ORDERS = ("covering", "chained", "inside_out", "outside_in", "affinity", "random")


class Recording(Backing):
    """Fails where two hold a slice; `held` has the memory of those that somebody has fetched and not stored since."""

    def __init__(self, slices, blobs, delay=0.0):
        layout = Layout("entity", {"weight": (torch.float64, (2,)), "sum": (torch.float32, ())})
        super().__init__(layout, slices, lambda ids, into: [tensor.zero_() for tensor in into.values()], blobs)
        self.trained, self.stored = [0] * len(slices), [0] * len(slices)  # versions: how often a slice was trained
        self.fetches, self.threads, self._delay = 0, set(), delay

    def fetch(self, k, into):
        assert self.stored[k] == self.trained[k], f"slice {k} is fetched while its newest version is not written"
        self.threads.add(threading.current_thread().name)
        time.sleep(self._delay)
        super().fetch(k, into)
        assert torch.all(into["weight"] == self.stored[k]), f"an old version of slice {k}"
        self.fetches += 1

    def store(self, k, rows):
        time.sleep(self._delay)
        super().store(k, rows)
        assert torch.all(rows["weight"] == self.trained[k]), f"slice {k} is stored while somebody trains it"
        self.stored[k] = self.trained[k]


def check_slots(buffer, slots):
    """No slice is in two slots, and no slot has two slices."""
    inside = [k for k in range(len(buffer._slices)) if buffer.holds(k)]
    assert len(inside) <= slots and set(buffer.resident) <= set(inside)
    places = [place for part in buffer.ranges(inside) for place in part]
    assert len(places) == len(set(places)) and max(places, default=0) < len(buffer.numbers)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_lost_in_any_order(order, mix, background, tmp_path):
    partitions, parts, held = 5, 2, 3
    slices = Slices.of_ranges([range(N)], [partitions * parts])
    itinerary = Itinerary(partitions, parts, held, order, SEED, mix=mix, spread=mix)
    backing = Recording(slices, LocalBlobs(tmp_path) if mix else None)
    slots = (held + background) * parts
    buffer = Buffer(backing, slots, CPU, background)
    predicted = 0
    for number in range(4):
        visits, before = itinerary.visits(number), buffer.loads
        for index, visit in enumerate(visits):
            later = [other.resident for other in (*visits[index:], *itinerary.visits(number + 1))]
            following = next((resident for resident in later if resident != visit.resident), ())
            if visit.resident != buffer.resident:
                buffer.enter(visit.resident, following)
            assert buffer.resident == visit.resident
            ids = torch.tensor([id for k in visit.resident for id in slices.ids(k)])
            places = buffer.places(ids)
            buffer.touch()
            assert torch.equal(buffer.numbers[places], ids)
            buffer.tensors["weight"][places] += 1
            for k in visit.resident:
                backing.trained[k] += 1
                assert torch.all(buffer.rows(k)["weight"] == backing.trained[k])
            absent = next(k for k in range(len(slices)) if k not in visit.resident)
            with pytest.raises(RuntimeError, match="not in memory"):
                buffer.places(torch.tensor([slices.ids(absent)[0]]))
            buffer.settle()
            check_slots(buffer, slots)
        predicted = itinerary.loads(number)
        if background:
            assert buffer.loads - before == predicted
        else:  # what has left stays until its place is needed, and may come back before
            assert buffer.loads - before <= predicted
    buffer.flush()
    assert backing.stored == backing.trained
    buffer.close()


def test_rows_come_while_others_are_trained(tmp_path):
    """The visit that follows waits for nothing where training takes longer than moving rows."""
    slices = Slices.of_ranges([range(N)], [4])
    backing = Recording(slices, LocalBlobs(tmp_path), delay=0.05)
    buffer = Buffer(backing, 3, CPU, True)
    buffer.enter((0, 1), (1, 2))
    waited = buffer.waited
    time.sleep(0.15)
    buffer.enter((1, 2), (2, 3))
    assert buffer.waited - waited < 0.04 and buffer.loads == 3
    assert any(name.startswith("rows") for name in backing.threads)
    buffer.close()


@pytest.mark.parametrize("mix", [True, False])
def test_what_is_trained_next_is_known_from_the_first_visit_of_a_stay(configured, graph, mix):
    trained = Trained(configured("scoring=negatives", *cut(4, 2, mix=mix, spread=mix)), graph)
    batches = trained.batches
    legs = [leg for number in range(3) for leg in batches.pass_legs(number)]
    for leg, later in itertools.pairwise(legs):
        if leg.visit.resident != later.visit.resident:
            assert batches.next_resident(leg) == later.visit.resident
        else:
            assert batches.next_resident(leg) == batches.next_resident(later)


def test_a_training_run_moves_what_its_itinerary_says(configured, graph, tmp_path):
    trained = Trained(configured("scoring=negatives", *cut(5, 2, slices=2)), graph, tmp_path)
    itinerary, counted = trained.parts.sharding.itinerary(graph.num_entities, trained.parts.config["seed"]), 0
    for number in range(3):
        trained.train(trained.batches.calendar.steps(number + 1) - trained.step)
        counted += itinerary.loads(number)
        assert trained.entity.buffer.loads == counted


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("files", [True, False])
def test_rows_that_are_not_finite_are_never_stored(background, files, tmp_path):
    slices = Slices.of_ranges([range(N)], [4])
    backing = Recording(slices, LocalBlobs(tmp_path) if files else None)
    buffer = Buffer(backing, 3, CPU, background)
    buffer.enter((0, 1))
    buffer.touch()
    buffer.rows(1)["sum"][2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"entity\.sum holds NaN or infinity among the rows 13 to 25"):
        buffer.enter((2, 3))
        buffer.flush()
    assert torch.all(backing.read(1, "sum", 0, 13) == 0)
    assert not list(tmp_path.rglob("*-00001.*"))


def test_a_row_that_is_not_finite_is_in_no_checkpoint(configured, graph, tmp_path):
    trained = Trained(configured("scoring=negatives", *cut(3, 2)), graph, tmp_path).train(8)
    store = trained.save(tmp_path)
    ids = torch.tensor([trained.entity.slices.ids(trained.entity.buffer.resident[0])[0]])
    trained.entity.update(Route(ids), torch.full((1, 8), torch.inf, dtype=torch.float64))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    trained.step += 1
    with pytest.raises(NonFiniteError, match="entity"):
        trained.save(tmp_path)
    assert store.steps() == [8] and set(before) <= {path.name for path in tmp_path.rglob("*")}


def test_a_file_that_cannot_be_fetched_ends_in_its_name(tmp_path):
    """Also where the other thread meets it."""
    slices, blobs = Slices.of_ranges([range(N)], [4]), LocalBlobs(tmp_path)
    backing = Recording(slices, blobs)
    buffer = Buffer(backing, 3, CPU, True)
    buffer.enter((0, 1))
    buffer.touch()
    buffer.tensors["weight"] += 1
    backing.trained[0] = backing.trained[1] = 1
    buffer.enter((2, 3))
    buffer.settle()
    (gone,) = tmp_path.rglob("*-00000.*")
    gone.unlink()
    buffer.enter((2, 3), (0, 2))
    with pytest.raises(CheckpointError, match=gone.name):
        buffer.enter((0, 2))
    assert not buffer.holds(0)
