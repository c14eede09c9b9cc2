"""The documentation is true: commands run, links lead somewhere, tables are those of the code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import click
import duckdb
import pytest

from parity import manual
from parity.catalog import configured
from parity.cli import cli, run
from parity.gate import known
from parity.given import KEYS
from parity.pytest_plugin import OPTIONS
from parity.verdict import EXIT_CODES, Exit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PROGRAMS = {"parity", ".venv/bin/parity", "make", "pytest", "python", "git", "torchrun"}

Block = tuple[str, str, str]  # what stands above it, its language, its text


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    fences = re.split(r"^ *```(.*)\n", page.read_text(), flags=re.M)
    above = fences[0]
    for language, text, after in zip(fences[1::4], fences[2::4], fences[4::4], strict=True):
        yield above, language, text
        above = after


def commands() -> list[str]:
    """Every command of every page, without its comment."""
    found = set()
    for page in PAGES:
        for _, language, text in blocks(page):
            for line in text.replace("\\\n", "").splitlines() if language in ("", "sh") else ():
                command = re.sub(r"\s+# .*", "", line).strip()
                if command.split(" ")[0] in PROGRAMS:
                    found.add(command)
    return sorted(found)


# --- commands that run here, on files that are made for them


def results(folder: Path) -> None:
    """Two JUnit files, of which the second has a failure that the first has too."""
    failed = '<failure message="ValueError: no table">tests/test_a.py:3: in test_a</failure>'
    for name in ("base", "head"):
        case = f'<testcase classname="tests.test_a" name="test_a">{failed}</testcase>'
        (folder / f"{name}.xml").write_text(
            f"<testsuites><testsuite>{case}</testsuite></testsuites>"
        )


def rollouts(folder: Path) -> None:
    """Equal records of two runs, as files and as folders with a column of another name."""
    row = "SELECT 0 prompt_id, 0 sample, 0 position, 7 {}, -0.5 old_logprob, -0.5 train_logprob"
    for name in ("base", "head"):
        (folder / "runs" / name).mkdir(parents=True)
        for column, file in (("token_id", f"{name}.parquet"), ("tok", f"runs/{name}/0.parquet")):
            duckdb.sql(f"COPY ({row.format(column)}) TO '{folder / file}'")


def history(folder: Path) -> None:
    """A repository with a fix on its branch, and a test that passes."""
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "kernels").mkdir()
    (folder / "tests").mkdir()
    (folder / "tests" / "test_a.py").write_text("def test_a(): pass\n")
    (folder / "kernels" / "a.py").write_text("rows = 1\n")
    commit(folder)
    git(folder, "switch", "--quiet", "--create", "my-branch")
    (folder / "kernels" / "a.py").write_text("rows = 1\nheads = 2\n")
    commit(folder)


def concluded(folder: Path) -> None:
    """A gate that has come to its end."""
    shutil.copytree(ROOT / "suites/meta/golden/red/run", folder / ".parity/runs/RUN")


def git(folder: Path, *words: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*command, *words], check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "step")


def own_op(folder: Path) -> None:
    """The documented example of a user's own op."""
    shutil.copytree(DOCS / "examples" / "own_op", folder, dirs_exist_ok=True)


RUN: dict[str, Callable[[Path], None]] = {
    "parity bench --harness": own_op,
    "parity triage base.xml head.xml": results,
    "parity triage base.xml head.xml --json verdicts.json": results,
    "parity triage --base main --head my-branch -- pytest tests": history,
    "parity dumps base.parquet head.parquet": rollouts,
    "parity dumps runs/base/ runs/head/ --column token_id=tok --json dumps.json": rollouts,
    "parity port FIX_COMMIT": history,
    "parity port FIX_COMMIT --paths kernels --head my-branch": history,
    "parity replay --list": concluded,
    "parity report": concluded,
    "parity report --html report.html": concluded,
    "parity report --json report.json": concluded,
    "parity report RUN --html report.html": concluded,
    "parity report RUN --markdown comment.md --junit junit.xml --json report.json": concluded,
    'parity report RUN --summary - >> "$GITHUB_STEP_SUMMARY"': concluded,
}

