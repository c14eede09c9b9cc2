"""Every line of a fix is followed through real merges: nothing lost is called standing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parity import cli

BASE = ["def f(x):", "    y = x + 1", "    return y", "", "def g(x):", "    return x * 2"]
FIX = [
    "def f(x):",
    "    if x < 0:",
    "        raise ValueError(f'negative {x}')",
    "    y = x + 1",
    "    return y",
    "",
    "def g(x):",
    "    return x * 3",
    "",
    "def h(x):",
    "    return clamp(x, low=0, high=7)",
]


class Repository:
    """A git repository with one branch per story; `write` changes files, `commit` records them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Nobody")
        self.git("config", "user.email", "nobody@example.invalid")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, name: str, lines: list[str], end: str = "\n") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(line + end for line in lines).encode())

    def commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A fix on top of a base, checked out."""
    # No configuration of the user or the system; one that would break a parser that trusts it.
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text(
        "[diff]\nnoprefix = true\ncontext = 9\ninterHunkContext = 9\nrenames = false\n"
        "external = false\nrelative = true\n[color]\nui = always\n[core]\nquotePath = true\n"
    )
    made = Repository(tmp_path / "repository")
    made.write("a.py", BASE)
    made.write("other.py", ["import os", "print(os.name)"])
    made.commit("base")
    made.write("a.py", FIX)
    made.git("tag", "fix", made.commit("fix"))
    monkeypatch.chdir(made.root)
    return made


def port(*arguments: str) -> dict[str, Any]:
    code = cli.run(["port", *arguments, "--json", "../out.json"])
    found: dict[str, Any] = json.loads(Path("../out.json").read_text())
    assert found["exit_code"] == code
    assert sum(found["counts"].values()) == len(found["lines"])
    return found


def states(found: dict[str, Any]) -> list[str]:
    return [item["state"] for item in found["lines"]]


def now(found: dict[str, Any], index: int) -> tuple[str, int]:
    spot = found["lines"][index]["now"]
    return spot["path"], spot["line"]


def test_the_fix_itself_stands(repository: Repository) -> None:
    found = port("fix")
    assert found["exit_code"] == 0
    assert [item["fix"]["line"] for item in found["lines"]] == [2, 3, 8, 10, 11]
    assert states(found) == ["stands"] * 5
    assert found["came_back"] == []
    assert "5 of 5 lines" in found["sentence"]


def test_lines_pushed_down_stand_where_they_are_now(repository: Repository) -> None:
    repository.write("a.py", ["# licence", "", *FIX[:4], "    log(y)", *FIX[4:]])
    assert [now(port("fix"), index) for index in range(5)] == [
        ("a.py", line) for line in (4, 5, 11, 13, 14)
    ]
    repository.write("a.py", FIX[1:])  # the first line goes
    assert now(port("fix"), 0) == ("a.py", 1)


def test_an_edited_line_is_shown_and_fails(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.replace("high=7", "high=8") for line in FIX]
    repository.write("a.py", lines)
    edit = repository.commit("edit")
    found = port("fix", "--head", "main")
    assert found["exit_code"] == 1
    assert states(found) == ["stands"] * 4 + ["edited"]
    assert found["lines"][4]["now"]["text"] == "    return clamp(x, low=0, high=8)"
    assert found["lines"][4]["commit"] == edit
    assert "->  return clamp(x, low=0, high=8)" in capsys.readouterr().out


def test_indentation_is_an_edit(repository: Repository) -> None:
    repository.write("a.py", [*FIX[:2], FIX[2].strip(), *FIX[3:]])
    found = port("fix")
    assert states(found) == ["stands", "edited", "stands", "stands", "stands"]
    assert found["lines"][1]["similarity"] == 1.0


def test_a_merge_that_took_the_other_side_lost_the_fix(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "feature", "fix~1")
    repository.write("a.py", [*BASE[:5], "    return x * 2  # doubled"])
    repository.commit("feature")
    repository.git("merge", "-q", "-s", "ours", "-m", "merge", "fix")
    found = port("fix", "--head", "feature")
    assert found["exit_code"] == 1
    assert states(found)[:2] == ["lost", "lost"]
    assert states(found)[3:] == ["lost", "lost"]


def test_a_reverted_line_is_lost_and_what_it_replaced_came_back(repository: Repository) -> None:
    repository.write("a.py", [*FIX[:7], "    return x * 2", *FIX[8:]])
    found = port("fix")
    assert states(found) == ["stands", "stands", "lost", "stands", "stands"]
    assert [item["fix"]["text"] for item in found["came_back"]] == ["    return x * 2"]
    assert (found["came_back"][0]["now"]["line"], found["exit_code"]) == (8, 1)


def test_a_removed_line_that_is_written_elsewhere_did_not_come_back(repository: Repository) -> None:
    repository.write("other.py", ["import os", "def twice(x):", "    return x * 2"])
    assert port("fix")["came_back"] == []


def test_moved_lines_are_found_in_the_file_and_elsewhere(repository: Repository) -> None:
    repository.write("a.py", [*FIX[9:], "", *FIX[:9]])
    found = port("fix")
    assert (set(states(found)), found["exit_code"]) == ({"stands", "moved"}, 0)
    repository.write("a.py", FIX[:9])
    repository.write('lib/neu "ü".py', FIX[9:])  # untracked
    found = port("fix")
    assert states(found) == ["stands"] * 3 + ["moved"] * 2
    assert now(found, 4) == ('lib/neu "ü".py', 2)
    assert found["exit_code"] == 0


def test_a_line_that_was_elsewhere_before_is_not_the_moved_one(repository: Repository) -> None:
    """`other.py` had the line all along: the fix's own copy is gone."""
    repository.git("checkout", "-q", "-b", "twin", "fix~1")
    repository.write("other.py", ["import os", FIX[2]])
    repository.commit("a twin of the line")
    repository.write("a.py", FIX)
    repository.git("tag", "twin-fix", repository.commit("fix"))
    repository.write("a.py", [FIX[0], FIX[1], *FIX[3:]])
    assert states(port("twin-fix"))[1] == "lost"


