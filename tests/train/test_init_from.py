"""A run begins with the vectors of another one wherever it knows the name, and with drawn ones elsewhere."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from omegaconf import OmegaConf
from rank_threads import as_ranks

from kgexp.check import check
from kgexp.checkpoint.store import CheckpointStore
from kgexp.config import config_dir
from kgexp.data import vocabulary
from kgexp.data.vocabulary import Vocabulary
from kgexp.errors import CheckpointError
from kgexp.run import run
from kgexp.storage.shards import RowReader, write_shard

GROUPS = {"model", "sharding"}
SMALL = ("dataset=files", "dataset.path=", "evaluation=none", "tracking=none", "tracking.progress=none")
SMALL += ("train.threads=1", "train.device=cpu", "train.batch_size=7", "train.steps=0")
SMALL += ("dataset.valid=0", "dataset.test=0", "dataset.name=graph")
#: Also of another choice of a group.
KEPT = ("model.dim=6", "model.init_scale=1")


def lines(entities, relations):
    n, m = len(entities), len(relations)
    return [f"{entities[i]}\t{relations[i % m]}\t{entities[(i + 1) % n]}\n" for i in range(n)]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A graph; the same grown, in another order; and one of other names."""
    folder = tmp_path_factory.mktemp("graphs")
    old, new = [f"e{i}" for i in range(23)], [f"new {i}" for i in range(14)]
    parts = {
        "old": lines(old, ["likes", "knows", "is a"]),
        "grown": lines([*new, *reversed(old[4:])], ["is a", "hates", "likes", "sees"]),
        "other": lines([f"x{i}" for i in range(9)], ["likes"]),
    }
    for name, part in parts.items():
        (folder / f"{name}.tsv").write_text("".join(part))
    return folder


@pytest.fixture(scope="module")
def started(composed, graphs, tmp_path_factory):
    """A graph's name and settings to the folder of a run; Hydra composes once, which is what takes the time."""
    runs, base = tmp_path_factory.mktemp("runs"), composed(*SMALL)

    def start(graph, *overrides, ranks=1, folder=None):
        given = dict(override.split("=", 1) for override in overrides)
        nodes = {
            group: OmegaConf.load(Path(config_dir(), group, f"{given.pop(group)}.yaml")) for group in {*given} & GROUPS
        }
        own = {"dataset.path": f"{graphs / graph}.tsv", "dataset.cache": graphs / "cache"} | given
        plain = OmegaConf.create({key: base._get_node(key) for key in base if key not in nodes} | nodes)
        config = check(OmegaConf.merge(plain, OmegaConf.from_dotlist([*KEPT, *(f"{k}={v}" for k, v in own.items())])))
        folder = folder or runs / f"run-{len(list(runs.iterdir()))}"
        folder.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.fsync", lambda file: None)
            patch.setattr("kgexp.environment.git_commit", lambda: None)
            as_ranks(ranks, lambda world: run(config, str(folder), world))
        return folder

    return start


@pytest.fixture(scope="module")
def old(started):
    return started("old", "train.steps=9")


@pytest.fixture(scope="module")
def drawn(started):
    return started("grown")


def vectors(folder, key=None):
    """Names to rows of the newest checkpoint: of entities, of relations, of their inverses."""
    checkpoint, found = CheckpointStore(folder / "checkpoints", 1).newest(), []
    for table, file in (("entity", "entities"), ("relation", "relations")):
        reader = checkpoint.tensor(table, key or checkpoint.model_weight)
        names = Vocabulary.load(checkpoint.path / f"{file}.arrow")
        names = names.names(range(len(names)))
        rows = reader.read(0, reader.shape[0])
        for start in range(0, len(rows), len(names)):
            found.append(dict(zip(names, rows[start : start + len(names)], strict=True)))
    return found


def assert_grown(folder, old, drawn, counts=(19, 2, 2)):
    """The rows of the run `folder` are those of `old` by name, and those of `drawn` where that has none."""
    for mine, theirs, fresh, count in zip(vectors(folder), vectors(old), vectors(drawn, "weight"), counts, strict=True):
        assert len(mine.keys() & theirs.keys()) == count < len(mine)
        for name, row in mine.items():
            assert torch.equal(row, theirs.get(name, fresh[name])), name


def test_known_names_keep_their_vectors_and_new_ones_are_drawn(started, old, drawn, capsys):
    grown = started("grown", f"train.init_from={old}")
    said = capsys.readouterr().out
    assert "19 of 33 entities and 2 of 4 relations begin with vectors of step 9, from " in said
    assert_grown(grown, old, drawn)
    state = CheckpointStore(grown / "checkpoints", 1).newest().tensor("entity", "sum")
    assert not state.read(0, 33).any(), "optimizer state is not taken over"