# --- commands that another test runs, with the same options

GATE, NIGHTLY = "docs/ci/parity-gate.yml", "docs/ci/parity-nightly.yml"  # test_ci_recipes.py
ELSEWHERE = {
    "make test": ".ci/run",
    "parity baseline save FILE": "suites/meta/test_baseline.py",
    "parity baseline save FILE --ref v1.2": "suites/meta/test_baseline.py",
    "parity baseline save FILE --root DIR": "suites/meta/test_baseline.py",
    "parity codegen": GATE,
    "parity codegen --arch sm_90 --json rows.json": GATE,
    'parity codegen --base "$(git merge-base main HEAD)"': GATE,
    "parity codegen --base v1.2 --head my-branch": GATE,
    "parity codegen --base v1.2 --head my-branch --json .parity/runs/<id>/codegen.json": GATE,
    "parity codegen --json rows.json": GATE,
    "parity gate": "docs/tutorial.md",
    'parity gate --base "$(git merge-base below HEAD)"': GATE,
    "parity gate --base v1.2 --head my-branch": GATE,
    "parity gate --baseline FILE": "suites/meta/test_baseline.py",
    "parity gate --ops own_op:OPS --base-root before/ --head-root after/": (
        "suites/meta/test_own_op.py"
    ),
    "parity gate --resume": "suites/meta/test_baseline.py",
    "parity history": "suites/meta/test_nightly.py",
    "parity history e01e0ce2": "suites/meta/test_nightly.py",
    "parity history e01e0ce2 --bisect": "suites/meta/test_nightly.py",
    "parity mutate": "suites/meta/test_mutate.py",
    "parity mutate --json FILE": "suites/meta/test_mutate.py",
    "parity mutate --json ours.json": "suites/meta/test_mutate.py",
    "parity mutate --ops parity --suite suites/meta/usual_suite.py --json usual.json": (
        "suites/meta/test_mutate.py"
    ),
    "parity mutate --sample 40 --seed 1": "suites/meta/test_mutate.py",
    "parity mutate --suite tests/test_rope.py": "suites/meta/test_mutate.py",
    "parity nightly": NIGHTLY,
    "parity nightly --history /mnt/nights --machine h200": NIGHTLY,
    "parity replay case.json": "suites/meta/test_gate.py",
    "parity run --cases cases.jsonl --output cpu.jsonl": "suites/meta/test_tiers.py",
    "parity run --device cpu --output ours.jsonl": "suites/meta/test_tiers.py",
    "parity triage --base main -- torchrun --nproc-per-node=4 -m pytest tests/unit": (
        "suites/meta/test_triage_run.py"
    ),
    "parity triage --repo ../megatron --base main -- "
    "torchrun --nproc-per-node=4 -m pytest tests/unit_tests": "suites/meta/test_triage_run.py",
    "pytest -p parity.pytest_plugin": "suites/meta/test_own_op.py",
    "python -m suites.meta.golden.browse": "suites/meta/test_report_page.py",
    "python -m suites.meta.mutant_table ours.json usual.json": "suites/meta/test_mutate.py",
    "torchrun --nproc-per-node=4 -m pytest suites/distributed": "suites/distributed/conftest.py",
    'make test ARGS="suites/distributed"': ".ci/run",
    'git push origin "$empty:refs/heads/parity-history"': "docs/ci.md",  # test_ci_recipes.py
}
A_GPU, MEGATRON = "it needs a GPU", "it needs a release or checkout of Megatron-Core"
NOT_RUN = {
    "git -C Megatron-LM worktree add ../main d98e8a64dd": MEGATRON,
    "git -C Megatron-LM worktree add ../pr6343 e354f1f575": MEGATRON,
    "make coverage": "it is every test once more",
    "make gate": MEGATRON,
    "make own-mutants": "it takes long",
    'parity bench --base v1.2 --head my-branch --only "THD 4096"': A_GPU,
    "parity bench --json .parity/runs/<id>/bench.json": A_GPU,
    "parity bench --upstream PR6343 --json bench.json": A_GPU,
    "parity codegen --ops megatron --base-root DIR --head-root DIR": MEGATRON,
    "parity gate --ops megatron --base-root DIR --head-root DIR": MEGATRON,
    "parity gate --ops megatron --base-root main --head-root pr6343": MEGATRON,
    "parity gate --ops megatron --repo PATH --base REF --head REF": MEGATRON,
    "parity mutate --ops megatron --root .parity/megatron/0.14.0 --sample 6": MEGATRON,
    "parity mutate --ops megatron --root DIR": MEGATRON,
    "parity race": A_GPU,
    "parity race --ops parity --only concat --json race.json": A_GPU,
    "parity race --json races.json": A_GPU,
    "parity race --only inplace --rope 64 --tiles 2 --warps 4 --repeats 1000": A_GPU,
    "parity race --ops megatron --root DIR --json races.json": A_GPU,
    "parity race --ops megatron --root pr6343 --only fused_apply_mla_rope_for_q --tiles 1,2": A_GPU,
    "parity run --cases cases.jsonl --device cuda --against cpu.jsonl": A_GPU,
    "parity run --device cuda --against ours.jsonl": A_GPU,
    "parity run --ops megatron --root .parity/megatron/0.14.0 --device cpu "
    "--output megatron.jsonl": MEGATRON,
    "parity run --ops megatron --root .parity/megatron/0.14.0": MEGATRON,
    "pytest -n 15 suites --ignore=suites/meta --ignore=suites/distributed": A_GPU,
    "python -m parity.bench.sweep sweep.json": A_GPU,
}
# A replay needs the run that printed the id, and the table its rows; the tutorial has both.
PRINTED = re.compile(r"(\.venv/bin/)?parity replay [0-9a-f]{12}|python -c .*rows\.json.*")


