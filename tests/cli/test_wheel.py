"""The installed package: a wheel in an environment of its own, away from the checkout."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

COMPOSE = """
import kgexp
from hydra import compose, initialize_config_dir
from pathlib import Path
from kgexp.check import check_choice, resolved, without_leftovers
from kgexp.config import config_dir
from kgexp.schemas import SCHEMAS

def url(choices):
    return ["storage.url=s3://x/y"] if {"storage=s3", "storage=gcs"} & set(choices) else []

conf = Path(config_dir())
assert conf.parent == Path(kgexp.__file__).parent, conf
groups = {name: sorted(p.stem for p in (conf / name).glob("*.yaml")) for name in (*SCHEMAS, "experiment", "sweep")}
assert all(groups.values()), groups
places = max(map(len, groups.values()))
with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
    for place in range(places):  # one choice of every group at a time, for composing takes long
        choices = [f"{group}={names[place % len(names)]}" for group, names in groups.items()]
        cfg = compose("config", overrides=["name=x", "dataset.path=x", "hydra/launcher=local", *choices, *url(choices)])
        for group in SCHEMAS:
            check_choice(group, without_leftovers(resolved(cfg), ())[group])
print(sum(map(len, groups.values())))
"""


def shipped(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.yaml") if path.relative_to(root).parts[0] != "local"}


@pytest.mark.slow
def test_a_wheel_composes_every_choice_of_every_group(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("kgexp", "conf", "pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    (source / "conf" / "local").mkdir(exist_ok=True)
    (source / "conf" / "local" / "default.yaml").write_text("seed: 1234\n")  # private: must stay at home

    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    [wheel] = tmp_path.glob("*.whl")

    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=200)
    # The dependencies come from this environment, after the installed package.
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    assert shipped(site / "kgexp" / "conf") == shipped(ROOT / "conf")
    assert not (site / "kgexp" / "conf" / "local").exists()
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [python, "-c", COMPOSE], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20