def test_a_renamed_file_keeps_its_lines(repository: Repository) -> None:
    repository.git("mv", "a.py", "b.py")
    repository.write("b.py", ["# renamed", *FIX])
    found = port("fix")
    assert found["exit_code"] == 0
    assert now(found, 0) == ("b.py", 3)
    assert states(found) == ["stands"] * 5


def test_a_renamed_file_with_crlf_keeps_its_lines(repository: Repository) -> None:
    repository.git("mv", "a.py", "b.py")
    repository.write("b.py", FIX, end="\r\n")
    assert (set(states(port("fix"))), now(port("fix"), 4)[1]) == ({"stands"}, 11)


def test_line_endings_do_not_count(repository: Repository) -> None:
    repository.write("a.py", FIX, end="\r\n")
    found = port("fix")
    assert states(found) == ["stands"] * 5
    repository.write("a.py", [*FIX[:10], "    return 7"], end="\r\n")
    assert states(port("fix")) == ["stands"] * 4 + ["lost"]
    repository.write("a.py", FIX, end="\r\n")
    repository.commit("line endings")
    assert cli.run(["port", "HEAD"]) == 5


def test_a_deleted_file_lost_its_lines(repository: Repository) -> None:
    (repository.root / "a.py").unlink()
    found = port("fix")
    assert states(found) == ["lost"] * 5


def test_of_two_equal_lines_one_left_is_one_lost(repository: Repository) -> None:
    repository.write("c.py", ["start()", "end()"])
    repository.commit("c")
    repository.write("c.py", ["start()", "sync()", "work()", "sync()", "sync()", "end()"])
    repository.git("tag", "two", repository.commit("three syncs"))
    repository.write("c.py", ["start()", "sync()", "work()", "end()"])
    assert sorted(states(port("two"))) == ["lost", "lost", "stands", "stands"]
    repository.write("d.py", ["sync()"])  # one of them moved, and answers for one only
    assert sorted(states(port("two"))) == ["lost", "moved", "stands", "stands"]
    repository.write("c.py", ["start()", "work()", "sync()", "end()"])
    assert sorted(states(port("two"))) == ["lost", "moved", "stands", "stands"]


def test_one_line_of_the_target_is_the_edit_of_one_line_only(repository: Repository) -> None:
    repository.write("c.py", ["first = load('a.txt')", "second = load('b.txt')"])
    repository.git("tag", "pair", repository.commit("pair"))
    repository.write("c.py", ["second = load('c.txt')"])
    found = port("pair")
    assert states(found) == ["lost", "edited"]


