import shutil
from pathlib import Path

import pytest
import torch

from kgexp.errors import ConfigError
from kgexp.storage.base import Storage
from kgexp.storage.local import LocalStorage
from kgexp.storage.memory import MemoryStorage

CPU = torch.device("cpu")


@pytest.mark.parametrize("storage", [MemoryStorage(), LocalStorage()], ids=["memory", "local"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(501, 7), (501,), (1, 1), (0, 7)])
def test_gives_an_independent_writable_tensor_for_every_name(
    storage: Storage, dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    storage.open(tmp_path)
    weight = storage.empty("entity.weight", shape, dtype, CPU)
    state = storage.empty("entity.sum", shape, dtype, CPU)
    weight.copy_(torch.arange(weight.numel()).view(shape))
    state.fill_(-1)
    assert weight.shape == state.shape == shape
    assert weight.dtype == state.dtype == dtype
    assert weight.is_contiguous()
    assert weight.flatten().tolist() == list(range(weight.numel()))
    assert (state == -1).all()
    storage.close()


def test_local_rows_are_the_bytes_of_the_file(tmp_path: Path) -> None:
    storage = LocalStorage()
    storage.open(tmp_path)
    rows = storage.empty("entity.weight", (501, 3), torch.float32, CPU)
    file = tmp_path / "tables" / "entity.weight.bin"
    assert file.stat().st_size == 501 * 3 * 4
    rows.copy_(torch.randn(501, 3, generator=torch.Generator().manual_seed(0)))
    assert file.read_bytes() == rows.numpy().tobytes()
    rows[500, 2] = 17.0
    assert file.read_bytes()[-4:] == torch.tensor(17.0).numpy().tobytes()


def test_local_files_are_sparse_until_written(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.open(tmp_path / "run")
    storage.empty("entity.weight", (1_000_003, 64), torch.float32, CPU)
    assert (tmp_path / "entity.weight.bin").stat().st_blocks * 512 < 1_000_000
    storage.close()


def test_local_files_go_at_close_and_their_tensors_stay_usable(tmp_path: Path) -> None:
    storage = LocalStorage()
    storage.open(tmp_path)
    rows = storage.empty("entity.weight", (501, 3), torch.float32, CPU)
    rows.fill_(2)
    storage.close()
    storage.close()
    assert list(tmp_path.iterdir()) == []
    assert rows.sum() == 2 * 501 * 3


def test_close_leaves_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    storage = LocalStorage(str(tmp_path))
    storage.open(tmp_path / "run")
    storage.empty("entity.weight", (5, 3), torch.float32, CPU)
    storage.close()
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_that_a_killed_run_left_is_made_anew(tmp_path: Path) -> None:
    killed = LocalStorage(str(tmp_path))
    killed.open(tmp_path)
    old = killed.empty("entity.weight", (501, 30), torch.float32, CPU).fill_(9)
    storage = LocalStorage(str(tmp_path))
    storage.open(tmp_path)
    new = storage.empty("entity.weight", (5, 3), torch.float32, CPU)
    assert (new == 0).all()
    assert (old == 9).all()  # a process that still maps the old file reads on
    assert (tmp_path / "entity.weight.bin").stat().st_size == 60
    storage.close()


def test_local_refuses_a_gpu(tmp_path: Path) -> None:
    storage = LocalStorage()
    storage.open(tmp_path)
    with pytest.raises(ConfigError, match=r"not device cuda: set train\.device=cpu or storage=memory"):
        storage.empty("entity.weight", (5, 3), torch.float32, torch.device("cuda"))


def test_local_refuses_what_the_disk_cannot_hold(tmp_path: Path) -> None:
    storage = LocalStorage()
    storage.open(tmp_path)
    with pytest.raises(ConfigError, match=r"needs 4,000,000\.0 GB for .*entity\.weight\.bin.*set storage\.path"):
        storage.empty("entity.weight", (10**12, 1000), torch.float32, CPU)
    assert not (tmp_path / "tables" / "entity.weight.bin").exists()


def test_room_promised_to_one_table_is_not_given_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    storage = LocalStorage()
    storage.open(tmp_path)
    storage.empty("entity.weight", (600, 2500), torch.float32, CPU)  # 6 MB of 10
    with pytest.raises(ConfigError, match="storage=local needs"):
        storage.empty("entity.sum", (600, 2500), torch.float32, CPU)
    storage.close()


def test_local_names_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"storage\.path: the folder .*file/tables for tables cannot be made"):
        LocalStorage(str(tmp_path / "file" / "tables")).open(tmp_path)
