"""Folders as runs and sweeps leave them, by hand: no run is made."""

import json
from pathlib import Path

MRR = "valid/filtered/realistic/both/mrr"
TEST = "test/filtered/realistic/both/"


def config(model="complex.ComplEx", seed=1, **values):
    """A configuration with some of the keys of a real one; `values` by dotted key, with __ for the dot."""
    made = {
        "seed": seed,
        "name": f"{model}-none",
        "train": {"batch_size": 500},
        "dataset": {"name": "toy", "path": "/data/toy"},
        "model": {"_target_": f"kgexp.models.{model}", "dim": 8},
        "optimizer": {"_target_": "kgexp.optim.adagrad.Adagrad", "lr": 0.1},
        "tracking": {"name": f"{model}-{seed}"},
    }
    for key, value in values.items():
        group, _, name = key.partition("__")
        made[group][name] = value
    return made


def trial(sweep: Path, name, settings, mrr=None, status="finished", **result):
    """A run's folder; `mrr` is what it reached at last, on the way by halves."""
    folder = sweep / name
    folder.mkdir(parents=True)
    # YAML reads JSON.
    (folder / "config.yaml").write_text(json.dumps(settings))
    known = {"status": status, "error": None, "seed": settings["seed"], "fingerprint": "f00d"}
    if mrr is not None:
        known |= {"objective_name": MRR, "objective": mrr, "epoch": 4.0, "step": 40, "best_step": 40}
        known |= {"seconds": {"train": 10.0, "evaluate": 2.0, "test": 1.0}, "triples_per_second": 1000.0}
        known |= {"peak_rss": 5_000_000}
        rows = [
            {"step": 10, "train/loss": 3.0},
            {"step": 20, MRR: mrr / 2, "train/seconds": 5.0, "train/epoch": 2.0},
            {"step": 40, MRR: mrr, "train/seconds": 10.0, "train/epoch": 4.0},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if status == "finished":
            metrics = {"mrr": mrr - 0.01, "hits@1": mrr - 0.1, "hits@3": mrr, "hits@10": mrr + 0.1, "mr": 10 / mrr}
            known["metrics"] = {MRR: mrr} | {TEST + name: value for name, value in metrics.items()}
    (folder / "result.json").write_text(json.dumps(known | result))
    return folder


def listed(sweep: Path, *entries, objectives=None, name="named"):
    """Writes `sweep.json`."""
    sweep.mkdir(parents=True, exist_ok=True)
    base = {"folder": None, "overrides": [], "status": "waiting", "error": None, "values": None}
    trials = [base | {"number": i} | entry for i, entry in enumerate(entries)]
    said = {"name": name, "objectives": objectives or {"objective": "maximize"}, "trials": trials}
    (sweep / "sweep.json").write_text(json.dumps(said))
