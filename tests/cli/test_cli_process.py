"""The command as a process: what it imports, help, completion."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_the_command_line_imports_neither_torch_nor_wandb(tmp_path):
    code = "import sys, kgexp.cli; print(sorted({'torch', 'wandb', 'pyarrow', 'numpy'} & set(sys.modules)))"
    result = python("-c", code, folder=tmp_path)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_help_names_the_groups_and_their_choices(tmp_path):
    result = python("-m", "kgexp", "--help", folder=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    assert "model: complex, distmult, rotate, transe" in result.stdout
    assert "storage: gcs, local, memory, s3" in result.stdout
    assert "batch_size: 500" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_completion_offers_the_choices_of_a_group(tmp_path):
    line = "kgexp sharding=n"
    variables = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    result = python("-m", "kgexp", "-sc", "query=bash", folder=tmp_path, **variables)
    assert (result.returncode, result.stdout.split()) == (0, ["sharding=none"])


def test_a_bad_configuration_is_answered_without_torch(tmp_path):
    code = (
        "import sys, kgexp.cli\n"
        "sys.argv[1:] = ['model.dim=3']\n"
        "try: kgexp.cli.main()\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)\n"
    )
    result = python("-c", code, folder=tmp_path)
    assert result.stdout == "2 False\n"
    assert result.stderr.startswith("error: model.dim is 3")