def test_blank_lines_and_lone_brackets_do_not_count(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("a.py", [*FIX, "", "}", "  ]),"])
    repository.commit("brackets")
    assert cli.run(["port", "HEAD"]) == 5
    assert "adds no line" in capsys.readouterr().err


def test_a_merge_is_what_it_brought_to_its_first_parent(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "side", "fix~1")
    repository.write("side.py", ["one = 1", "two = 2"])
    repository.commit("side")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    repository.git("tag", "merged")
    repository.write("side.py", ["two = 2"])
    found = port("merged")
    assert [item["fix"]["path"] for item in found["lines"]] == ["side.py"] * 2
    assert states(found) == ["lost", "stands"]


def test_a_root_commit_is_a_fix_too(repository: Repository) -> None:
    assert set(states(port("fix~1", "--head", "fix~1"))) == {"stands"}


def test_a_conflict_that_is_not_resolved_yet_is_read_as_it_is(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "feature", "fix~1")
    repository.write("a.py", [*BASE[:5], "    return x * 9"])
    repository.commit("feature")
    merged = subprocess.run(["git", "merge", "-q", "fix"], cwd=repository.root, check=False)
    assert merged.returncode
    index = (repository.root / ".git/index").read_bytes()
    assert states(port("fix")) == ["stands"] * 5
    repository.write("a.py", [*FIX[:7], "    return x * 9", *FIX[8:]])
    assert states(port("fix")) == ["stands", "stands", "edited", "stands", "stands"]
    assert (repository.root / ".git/index").read_bytes() == index


def test_binary_files_stand_byte_for_byte(repository: Repository) -> None:
    data = repository.root / "table.bin"
    data.write_bytes(b"\0\1\2" * 99)
    repository.git("tag", "binary", repository.commit("binary"))
    assert states(port("binary")) == ["stands"]
    repository.git("mv", "table.bin", "moved.bin")
    assert (states(port("binary")), now(port("binary"), 0)) == (["stands"], ("moved.bin", 0))
    repository.git("mv", "moved.bin", "table.bin")
    data.write_bytes(b"\0\1\3" * 99)
    assert (states(port("binary")), port("binary")["exit_code"]) == (["edited"], 1)
    data.unlink()
    assert states(port("binary")) == ["lost"]
    (repository.root / "a.py").write_bytes(b"\0binary now\0")
    assert set(states(port("fix"))) == {"lost"}


def test_a_file_that_became_a_link_lost_its_lines(repository: Repository) -> None:
    (repository.root / "a.py").unlink()
    (repository.root / "a.py").symlink_to("other.py")
    assert set(states(port("fix"))) == {"lost"}


def test_lines_that_look_like_a_patch_are_lines(repository: Repository) -> None:
    lines = [
        "diff --git a/x b/x",
        "@@ -1 +1 @@",
        "--- a/x",
        "+++ b/x",
        "\\ No newline",
        "index 1..2",
    ]
    repository.write("patch.txt", lines)
    repository.git("tag", "patch", repository.commit("patch"))
    (repository.root / "patch.txt").write_text("\n".join(lines[1:]))  # and no last newline
    found = port("patch")
    assert [item["fix"]["text"] for item in found["lines"]] == lines
    assert states(found) == ["lost"] + ["stands"] * 5


def test_text_that_is_not_utf8_or_not_printable(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository.root / "latin.py").write_bytes(b"name = '\xe9\x1b[31m'\n\tindented = 1\n")
    repository.git("tag", "latin", repository.commit("latin"))
    assert cli.run(["port", "latin"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert states(port("latin")) == ["stands"] * 2


def test_paths_narrow_the_fix(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("lib/deep/c.py", ["c = 1"])
    repository.write("d.py", ["d = 1"])
    repository.git("tag", "both", repository.commit("both"))
    (repository.root / "d.py").unlink()
    assert port("both")["exit_code"] == 1
    assert port("both", "--paths", "lib")["exit_code"] == 0
    assert len(port("both", "--paths", "lib", "--paths", "d.py")["lines"]) == 2
    assert cli.run(["port", "both", "--paths", "other.py"]) == 5
    monkeypatch.chdir(repository.root / "lib")
    assert cli.run(["port", "both", "--paths", "deep"]) == 0
    (repository.root / "lib/deep/c.py").unlink()
    assert cli.run(["port", "both", "--paths", "deep"]) == 1


def test_what_git_does_not_know_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["port", "nothing"]) == 4
    assert cli.run(["port", "--", "--all"]) == 4
    assert cli.run(["port", "fix", "--head", "nothing"]) == 4
    assert cli.run(["port"]) == 4
    shallow = tmp_path / "shallow"
    source = f"file://{repository.root}"
    subprocess.run(["git", "clone", "-q", "--depth=1", source, str(shallow)], check=True)
    monkeypatch.chdir(shallow)
    assert cli.run(["port", "HEAD"]) == 4
    (tmp_path / "bare").mkdir()
    monkeypatch.chdir(tmp_path / "bare")
    assert cli.run(["port", "HEAD"]) == 4


def test_the_repository_is_left_as_it_was(repository: Repository) -> None:
    repository.write("new.py", ["new = 1"])

    def everything() -> dict[str, bytes]:
        files = (path for path in repository.root.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = everything()
    port("fix")
    assert everything() == before
