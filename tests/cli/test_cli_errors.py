"""A mistake on the command line is answered in one sentence."""

import logging
import os
from pathlib import Path

import pytest

from kgexp.errors import ConfigError, NonFiniteError

BAD = [
    # arguments, words of the sentence
    ("model=complx", "no model=complx", "complex, distmult", "did you mean complex?"),
    ("experiment=nope", "no experiment=nope", "umls_complex"),
    ("hydra/launcher=slrm", "no hydra/launcher=slrm", "basic, joblib, local, slurm"),
    ("--config-name=other", "other"),
    ("--config-dir=/nowhere/at/all", "/nowhere/at/all"),
    ("modle=complex", "did you mean model?"),
    ("lr=0.5", "did you mean optimizer.lr?"),
    ("model.dmi=5", "did you mean model.dim?"),
    ("train.epoch=5", "did you mean train.epochs?"),
    ("+nope=1", "nope is not a key"),
    ("+model.nope=1", "model.nope is not a key"),
    ("scoring.negatives=5", "scoring=negatives"),
    ("hydra.run.dirr=x", "--cfg hydra"),
    ("train.epochs=abc", "train.epochs is abc", "whole number"),
    ("model.dim=abc", "model.dim is abc", "whole number"),
    ("train.threads=2.5", "whole number or auto"),
    ("seed=null", "seed is null", "whole number"),
    ("train=3", "train.KEY=VALUE"),
    ("plugins=my_package", "a list"),
    ("model.dim=3", "even"),
    ("dataset=files", "dataset.path=VALUE"),
    ("~model.dim", "model.dim is missing"),
    ("~model", "model"),
    ("loss=null", "GROUP=CHOICE"),
    ("+model=distmult", "model is chosen twice", "without a plus sign"),
    ("seed=0,1", "add -m", "'seed=[0,1]'"),
    ("epochs", "epochs", "KEY=VALUE"),
    ("name=[a", "cannot be read", "quotes"),
    ("name=${nope}", "nope", "not found"),
    ("resume=outputs/runs/nowhere", "resume=outputs/runs/nowhere", "config.yaml"),
]


@pytest.mark.parametrize(("argument", "words"), [(argument, words) for argument, *words in BAD])
def test_a_bad_argument_is_answered_in_one_sentence(kgexp, argument, words):
    outcome = kgexp(argument)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    assert outcome.out == "" and outcome.runs == []
    for word in words:
        assert word in outcome.err


def test_a_resumed_folder_that_is_none_is_not_made(kgexp, tmp_path):
    assert kgexp("resume=outputs/nowhere").code == 2
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_run_keep_their_sentence_and_exit_code(kgexp, run_module):
    for error, code in (
        (ConfigError("too large: lower model.dim."), 2),
        (NonFiniteError("the loss is NaN."), 3),
    ):

        def run(config, folder, error=error):
            raise error

        run_module.run = run
        outcome = kgexp()
        assert (outcome.code, outcome.err) == (code, f"error: {error}\n")


def crash(config, folder):
    raise ZeroDivisionError("division by zero")


def test_a_crash_is_one_line_and_its_traceback_is_in_the_log_file(kgexp, run_module):
    run_module.run = crash
    outcome = kgexp()
    assert outcome.code == 1
    assert outcome.err.startswith("error: ZeroDivisionError: division by zero (")
    assert "KGEXP_TRACEBACK=1" in outcome.err and outcome.err.count("\n") == 1
    log = (outcome.runs[0][1] / "kgexp.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in log and "in crash" in log


@pytest.mark.parametrize("variable", ["KGEXP_TRACEBACK", "HYDRA_FULL_ERROR"])
def test_the_traceback_is_shown_on_request(kgexp, run_module, monkeypatch, variable):
    run_module.run = crash
    monkeypatch.setenv("KGEXP_TRACEBACK", "0")
    monkeypatch.setenv(variable, "1")
    outcome = kgexp()
    assert outcome.code == 1 and "in crash" in outcome.err
    assert outcome.err.endswith("error: ZeroDivisionError: division by zero\n")
    assert os.environ.get("HYDRA_FULL_ERROR") == ("1" if variable == "HYDRA_FULL_ERROR" else None)


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_interrupts_and_stop_signals_have_their_exit_codes(kgexp, run_module, stop, code):
    def run(config, folder):
        raise stop

    run_module.run = run
    outcome = kgexp()
    assert outcome.code == code and "Traceback" not in outcome.err


def test_the_log_file_holds_what_is_logged_and_the_console_does_not(kgexp, run_module):
    run_module.run = lambda config, folder: logging.getLogger("kgexp").info("step 7")
    outcome = kgexp()
    assert "step 7" in (outcome.runs[0][1] / "kgexp.log").read_text(encoding="utf-8")
    assert "step 7" not in outcome.out + outcome.err
    assert Path(outcome.runs[0][1]).name.endswith("-complex-none")
