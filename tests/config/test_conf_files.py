"""The files below conf/ as documentation: complete, explained, and in step with the schemas."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from kgexp.config import config_dir
from kgexp.schemas import SCHEMAS, SECTIONS, Config

CONF = Path(config_dir())
FILES = sorted(path for path in CONF.rglob("*.yaml") if path.parent.name != "local")
CHOICES = [(group, choice) for group, schemas in SCHEMAS.items() for choice in schemas]


def leaves(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted keys of the leaves with their line; lists and empty mappings are leaves, the defaults list is none."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from leaves(value, f"{name}.")
        elif name != "defaults":
            yield name, key.start_mark.line


def keys(path: Path) -> set[str]:
    return {name for name, _ in leaves(yaml.compose(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_every_file_and_every_key_is_explained(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert any(line.startswith("# ") and "@package" not in line for line in lines[:2]), "no comment at the head"
    for name, line in leaves(yaml.compose(text)):
        above = lines[line - 1].lstrip() if line else ""
        assert "  # " in lines[line] or above.startswith("# "), f"{name} has no comment"


def test_the_checker_of_comments_sees_a_bare_key():
    assert list(leaves(yaml.compose("# head\na:\n  b: 1\n  c: [1, 2]\n  d: {}\n"))) == [
        ("a.b", 2),
        ("a.c", 3),
        ("a.d", 4),
    ]


def test_every_choice_has_a_schema_and_every_schema_a_file():
    assert {(p.parent.name, p.stem) for p in FILES if p.parent.name in SCHEMAS} == set(CHOICES)


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_sets_exactly_the_keys_of_its_schema(group, choice):
    schema = SCHEMAS[group][choice]
    assert keys(CONF / group / f"{choice}.yaml") == {f.name for f in fields(schema)}
    target = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8")).get("_target_")
    assert target == getattr(schema, "_target_", None)


def test_the_root_sets_exactly_the_keys_of_its_schema():
    expected = {f.name for f in fields(Config)} - set(SCHEMAS) - set(SECTIONS)
    expected |= {f"{section}.{f.name}" for section, schema in SECTIONS.items() for f in fields(schema)}
    assert {key for key in keys(CONF / "config.yaml") if not key.startswith("hydra.")} == expected


def test_the_root_chooses_from_every_group():
    defaults = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {next(iter(entry)) for entry in defaults if isinstance(entry, dict)} - {"optional local"}
    assert groups == set(SCHEMAS) | {"experiment", "sweep"}
