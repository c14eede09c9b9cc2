"""Which way imports may point, and what must not be imported or asserted at all.

Each rule reads a file tree and returns its violations, so that it can be shown a planted one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("parity", "kernels", "reference", "reports")
LEAVES = ("kernels", "reference")
HEAVY = ("duckdb", "jinja2", "numpy", "pandas", "pyarrow", "torch", "triton")
OP_NAME = re.compile(r"fused_\w*rope|apply_rotary|mla_rope")

Rule = Callable[[Path], list[str]]


def sources(root: Path, *folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """Line, dotted name and level (0: absolute) of everything imported, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module or ''}.{alias.name}".lstrip("."), node.level


def top(name: str) -> str:
    return name.partition(".")[0]


def leaves_import_only_their_own_folder(root: Path) -> list[str]:
    """kernels/ and reference/ know neither each other nor parity; inside, imports are relative."""
    violations = []
    for path, tree in sources(root, *LEAVES):
        siblings = {file.stem for file in (root / path).parent.glob("*.py")}
        forbidden = {*FOLDERS, "importlib", *siblings}
        for line, name, level in imports(tree):
            if level >= len(path.parts) or (level == 0 and top(name) in forbidden):
                violations.append(f"{path}:{line} imports {'.' * level}{name}")
    return violations


def only_catalog_and_adapters_name_ops(root: Path) -> list[str]:
    """The harness serves any op: names, strings and imports of ours stay in the catalog."""
    violations = []
    for path, tree in sources(root, "parity"):
        if path.parts[:2] in (("parity", "catalog.py"), ("parity", "adapters")):
            continue
        for node in ast.walk(tree):
            for text in spoken(node):
                if OP_NAME.search(text):
                    violations.append(f"{path}:{node.lineno} names an op in {text[:40]!r}")
        for line, name, _ in imports(tree):
            if top(name.removeprefix("parity.")) in LEAVES:
                violations.append(f"{path}:{line} imports {name}")
    return violations


def spoken(node: ast.AST) -> Iterator[str]:
    """The identifiers and strings of one node."""
    for field in ("id", "attr", "name", "value", "module", "arg"):
        text = getattr(node, field, None)
        if isinstance(text, str) and hasattr(node, "lineno"):
            yield text


def reports_render_without_torch(root: Path) -> list[str]:
    """reports/ runs on a machine that has neither torch nor triton."""
    return [
        f"{path}:{line} imports {name}"
        for path, tree in sources(root, "reports")
        for line, name, level in imports(tree)
        if level == 0 and top(name) in ("torch", "triton")
    ]


def nothing_but_suites_asserts(root: Path) -> list[str]:
    """`python -O` removes assert, so no input may be checked with one."""
    return [
        f"{path}:{node.lineno} asserts"
        for path, tree in sources(root, *FOLDERS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]


# Rule, planted violation, honest twin: file name and text.
RULES: list[tuple[Rule, tuple[str, str], tuple[str, str]]] = [
    (
        leaves_import_only_their_own_folder,
        ("kernels/concat.py", "def f():\n    from parity.reference import concat\n"),
        ("kernels/concat.py", "import torch\nfrom .rotation import rotate\n"),
    ),
    (
        leaves_import_only_their_own_folder,
        ("reference/concat.py", "from ..kernels.concat import tile\n"),
        ("reference/deep/concat.py", "from ..rotation import rotate\n"),
    ),
    (
        leaves_import_only_their_own_folder,
        ("reference/concat.py", "import concat\n"),
        ("reference/concat.py", "import math\n"),
    ),
    (
        leaves_import_only_their_own_folder,
        ("kernels/concat.py", "from importlib import import_module\n"),
        ("kernels/concat.py", "from functools import cache\n"),
    ),
    (
        only_catalog_and_adapters_name_ops,
        ("parity/checks.py", "if op == 'fused_mla_rope_concat':\n    pass\n"),
        ("parity/catalog.py", "CONCAT = 'fused_mla_rope_concat'\n"),
    ),
    (
        only_catalog_and_adapters_name_ops,
        ("parity/checks.py", "module.apply_rotary_pos_emb(t)\n"),
        ("parity/adapters/megatron.py", "module.apply_rotary_pos_emb(t)\n"),
    ),
    (
        only_catalog_and_adapters_name_ops,
        ("parity/cli.py", "from .kernels import concat\n"),
        ("parity/cli.py", "from .reports import terminal\n"),
    ),
    (
        reports_render_without_torch,
        ("reports/html.py", "def f():\n    import torch.cuda\n"),
        ("reports/html.py", "from parity.record import Record\n"),
    ),
    (
        nothing_but_suites_asserts,
        ("parity/checks.py", "def f(x):\n    assert x\n"),
        ("suites/test_checks.py", "def test_f(x):\n    assert x\n"),
    ),
]


def plant(root: Path, file: tuple[str, str]) -> Path:
    path = root / file[0]
    path.parent.mkdir(parents=True)
    path.write_text(file[1])
    return root


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in RULES))
def test_the_repository_obeys(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rules_have_something_to_read(folder: str) -> None:
    assert list(sources(ROOT, folder))


@pytest.mark.parametrize(("rule", "planted", "honest"), RULES)
def test_the_rule_sees_what_is_planted(
    rule: Rule, planted: tuple[str, str], honest: tuple[str, str], tmp_path: Path
) -> None:
    assert rule(plant(tmp_path / "planted", planted))
    assert rule(plant(tmp_path / "honest", honest)) == []


def heavy_after(statement: str) -> set[str]:
    """The heavy packages that a fresh interpreter holds after running ``statement``."""
    code = f"import sys; {statement}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def light_modules() -> list[str]:
    reports = [f"parity.reports.{path.stem}" for path in sorted((ROOT / "reports").glob("*.py"))]
    return ["parity", "parity.catalog", "parity.cli", *reports]


@pytest.mark.parametrize("module", light_modules())
def test_contracts_and_reports_import_nothing_heavy(module: str) -> None:
    assert heavy_after(f"import {module}") == set()


def test_a_heavy_import_is_seen() -> None:
    assert heavy_after("import numpy") == {"numpy"}
