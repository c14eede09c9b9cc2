"""Arms: which folder is compared with which, on real git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parity import git as git_module
from parity.arms import import_roots, project_root, revision, revisions, working_tree, workspace
from parity.git import Refused
from parity.verdict import Exit


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "kernel.py").write_text(text)
    git(folder, "add", "kernel.py")
    git(folder, "commit", "-q", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit on main."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    return folder


def left_over(repository: Path) -> list[str]:
    """Worktrees and private folders that should be gone."""
    trees = git(repository, "worktree", "list", "--porcelain").count("worktree ") - 1
    return ["worktree"] * trees + [p.name for p in (repository / ".parity").glob("trees*")]


def test_the_working_tree_against_the_merge_base(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "switch", "-q", "-c", "change")
    second = commit(repository, "second")
    (repository / "kernel.py").write_text("third")
    (repository / "new.py").write_text("untracked")
    (repository / ".gitignore").write_text("ignored.txt\n")
    (repository / "ignored.txt").write_text("")
    status = git(repository, "status", "--porcelain")
    with revisions(repository, None, None) as (base, head):
        assert (base.commit, base.dirty) == (first, False)
        assert (head.commit, head.dirty, head.ref) == (second, True, "working tree")
        assert (Path(base.root) / "kernel.py").read_text() == "first"
        names = {path.name for path in Path(head.root).iterdir()}
        assert names == {"kernel.py", "new.py", ".gitignore"}
        assert (Path(head.root) / "kernel.py").read_text() == "third"
    assert left_over(repository) == []
    assert git(repository, "status", "--porcelain") == status


def test_two_refs(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    second = commit(repository, "second")
    (repository / "kernel.py").write_text("not committed")
    with revisions(repository, "HEAD~1", "main") as (base, head):
        assert (base.commit, head.commit, head.dirty) == (first, second, False)
        assert (Path(head.root) / "kernel.py").read_text() == "second"
    assert left_over(repository) == []


def test_a_deleted_file_is_missing_in_the_snapshot(repository: Path) -> None:
    (repository / "kernel.py").unlink()
    with revisions(repository, None, None) as (_, head):
        assert list(Path(head.root).iterdir()) == []


def test_a_project_below_the_top_of_its_repository(repository: Path) -> None:
    (repository / "inner").mkdir()
    (repository / "inner" / "pyproject.toml").write_text("")
    with revisions(repository / "inner", None, None) as (_, head):
        assert (Path(head.root) / "pyproject.toml").is_file()


def test_cleaned_up_after_a_failure(repository: Path) -> None:
    commit(repository, "second")
    comparison = revisions(repository, "HEAD~1", "HEAD")
    base, head = comparison.__enter__()
    assert Path(base.root).is_dir()
    assert Path(head.root).is_dir()
    assert not comparison.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert left_over(repository) == []


def test_hooks_of_the_user_do_not_run(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ../../hooked\n")
    hook.chmod(0o755)
    commit(repository, "second")
    with revisions(repository, "HEAD~1", "HEAD"):
        pass
    assert not (repository / "hooked").exists()


def test_run_from_a_hook(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git tells hooks where its index is; taking that over would write into it."""
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    before = (repository / ".git" / "index").read_bytes()
    (repository / "new.py").write_text("")
    with revisions(repository, None, None) as (_, head):
        assert (Path(head.root) / "new.py").exists()
    assert (repository / ".git" / "index").read_bytes() == before


@pytest.mark.parametrize(("base", "head"), [("HEAD", None), ("main", "HEAD")])
def test_one_commit_on_both_sides_is_refused(
    repository: Path, base: str | None, head: str | None
) -> None:
    with pytest.raises(
        Refused, match=r"both commit .* another base, e.g. `--base HEAD~1`"
    ) as refused:
        revisions(repository, base, head).__enter__()
    assert refused.value.code == Exit.NOTHING_COMPARED
    assert left_over(repository) == []


def test_nothing_changed_and_nothing_asked_for_runs_one_commit_twice(repository: Path) -> None:
    """Somebody who takes a change back must see exit code 0, not a refusal."""
    with revisions(repository, None, None) as (base, head):
        assert (base.commit, base.root != head.root, head.dirty) == (head.commit, True, False)


@pytest.mark.parametrize(("base", "head"), [("nowhere", None), (None, "nowhere"), ("--all", None)])
def test_unknown_refs(repository: Path, base: str | None, head: str | None) -> None:
    with pytest.raises(Refused, match="name a commit but git knows no") as refused:
        revisions(repository, base, head).__enter__()
    assert refused.value.code == Exit.USAGE


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"Expected a git repository at .* --base-root"):
        revisions(tmp_path, None, None).__enter__()


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="Expected git on PATH but found none"):
        revisions(tmp_path, None, None).__enter__()