@pytest.mark.parametrize("sharding", ["rowwise", "replicated"])
def test_sharding_is_invisible(started, old, drawn, sharding, capsys):
    shards = started("grown", f"train.init_from={old}", f"sharding={sharding}", ranks=2)
    assert "19 of 33 entities and 2 of 4 relations" in capsys.readouterr().out
    assert_grown(shards, old, drawn)


def test_shards_of_the_other_run_and_pieces_of_its_names_are_put_together(started, monkeypatch):
    monkeypatch.setattr(vocabulary, "_HASHED", 5)
    old = started("old", "sharding=rowwise", "model.reciprocal=false", ranks=3)
    grown = started("grown", f"train.init_from={old}", "model.reciprocal=false")
    assert_grown(grown, old, started("grown", "model.reciprocal=false"), (19, 2))


def test_averages_are_what_is_taken_of_a_run_that_has_them(started, drawn):
    old = started("old", "train.steps=9", "averaging.start=0.5", "averaging.every_steps=1")
    assert not torch.equal(*(vectors(old, key)[0]["e7"] for key in ("weight", "average")))
    assert_grown(started("grown", f"train.init_from={old}"), old, drawn)


def test_the_best_checkpoint_is_taken_of_a_run_and_any_by_its_folder(started):
    settings = ("train.steps=4", "checkpoint.every_steps=1", "checkpoint.keep=9")
    folder = started("old", *settings)
    for path in (folder / "checkpoints").iterdir():
        state = json.loads((path / "state.json").read_text())
        index = json.loads((path / "index.json").read_text())
        (path / "state.json").write_text(json.dumps(state | {"best": {"step": 2}}))
        index["files"]["state.json"] = (path / "state.json").stat().st_size
        (path / "index.json").write_text(json.dumps(index))
    for source, step in ((folder, 2), (folder / "checkpoints" / "step_0000000003", 3)):
        grown = started("grown", f"train.init_from={source}")
        saved = CheckpointStore(folder / "checkpoints", 1).open(step)
        names = Vocabulary.load(saved.path / "entities.arrow")
        row = names.id("e7")
        assert torch.equal(vectors(grown)[0]["e7"], saved.tensor("entity", "weight").read(row, row + 1)[0])


def test_a_run_that_goes_on_does_not_look_at_it(started, old, tmp_path):
    gone = shutil.copytree(old, tmp_path / "gone")
    one = started("grown", f"train.init_from={gone}", "train.steps=5")
    half = started("grown", f"train.init_from={gone}", "train.steps=2")
    shutil.rmtree(gone)
    started("grown", f"train.init_from={gone}", "train.steps=5", f"resume={half}", folder=half)
    for whole, parts in zip(vectors(one), vectors(half), strict=True):
        assert all(torch.equal(row, parts[name]) for name, row in whole.items())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.dim=8"], "has model.dim=6, this run model.dim=8"),
        (["model.reciprocal=false"], "has model.reciprocal=True, this run model.reciprocal=False"),
        (["model=distmult"], "has model._target_=kgexp.models.complex.ComplEx, this run model._target_=kgexp.models.d"),
        (["train.init_from=/nowhere"], "/nowhere is no checkpoint and no run that has one"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_does_not_fit_is_refused(started, old, overrides, sentence, ranks):
    sharding = ["sharding=rowwise"] if ranks > 1 else []
    with pytest.raises(CheckpointError, match=r"train\.init_from: ") as caught:
        started("grown", f"train.init_from={old}", *overrides, *sharding, ranks=ranks)
    assert sentence in str(caught.value)


def test_names_in_common_are_asked_for(started, old):
    with pytest.raises(CheckpointError, match="knows none of the 9 entities of graph"):
        started("other", f"train.init_from={old}")


def test_any_rows_are_read_from_the_files_that_hold_them(tmp_path):
    whole = torch.arange(11 * 3, dtype=torch.float64).reshape(11, 3)
    paths = [tmp_path / f"{start}.safetensors" for start in (9, 0, 4)]
    for path, (start, stop) in zip(paths, ((9, 11), (0, 4), (4, 9)), strict=True):
        write_shard(path, {"entity.weight": whole[start:stop]}, start)
    reader = RowReader("entity.weight", paths)
    for rows in ([10, 0, 3, 4, 4, 9], [5], []):
        assert torch.equal(reader.take(torch.tensor(rows, dtype=torch.int64)), whole[rows])


@pytest.mark.parametrize("hashed", [1, 3, 100])
def test_ids_in_another_vocabulary(monkeypatch, hashed):
    monkeypatch.setattr(vocabulary, "_HASHED", hashed)
    mine, other = (Vocabulary(pa.array(list(names), pa.large_string())) for names in ("abcdeé", "xéba"))
    assert mine.ids_in(other).tolist() == [3, 2, -1, -1, -1, 1]
    assert mine.ids_in(other, 1, 3).tolist() == [2, -1]
    assert mine.ids_in(other).dtype == np.int32