def tutorial() -> list[Block]:
    return [block for block in blocks(DOCS / "tutorial.md") if block[1] in ("", "sh")]


def other() -> list[str]:
    """The commands outside of the tutorial, of which every one runs."""
    there = "".join(text for _, language, text in tutorial() if language == "sh").splitlines()
    return [c for c in commands() if c not in there and not PRINTED.fullmatch(c)]


def test_every_command_has_its_place() -> None:
    """A new command of a page is put where it runs; one that is gone is taken out."""
    listed = [*RUN, *ELSEWHERE, *NOT_RUN]
    assert len(listed) == len(set(listed))
    assert sorted(listed) == other()


@pytest.mark.parametrize(
    "command", [c for c in commands() if re.match(r"(\.venv/bin/)?parity ", c)]
)
def test_a_command_has_these_options(command: str) -> None:
    words = shlex.split(re.sub(r"\$\((.*?)\)|<id>", "x", command).partition(">>")[0])[1:]
    found: click.Command = cli
    while isinstance(found, click.Group):
        name, *words = words
        assert name in found.commands
        found = found.commands[name]
    found.make_context("parity", words)


@pytest.mark.parametrize("command", RUN)
def test_a_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    RUN[command](tmp_path)
    words = shlex.split(command.partition(">>")[0].replace("FIX_COMMIT", "my-branch"))
    assert run(words[1:]) == Exit.OK


@pytest.mark.parametrize("command", ELSEWHERE)
def test_a_command_runs_elsewhere(command: str) -> None:
    """The file that is named for it has its program and each of its options."""
    text = (ROOT / ELSEWHERE[command]).read_text()
    words = [command.split()[0], *re.findall(r"(?<!\S)--[a-z][\w-]*", command)]
    assert not [word for word in words if word not in text]


@pytest.mark.parametrize("command", NOT_RUN)
def test_a_command_that_cannot_run_here(command: str) -> None:
    pytest.skip(f"NOT_RUN: {command!r}: {NOT_RUN[command]}")