def test_no_commit_yet(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(Refused, match=r"Expected a commit in .* but its branch has none yet"):
        revisions(tmp_path, None, None).__enter__()


def test_no_main_branch(repository: Path) -> None:
    git(repository, "branch", "-m", "trunk")
    with pytest.raises(Refused, match=r"Expected a main branch .* name the base with --base REF"):
        revisions(repository, None, None).__enter__()


def test_the_main_branch_of_the_remote(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    clone = tmp_path / "clone"
    git(clone, "switch", "-q", "-c", "change")
    git(clone, "branch", "-q", "-D", "main")
    commit(clone, "second")
    with revisions(clone, None, None) as (base, _):
        assert base.commit == first


def test_a_shallow_clone_says_how_to_deepen_it(repository: Path, tmp_path: Path) -> None:
    git(repository, "switch", "-q", "-c", "change")
    commit(repository, "second")
    git(repository, "switch", "-q", "main")
    commit(repository, "third")
    url = f"file://{repository}"
    git(tmp_path, "clone", "-q", "--depth=1", "--no-single-branch", "-b", "change", url, "clone")
    with pytest.raises(Refused, match="shallow, so run `git fetch --unshallow` first"):
        revisions(tmp_path / "clone", None, None).__enter__()
    with pytest.raises(Refused, match="knows no 'HEAD~1'; this clone is shallow"):
        revisions(tmp_path / "clone", "HEAD~1", None).__enter__()


def test_unrelated_histories(repository: Path) -> None:
    git(repository, "switch", "-q", "--orphan", "other")
    commit(repository, "second")
    with pytest.raises(Refused, match="share a commit but found none; name the base"):
        revisions(repository, None, None).__enter__()


def test_import_roots(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    base, head = import_roots(tmp_path / "a", tmp_path / "b")
    assert (base.kind, base.root) == ("import_root", str(tmp_path / "a"))
    assert (head.name, head.root) == ("head", str(tmp_path / "b"))


def test_import_roots_that_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(Refused, match="together but got only --base-root"):
        import_roots(tmp_path / "a", None)
    with pytest.raises(Refused, match="Expected a folder to import head from"):
        import_roots(tmp_path / "a", tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"Nothing compared: .* both") as refused:
        import_roots(tmp_path / "a", tmp_path / "link")
    assert refused.value.code == Exit.NOTHING_COMPARED


def test_the_project_is_the_nearest_pyproject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert project_root() == tmp_path.resolve()
    assert working_tree(project_root()).root == str(tmp_path.resolve())


def test_git_ignores_what_parity_writes(repository: Path) -> None:
    workspace(repository)
    (repository / ".parity" / "junk").write_text("")
    assert not git_module.is_dirty(repository)


def test_another_repository(repository: Path, tmp_path: Path) -> None:
    """Its revisions are compared, and only the project is written to."""
    commit(repository, "second")
    project = tmp_path / "project"
    project.mkdir()
    with revisions(project, "HEAD~1", "HEAD", repository) as (base, head):
        texts = [(Path(arm.root) / "kernel.py").read_text() for arm in (base, head)]
        assert texts == ["first", "second"]
        assert Path(base.root).is_relative_to(project)
    assert left_over(repository) == left_over_in(project) == []
    assert not (repository / ".parity").exists()
    (repository / "kernel.py").write_text("third")
    with revision(project, None, "base", repository) as arm:
        assert (arm.name, arm.dirty) == ("base", True)
        assert (Path(arm.root) / "kernel.py").read_text() == "third"
    assert left_over_in(project) == []


def left_over_in(project: Path) -> list[str]:
    return [path.name for path in (project / ".parity").glob("trees*")]


def test_what_a_killed_process_left_is_removed_and_the_living_are_spared(
    repository: Path,
) -> None:
    commit(repository, "second")
    dead = repository / ".parity" / "trees-dead"
    git(repository, "worktree", "add", "-q", "--detach", str(dead / "base"), "HEAD")
    with revisions(repository, "HEAD~1", "HEAD") as (living, _):
        assert not dead.exists()
        with revisions(repository, "HEAD~1", "HEAD"):
            assert (Path(living.root) / "kernel.py").is_file()
        assert (Path(living.root) / "kernel.py").is_file()
    assert left_over(repository) == []


@pytest.fixture
def with_submodule(repository: Path, tmp_path: Path) -> Path:
    """Two commits whose submodule ``lib`` is at "old" and at "new"."""
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    commit(library, "old")
    local = ("-c", "protocol.file.allow=always")
    git(repository, *local, "submodule", "add", "-q", str(library), "lib")
    git(repository, "commit", "-q", "-m", "library")
    commit(library, "new")
    git(repository / "lib", "pull", "-q")
    git(repository, "commit", "-q", "-a", "-m", "newer library")
    return repository


def test_submodules_are_checked_out_at_the_commit_of_each_revision(with_submodule: Path) -> None:
    (with_submodule / "lib" / "kernel.py").write_text("changed")
    for head, expected in (("HEAD", "new"), (None, "changed")):
        with revisions(with_submodule, "HEAD~1", head) as arms:
            texts = [(Path(arm.root) / "lib" / "kernel.py").read_text() for arm in arms]
            assert texts == ["old", expected]
        assert left_over(with_submodule) == left_over(with_submodule / "lib") == []


def test_a_submodule_that_lacks_the_commit_says_how_to_fetch_it(with_submodule: Path) -> None:
    unknown = "0123456789" * 4
    git(with_submodule, "update-index", "--cacheinfo", f"160000,{unknown},lib")
    git(with_submodule, "commit", "-q", "-m", "unknown")
    with pytest.raises(Refused, match="submodule lib but its checkout lacks it; run `git -C lib"):
        revisions(with_submodule, "HEAD~1", "HEAD").__enter__()
    assert left_over(with_submodule) == []


def test_a_submodule_that_is_not_there_stays_empty(with_submodule: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(with_submodule), "clone")
    with revisions(tmp_path / "clone", "HEAD~1", "HEAD") as (base, _):
        assert list((Path(base.root) / "lib").iterdir()) == []
