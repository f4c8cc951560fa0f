"""Bad inputs through the real command and a real run: one sentence that names the place, no traceback, nothing trained.

`pytest -rP` prints the table.
"""

import gzip
import sys

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from kgexp.cli import main

GOOD = b"a\tr\tb\n" * 3 + b"b\tr\tc\n" * 3


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


#: name, files of the folder `g`, further arguments, words of the sentence
DATA = [
    ("folder missing", {}, (), ["g does not exist", "dataset.path"]),
    ("no train", {"valid.txt": GOOD}, (), ["train"]),
    ("train twice", {"train.txt": GOOD, "train.tsv": GOOD}, (), ["train.tsv", "train.txt"]),
    ("empty file", {"train.txt": b""}, (), ["train.txt", "empty"]),
    ("only line ends", {"train.txt": b"\n\n"}, (), ["train.txt"]),
    ("two columns", {"train.txt": GOOD + b"a\tr\n"}, (), ["train.txt", "7", "found 2"]),
    ("four columns", {"train.txt": GOOD + b"a\tr\tb\tc\n"}, (), ["train.txt", "7", "found 4", "dataset.columns"]),
    ("spaces for tabs", {"train.txt": b"a r b\n"}, (), ["train.txt", "1", "found 1"]),
    ("blank line inside", {"train.txt": GOOD + b"\n" + GOOD}, (), ["train.txt", "7"]),
    ("empty head", {"train.txt": GOOD + b"\tr\tb\n"}, (), ["train.txt", "7", "head"]),
    ("empty relation", {"train.txt": GOOD + b"a\t\tb\n"}, (), ["train.txt", "7", "relation"]),
    ("empty tail", {"train.txt": GOOD + b"a\tr\t\n"}, (), ["train.txt", "7", "tail"]),
    ("not UTF-8", {"train.txt": GOOD + b"a\tr\t\xff\xfe\n"}, (), ["train.txt", "7", "UTF-8"]),
    ("UTF-16", {"train.txt": "a\tr\tb\n".encode("utf-16")}, (), ["train.txt", "1", "UTF-8"]),
    ("NUL byte", {"train.txt": GOOD + b"a\tr\tb\x00\n"}, (), ["train.txt", "7", "NUL"]),
    ("bad test line", {"train.txt": GOOD, "test.txt": b"a\tr\tb\na\tr\n"}, (), ["test.txt", "2"]),
    ("empty valid", {"train.txt": GOOD, "valid.txt": b""}, (), ["valid.txt", "empty"]),
    ("cut archive", {"train.txt.gz": gzip.compress(GOOD * 99)[:-20]}, (), ["train.txt.gz"]),
    ("no archive", {"train.txt.gz": GOOD}, (), ["train.txt.gz"]),
    *(
        (f"weight {w}", {"train.txt": f"a\tr\tb\t1\na\tr\tc\t{w}\n".encode()}, ("weighted",), ["train.txt", "2", w])
        for w in ("heavy", "nan", "-0.5", "inf")
    ),
    ("weights all 0", {"train.txt": b"a\tr\tb\t0\n"}, ("weighted",), ["weight of train is 0"]),
]
RUNS = [
    (("model.dim=3",), ["model.dim is 3", "even"]),
    (("model.dim=2000000000",), ["GB of memory", "are free", "model.dim"]),
    (("train.device=cuda",), ["train.device=cuda", "no GPU"]),
    (("evaluation.objective=realistic/both/mmr",), ["evaluation.objective", "realistic/both/mrr"]),
    (("evaluation=none", "early_stopping.patience=3"), ["early_stopping.patience", "validations"]),
    (("schedule=plateau", "evaluation=none"), ["schedule=plateau", "constant"]),
    (("dataset.columns=[head,tail]",), ["dataset.columns"]),
    (("model._target_=os.system",), ["model._target_", "plugins"]),
    (("regularizer=none", "regularizer.weight=1"), ["regularizer=n3"]),
    (("storage=local", "storage.path=/proc/nowhere"), ["/proc/nowhere", "storage.path"]),
    (("dataset=files", "dataset.path=/dev/null"), ["/dev/null"]),
]


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """The command with arguments, in an empty folder: exit code and what stood on the two streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("KGEXP_CACHE", str(tmp_path / "cache"))

    # Hydra composes a first time only to see whether a file asks for a sweep: half of the time.
    monkeypatch.setattr(Hydra, "get_mode", lambda *args, **options: None)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["kgexp", *arguments, "train.threads=1"])
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, *capsys.readouterr()

    return command


def check_sentence(outcome, words, tmp_path, label):
    code, out, err = outcome
    lines = err.splitlines()
    print(f"{label} -> exit {code}: {err.rstrip()}")
    assert code == 2
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    assert "Traceback" not in out + err
    for word in words:
        assert word in err
    assert not list(tmp_path.glob("outputs/**/checkpoints"))


@pytest.mark.parametrize(("files", "more", "words"), [case[1:] for case in DATA], ids=[case[0] for case in DATA])
def test_bad_data(answer, tmp_path, request, files, more, words):
    for name, content in files.items():
        write(tmp_path / "g" / name, content)
    weighted = ["dataset.columns=[head,relation,tail,weight]"] if "weighted" in more else []
    outcome = answer("dataset=files", f"dataset.path={tmp_path / 'g'}", *weighted)
    check_sentence(outcome, words, tmp_path, request.node.callspec.id)


@pytest.mark.parametrize(("arguments", "words"), RUNS, ids=[" ".join(case[0]) for case in RUNS])
def test_bad_configurations(answer, tmp_path, arguments, words):
    check_sentence(answer(*arguments), words, tmp_path, " ".join(arguments))