def test_the_tutorial(tmp_path: Path) -> None:
    """Every block in its order, with its exit code; what the page shows is in what came out."""
    checkout, folder = tmp_path / "checkout", tmp_path / "checkout"
    shutil.copytree(DOCS / "examples", checkout / "docs" / "examples")
    bin_ = checkout / ".venv" / "bin"
    bin_.mkdir(parents=True)
    for name in ("parity", "pytest"):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
        (bin_ / name).chmod(0o755)
    who = {
        f"GIT_{a}_{b}": "a@example.com" for a in ("AUTHOR", "COMMITTER") for b in ("NAME", "EMAIL")
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment = (
        kept | who | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTEST_ADDOPTS": "-p no:xdist"}
    )
    environment["PATH"] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    said, shown = "", 0
    for above, language, text in tutorial():
        if language == "":
            missing = [line for line in text.splitlines() if flat(line) not in flat(said)]
            assert not missing, said
            shown += 1
            continue
        script = f"{text}code=$?\npwd > {tmp_path}/here\nexit $code\n"
        ran = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
        )
        said, folder = ran.stdout, Path((tmp_path / "here").read_text().strip())
        (code,) = re.findall(r"<!-- exit code (\d+) -->\s*\Z", above) or ["0"]
        assert ran.returncode == int(code), ran.stdout + ran.stderr
    assert shown == 4


def flat(text: str) -> str:
    """One line, without counts: they follow the plan of cases, which every new axis changes."""
    return re.sub(r"(?<![\w.])\d+(?![\w.])", "N", " ".join(text.split()))


def test_the_example_of_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """The page's Python prints what the page says."""
    found = list(blocks(DOCS / "bounds.md"))
    (code,) = [text for _, language, text in found if language == "python"]
    (printed,) = [text for _, language, text in found if language == "" and "may be off" in text]
    exec(code, {})
    assert capsys.readouterr().out == printed


# --- tables and links


def test_the_reference_of_the_command_line() -> None:
    """Made anew by ``python -m parity.manual > docs/cli.md``."""
    assert (DOCS / "cli.md").read_text() == manual.page()


def table(page: Path, title: str) -> dict[str, str]:
    """First and last column of the first table below a title."""
    text = page.read_text().partition(f"\n## {title}\n")[2]
    rows = re.findall(r"^\| (.*) \|$", text.partition("\n## ")[0], re.M)[1:]
    cells = [row.split(" | ") for row in rows if not row.startswith("-")]
    return {name.strip("`"): row[-1] for row in cells for name in row[0].split(", ")}


def test_every_verdict_has_its_exit_code() -> None:
    found = table(DOCS / "gate.md", "Verdicts")
    assert found == {verdict.value: str(int(code)) for verdict, code in EXIT_CODES.items()}


def test_every_exit_code_is_explained() -> None:
    assert set(table(DOCS / "gate.md", "Exit codes")) == {str(int(code)) for code in Exit}


def test_every_key_and_option_has_its_source() -> None:
    page = (DOCS / "config.md").read_text()
    for key in KEYS:
        assert f"[tool.parity] {key}`" in page or f"[tool.parity.{key}]" in page
    for option in OPTIONS:
        assert f"`--parity-{option}`" in page


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    """Passed over, it would leave the ops of a project untested."""
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nop = "own_op:OPS"\n')
    keys = "dumps, known_issues, mutation, ops"
    with pytest.raises(ValueError, match=f"keys among {keys} but got op;"):
        configured(tmp_path)


def test_the_entry_of_a_known_issue(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "write-a-known-issue.md"
    project, entry = (dedent(text) for _, language, text in blocks(page) if language == "toml")
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "known_issues.toml").write_text(entry)
    assert [issue.op for issue in known.load(tmp_path)] == ["my_op"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def anchors(page: Path) -> list[str]:
    """What a heading is called in an address."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert not [name for name in pages if name != "index.md" and f"]({name}" not in index]
