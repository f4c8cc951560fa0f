"""Partitioned runs whose rows and checkpoints are on S3: the numbers of local files, killed and resumed, raced."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from s3_server import NEEDS_S3

from kgexp.checkpoint.remote import RemoteCheckpointStore
from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import CheckpointError
from kgexp.run import run
from kgexp.storage.remote import RemoteStorage

pytestmark = [NEEDS_S3, pytest.mark.timeout(180)]

TRAINING = (
    *("sharding=partitioned", "sharding.partitions=3", "sharding.buffer=2", "sharding.slices=1", "scoring=negatives"),
    *("train.batch_size=101", "train.epochs=3", "checkpoint.every_steps=12", "train.threads=1", "tracking=none"),
    *("evaluation.every_epochs=0", "evaluation.splits=[test]", "tracking.progress=none", "train.dtype=float32"),
)


@pytest.fixture
def trained(configured, tmp_path):
    """Runs a configuration in a folder of its own: the result and every tensor of the last checkpoint."""

    def train(name, url=None, options=None, **changes):
        config = configured(*TRAINING)
        config["storage"] = {"_target_": "kgexp.storage.local.LocalStorage", "path": None}
        if url is not None:
            config["storage"] = {
                "_target_": "kgexp.storage.remote.RemoteStorage",
                "url": url,
                "options": {"endpoint_url": options["endpoint_url"]},
                "retries": 2,
            }
        config |= changes
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        run(config, str(folder))

    return train


def tensors(store):
    checkpoint = store.newest()
    names = [("entity", "weight"), ("entity", "sum"), ("relation", "weight"), ("relation", "sum")]
    return checkpoint.step, {key: (reader := checkpoint.tensor(*key)).read(0, reader.shape[0]) for key in names}


def remote(url, options, keep=2):
    return RemoteCheckpointStore(RemoteStorage(url, options, 2).blobs(), keep)


def test_the_numbers_are_those_of_local_files(trained, tmp_path, s3):
    trained("local")
    trained("remote", "s3://graphs/same", s3)
    step, expected = tensors(CheckpointStore(tmp_path / "local" / "checkpoints", 2))
    there, found = tensors(remote("s3://graphs/same", s3))
    assert there == step and all(torch.equal(found[key], expected[key]) for key in expected)
    assert not (tmp_path / "remote" / "checkpoints").exists(), "nothing of the table is on the disk"
    store = remote("s3://graphs/same", s3)
    assert len(store.steps()) == 2, "older checkpoints go"
    named = {name for step in store.steps() for name in store.open(step).files}
    assert set(store._blobs.names("rows/")) == {name for name in named if name.startswith("rows/")}


def test_a_killed_run_goes_on_from_the_newest_checkpoint(trained, configured, graph_folder, tmp_path, s3):
    plain = {key: value for key, value in s3.items() if key != "session"}
    trained("whole")
    command = [
        *(sys.executable, "-m", "kgexp", "dataset=files", f"dataset.path={graph_folder}", *TRAINING),
        *(f"dataset.cache={tmp_path / 'cache'}", "train.device=cpu", f"hydra.run.dir={tmp_path / 'killed'}"),
        *("storage=s3", "storage.url=s3://graphs/killed", f"+storage.options.endpoint_url={plain['endpoint_url']}"),
        *("model.dim=8", "model.init_scale=0.5", "optimizer.lr=0.05", "resume=auto"),
    ]
    store, kills = remote("s3://graphs/killed", s3), 0
    while True:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        before = store.steps()[-1:]
        while kills < 1 and process.poll() is None and store.steps()[-1:] in ([], before):
            time.sleep(0.2)
        if kills < 1 and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        out, _ = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, out
    assert kills, "the run was over before it could be killed"
    assert "resuming after step" in out
    whole, killed = tensors(CheckpointStore(tmp_path / "whole" / "checkpoints", 2)), tensors(store)
    assert whole[0] == killed[0] and all(torch.equal(whole[1][key], killed[1][key]) for key in whole[1])


def test_of_two_writers_of_a_checkpoint_one_wins(s3):
    start = threading.Barrier(2)
    outcomes = []

    class Store(RemoteCheckpointStore):
        def _commit(self, name, index):
            start.wait(timeout=30)
            super()._commit(name, index)

    def write(writer):
        store = Store(RemoteStorage("s3://graphs/race", s3, 2).blobs(), 2)
        try:
            store.save(7, {}, {"writer": writer, "model_weight": "weight"}, {"writer": writer}, {})
            outcomes.append("won")
        except CheckpointError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(outcome == "won" for outcome in outcomes) == [False, True]
    assert "another run" in next(outcome for outcome in outcomes if outcome != "won")
    assert remote("s3://graphs/race", s3).steps() == [7]
