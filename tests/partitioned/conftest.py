import numpy as np
import pytest
from small_graph import M, N, configured, graph, graph_folder, typed  # noqa: F401  # fixtures

from kgexp.data.load import load


@pytest.fixture(scope="session")
def weighted(graph_folder, tmp_path_factory):  # noqa: F811
    """Overrides of a data set whose triples and relations have weights."""
    folder = tmp_path_factory.mktemp("weighted")
    random = np.random.default_rng(1)
    for name in ("train", "valid", "test"):
        lines = (graph_folder / f"{name}.txt").read_text().splitlines()
        (folder / f"{name}.txt").write_text("".join(f"{line}\t{random.integers(0, 5) / 2}\n" for line in lines))
    (folder / "weights.tsv").write_text("r1\t3\nr2\t0.25\n")
    columns = "dataset.columns=[head,relation,tail,weight]"
    return f"dataset.path={folder}", columns, f"dataset.relation_weights={folder}/weights.tsv"


@pytest.fixture(scope="session")
def weighted_graph(configured, weighted):  # noqa: F811
    return load(configured(*weighted)["dataset"])


@pytest.fixture(scope="session")
def lonely(tmp_path_factory):
    """The settings of a graph of 40 users who are all of one country."""
    folder = tmp_path_factory.mktemp("lonely")
    lines = [f"u{i}\tknows\tu{(i * i + 3) % 40}\n" for i in range(40)] + [f"u{i}\tof\tc\n" for i in range(40)]
    for name, part in (("train", lines), ("valid", lines[:2]), ("test", lines[-2:])):
        (folder / f"{name}.txt").write_text("".join(part))
    (folder / "types.tsv").write_text("knows\tuser\tuser\nof\tuser\tcountry\n")
    return f"dataset.path={folder}", f"dataset.relation_types={folder}/types.tsv", "train.batch_size=7"
