"""Two arms of per-token records: each difference is seen where it is, and nothing else is."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from parity import cli
from parity.dumps import command as dumps
from parity.dumps.compare import BINS_PER_OCTAVE, k3
from parity.dumps.read import run
from parity.git import Refused
from parity.verdict import Exit

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def rows(samples: int = 3, length: int = 8, prompt: object = "p") -> list[Row]:
    return [
        {
            "prompt_id": f"{prompt}{sample // 2}" if isinstance(prompt, str) else sample // 2,
            "sample": sample % 2,
            "position": position,
            "token_id": 100 * sample + position,
            "old_logprob": -0.5 - position / 16,
            "train_logprob": -0.5 - position / 32,
            "mask": position >= 2,
            "reward": float(sample),
        }
        for sample in range(samples)
        for position in range(length)
    ]


def write(path: Path, records: list[Row]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        frame = pd.DataFrame(records).astype(object)  # read by its name
        duckdb.sql("SELECT * FROM frame").write_parquet(str(path))
        assert len(frame)
    return path


def at(records: list[Row], prompt: str, sample: int, position: int) -> Row:
    key = (prompt, sample, position)
    return next(r for r in records if (r["prompt_id"], r["sample"], r["position"]) == key)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=[".jsonl", ".parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compare(
    base: list[Row] | Path, head: list[Row] | Path, *options: str, suffix: str = ".jsonl"
) -> dict[str, Any]:
    """The JSON file of one comparison, whose exit code is that of the command."""
    paths = [
        arm if isinstance(arm, Path) else write(Path(name + suffix), arm)
        for name, arm in (("base", base), ("head", head))
    ]
    code = cli.run(["dumps", *map(str, paths), "--json", "out.json", *options])
    found: dict[str, Any] = json.loads(Path("out.json").read_text())
    assert found["exit_code"] == code
    return found


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The one sentence of a refusal."""
    capsys.readouterr()
    assert cli.run(["dumps", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.endswith(".\n")
    return captured.err


def test_equal_dumps_pass(suffix: str) -> None:
    found = compare(rows(), rows(), suffix=suffix)
    assert found["exit_code"] == 0
    assert found["rollouts"]["identical"]
    assert found["logprobs"]["old_logprob"]["tokens"] == 18
    assert found["logprobs"]["old_logprob"]["equal"] == 18
    assert found["markdown"].startswith("rollouts identical across arms, 24 tokens, old_logprob")


def test_the_two_formats_hold_the_same(tmp_path: Path) -> None:
    parquet, lines = write(Path("a.parquet"), rows()), write(Path("b.jsonl"), rows())
    assert compare(parquet, lines)["rollouts"]["identical"]


def test_a_token_that_differs_fails_and_is_located(suffix: str) -> None:
    head = rows()
    at(head, "p1", 0, 5)["token_id"] = 7
    at(head, "p0", 1, 6)["token_id"] = 8
    at(head, "p0", 1, 7)["train_logprob"] = 1000.0  # after the divergence: another text
    found = compare(rows(), head, suffix=suffix)
    assert found["exit_code"] == 1
    rollouts = found["rollouts"]
    first = {"prompt_id": "p1", "sample": "0", "position": 5, "base_token": 205, "head_token": 7}
    assert rollouts["first"] == first
    assert [row["position"] for row in rollouts["first_by_sample"]] == [5, 6]
    assert (rollouts["diverged_samples"], rollouts["tokens_that_differ"]) == (2, 2)
    assert found["logprobs"]["train_logprob"]["tokens"] == 18 - 3 - 2
    assert found["logprobs"]["train_logprob"]["max"] == 0


def test_a_masked_token_that_differs_fails() -> None:
    head = rows()
    at(head, "p0", 0, 0)["token_id"] = 7
    assert compare(rows(), head)["exit_code"] == 1


def test_a_sample_that_ends_early_diverges_there(suffix: str) -> None:
    head = [row for row in rows() if (row["prompt_id"], row["position"]) != ("p1", 7)]
    found = compare(rows(), head, suffix=suffix)
    assert found["exit_code"] == 1
    assert found["rollouts"]["first"]["head_token"] is None
    assert found["rollouts"]["rows_only_in_base"] == 1


def test_a_sample_of_one_arm_only_is_no_pass() -> None:
    head = [row for row in rows() if row["prompt_id"] != "p1"]
    found = compare(rows(), head)
    assert found["exit_code"] == 10
    assert found["rollouts"]["samples_only_in"]["base"]["rows"] == 8
    assert not found["rollouts"]["identical"]
    assert compare(head, rows())["exit_code"] == 10


def test_a_mask_that_differs_fails() -> None:
    head = rows()
    at(head, "p0", 0, 4)["mask"] = False
    found = compare(rows(), head)
    assert found["exit_code"] == 1
    assert found["logprobs"]["old_logprob"]["tokens"] == 17


def test_masked_log_probs_do_not_count(suffix: str) -> None:
    head = rows()
    at(head, "p0", 0, 1)["old_logprob"] = 99.0
    found = compare(rows(), head, "--limit", "old_logprob", "0", "0", suffix=suffix)
    assert found["exit_code"] == 0


def test_all_masked_is_no_pass() -> None:
    masked = [row | {"mask": False} for row in rows()]
    assert compare(masked, masked[:])["exit_code"] == 10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_log_prob_that_is_no_number_never_passes(value: float | None, suffix: str) -> None:
    broken, masked = rows(), rows()
    at(broken, "p0", 1, 3)["train_logprob"] = value
    at(masked, "p0", 1, 0)["train_logprob"] = value
    assert compare(rows(), broken, suffix=suffix)["exit_code"] == 1
    assert compare(broken, rows(), suffix=suffix)["exit_code"] == 10
    both = compare(broken, broken[:], suffix=suffix)
    assert both["exit_code"] == 10
    assert both["arms"]["base"]["not_finite"]["train_logprob"]["first"]["position"] == 3
    assert compare(masked, masked[:], suffix=suffix)["exit_code"] == 0


def test_limits_are_held_and_none_is_the_default() -> None:
    head = rows()
    at(head, "p0", 0, 4)["train_logprob"] += 0.25
    assert compare(rows(), head)["exit_code"] == 0
    above = ("--limit", "train_logprob", "0.2")
    assert compare(rows(), head, *above, "0")["exit_code"] == 1
    assert compare(rows(), head, *above, "0.05")["exit_code"] == 1  # 1 of 18 is 0.0556
    assert compare(rows(), head, *above, "0.06")["exit_code"] == 0
    assert compare(rows(), head, "--limit", "train_logprob", "0.25", "0")["exit_code"] == 0
    assert compare(rows(), head, "--limit", "old_logprob", "0", "0")["exit_code"] == 0


def test_configured_limits_are_held_and_no_option_softens_them() -> None:
    limit = '{ column = "train_logprob", above = 0.2 }'
    Path("pyproject.toml").write_text(f"[tool.parity.dumps]\nlimits = [{limit}]\n")
    head = rows()
    assert compare(rows(), head)["exit_code"] == 0
    at(head, "p0", 0, 4)["train_logprob"] += 0.25
    found = compare(rows(), head, "--limit", "train_logprob", "0.2", "0.5")
    assert found["exit_code"] == 1
    assert len(found["limits"]) == 2


@pytest.mark.parametrize(
    "config",
    [
        "limit = 1",
        "limits = 1",
        "limits = [1]",
        "limits = [{ column = 'reward', above = 1 }]",
        "limits = [{ column = 'old_logprob', above = nan }]",
        "limits = [{ column = 'old_logprob', above = -1 }]",
        "limits = [{ column = 'old_logprob', above = '1' }]",
        "limits = [{ column = 'old_logprob', above = 1, share = 1.0 }]",
        "limits = [{ column = 'old_logprob' }]",
        "limits = [",
    ],
)
def test_a_wrong_limit_is_refused(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text(f"[tool.parity.dumps]\n{config}\n")
    refused(capsys, 4, write(Path("a.jsonl"), rows()), write(Path("b.jsonl"), rows()))


def test_nothing_in_common_is_nothing_compared(capsys: pytest.CaptureFixture[str]) -> None:
    base, head = write(Path("a.jsonl"), rows()), write(Path("b.jsonl"), rows(prompt="q"))
    assert "in common" in refused(capsys, 5, base, head)
    assert "both read the file" in refused(capsys, 5, base, base)
    Path("link.jsonl").symlink_to(base)
    assert "both read the file" in refused(capsys, 5, base, "link.jsonl")
    Path("empty.jsonl").touch()
    assert "head holds no row" in refused(capsys, 5, base, "empty.jsonl")


def without(column: str) -> Callable[[list[Row]], None]:
    def change(records: list[Row]) -> None:
        for record in records:
            del record[column]

    return change


def every(column: str, value: Callable[[Any], Any]) -> Callable[[list[Row]], None]:
    def change(records: list[Row]) -> None:
        for record in records:
            record[column] = value(record[column])

    return change


BAD: list[tuple[str, Callable[[list[Row]], None], str]] = [
    ("missing", without("token_id"), "--column token_id=NAME"),
    ("one mask", without("mask"), "mask in head"),
    ("text position", every("position", str), "position in head"),
    ("text log-prob", every("old_logprob", str), "old_logprob in head"),
    ("number id", every("prompt_id", lambda _: 0.5), "to be integer or text but it is number"),
    ("other kind of id", every("sample", str), "sample in head"),
    ("half token", lambda records: records[5].update(token_id=0.5), "token_id in head"),
    ("no token", lambda records: records[5].update(token_id=None), "token_id in head"),
    ("before the start", lambda records: records[5].update(position=-1), "position in head"),
    ("no mask", lambda records: records[5].update(mask=None), "mask in head"),
    ("no id", lambda records: records[5].update(prompt_id=None), "prompt_id in head"),
    ("twice", lambda records: records.append(dict(records[3])), "1 keys repeat, e.g. prompt p0"),
]


@pytest.mark.parametrize(("change", "words"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_a_dump_that_is_not_whole_is_refused(
    change: Callable[[list[Row]], None],
    words: str,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = rows()
    change(head)
    base = write(Path("base" + suffix), rows())
    assert words in refused(capsys, 4, base, write(Path("head" + suffix), head))


def test_ids_of_two_kinds_in_one_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    head = rows(prompt=0)
    head[5]["prompt_id"] = "0"
    base = write(Path("base.jsonl"), rows(prompt=0))
    assert "prompt_id in head" in refused(capsys, 4, base, write(Path("head.jsonl"), head))


def test_integer_ids_are_as_good_as_text(suffix: str) -> None:
    found = compare(rows(prompt=0), rows(prompt=0), suffix=suffix)
    assert (found["exit_code"], found["rollouts"]["common_samples"]) == (0, 3)


def test_files_that_cannot_be_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    base = write(Path("base.jsonl"), rows())
    texts = {
        "cut.jsonl": base.read_text()[:-30],
        "list.jsonl": json.dumps(rows()),
        "binary.jsonl": "\0\1",
        "text.parquet": "not Parquet",
        "rows.csv": "prompt_id,sample\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
        assert name in refused(capsys, 4, base, name)
    assert "there is none" in refused(capsys, 4, base, "nowhere.jsonl")
    whole = write(Path("whole.parquet"), rows()).read_bytes()
    Path("cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "cut.parquet" in refused(capsys, 4, base, "cut.parquet")
    assert "--column" in refused(capsys, 4, base, base, "--column", "token=tok")
    assert "'tok'" in refused(capsys, 4, base, base, "--column", "token_id=tok")


def test_a_folder_of_shards_is_one_dump(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = rows(samples=6)
    shuffled = whole[:]
    random.Random(0).shuffle(shuffled)
    Path("shards/rank 1").mkdir(parents=True)
    write(Path(f"shards/a[1]*'{suffix}"), shuffled[:11])
    write(Path(f"shards/rank 1/b{suffix}"), shuffled[11:])
    Path("shards/_SUCCESS").touch()
    write(Path(f"shards/.b{suffix}"), whole)
    found = compare(whole, Path("shards"), suffix=suffix)
    assert found["exit_code"] == 0
    assert found["arms"]["head"] | {"files": 2, "rows": 48} == found["arms"]["head"]

    base = f"base{suffix}"
    Path(f"shards/c{suffix}.gz").touch()
    assert "c" + suffix in refused(capsys, 4, base, "shards")
    Path(f"shards/c{suffix}.gz").unlink()
    other = [row | {"sample": "0"} for row in whole]
    write(Path(f"shards/c{suffix}"), other)
    assert "sample in head" in refused(capsys, 4, base, "shards")
    Path("mixed").mkdir()
    write(Path("mixed/a.jsonl"), whole)
    write(Path("mixed/a.parquet"), whole)
    assert "one format" in refused(capsys, 4, base, "mixed")


def test_other_names_are_mapped(suffix: str) -> None:
    renamed = [
        {("tok 'id'" if name == "token_id" else name): value for name, value in row.items()}
        for row in rows()
    ]
    found = compare(renamed, renamed[:], "--column", "token_id=tok 'id'", suffix=suffix)
    assert found["exit_code"] == 0


def test_reward_is_compared_where_the_tokens_are_the_same() -> None:
    head = [row | {"reward": row["reward"] + (row["prompt_id"] == "p1")} for row in rows()]
    at(head, "p0", 0, 3)["token_id"] = 7
    assert compare(rows(), head)["reward"] == {"samples": 2, "differ": 1, "max": 1.0}
    without("reward")(head)
    assert compare(rows(), head)["reward"] is None


def test_statistics_are_those_of_numpy(suffix: str) -> None:
    generator = np.random.default_rng(0)
    base = rows(samples=9, length=300)
    head = [dict(row) for row in base]
    for row in head:
        row["train_logprob"] += float(generator.normal() * 10.0 ** generator.integers(-9, 0))
    found = compare(base, head, suffix=suffix)["logprobs"]["train_logprob"]

    frame = pd.DataFrame(base)
    frame["ratio"] = pd.DataFrame(head)["train_logprob"] - frame["train_logprob"]
    frame = frame[frame["mask"]]
    size, ratio = frame["ratio"].abs(), frame["ratio"].to_numpy(np.longdouble)
    assert found["tokens"] == len(frame)
    assert found["max"] == size.max()
    assert found["mean"] == pytest.approx(size.mean(), rel=1e-12)
    assert found["kl"] == pytest.approx(float((np.expm1(ratio) - ratio).mean()), rel=1e-8)
    for name, share in (("median", 0.5), ("p99", 0.99), ("p999", 0.999)):
        exact = np.quantile(size, share, method="inverted_cdf")
        assert exact <= found[name] <= exact * 2 ** (1 / BINS_PER_OCTAVE)
    assert [bucket["from"] for bucket in found["by_position"]] == [2, 4, 8, 16, 32, 64, 128, 256]
    for bucket in found["by_position"]:
        inside = size[frame["position"].between(bucket["from"], bucket["to"])]
        assert (bucket["tokens"], bucket["max"]) == (len(inside), inside.max())
    assert [(b["from"], b["to"], b["tokens"]) for b in found["by_length"]] == [(256, 511, 2682)]
    worst = frame.assign(size=size).sort_values("size", ascending=False).head(10)
    assert [row["position"] for row in found["worst"]] == worst["position"].tolist()


@pytest.mark.parametrize("ratio", [0.0, 1e-12, -1e-6, 9.99e-4, -9.99e-4, 1.001e-3, 0.5, -3.0, 20.0])
def test_the_estimator_keeps_its_digits(ratio: float) -> None:
    from mpmath import mp, mpf

    with mp.workdps(40):
        exact = float(mp.expm1(mpf(ratio)) - mpf(ratio))
    value = duckdb.execute(f"SELECT {k3('r')} FROM (SELECT ?::DOUBLE AS r)", [ratio]).fetchall()
    assert value[0][0] == pytest.approx(exact, rel=1e-9)


def test_the_estimator_finds_a_known_divergence() -> None:
    """Tokens drawn from base: the mean of k3 nears KL(base || head) of two known distributions."""
    base, head = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    counts = np.array([500, 300, 200])  # as often as base says, so the mean is exact
    tokens = np.repeat(np.arange(3), counts)
    arms = []
    for distribution in (base, head):
        arms.append(rows(samples=1, length=1000))
        for row, token in zip(arms[-1], tokens, strict=True):
            row["token_id"], row["mask"] = int(token), True
            row["old_logprob"] = float(np.log(distribution[token]))
    found = compare(*arms)["logprobs"]["old_logprob"]["kl"]
    assert found == pytest.approx(float((base * np.log(base / head)).sum()), rel=1e-9)


def test_text_of_a_dump_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "`@all` | <b>x</b>\n\x1b[31m# red"
    base = rows(prompt=forged)
    head = rows(prompt=forged)
    head[3]["token_id"] = 7
    line = compare(base, head)["markdown"]
    assert "\n" not in line
    assert "\x1b" not in line
    assert "`'@all' / <b>x</b>\\n\\x1b[31m# red0`" in line
    assert "\x1b" not in capsys.readouterr().out


def test_dumps_larger_than_memory_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """300,000 rows an arm with long ids need 130 MB; DuckDB gets 80 and spills the rest."""
    monkeypatch.setattr(dumps, "MEMORY", "80MB")
    for name in ("base", "head"):
        duckdb.sql(
            "SELECT md5((i // 100)::VARCHAR) || md5(i::VARCHAR) AS prompt_id, 0 AS sample, "
            "i % 100 AS position, i AS token_id, -1.0::FLOAT AS old_logprob, "
            f"-1.0::FLOAT AS train_logprob FROM range(300000) r(i) ORDER BY md5('{name}' || i)"
        ).write_parquet(f"{name}.parquet")
    found = compare(Path("base.parquet"), Path("head.parquet"))
    assert (found["exit_code"], found["rollouts"]["common_rows"]) == (0, 300_000)


def test_the_page_on_dumps_says_what_the_command_does() -> None:
    """Its script makes two arms, here of four samples, and its limits are read as it says."""
    page = (ROOT / "docs" / "dumps.md").read_text(encoding="utf-8")
    script, limits = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "toml"))
    assert "range(3145728)" in script
    exec(script.replace("range(3145728)", "range(4096)"), {})
    Path("pyproject.toml").write_text(limits)
    for suffix in (".parquet", ".jsonl"):
        found = compare(Path("base" + suffix), Path("head" + suffix))
        assert (found["exit_code"], found["rollouts"]["common_samples"]) == (0, 4)
        assert len(found["limits"]) == limits.count("column")


def test_nothing_is_left_behind(project: Path) -> None:
    compare(rows(), rows())
    home = project / ".parity"
    assert {file.name for file in home.iterdir()} == {".gitignore", "runs"}
    assert not list((home / "runs").iterdir())


def test_the_command_line_starts_without_the_libraries() -> None:
    code = "import sys, parity.cli; print({'duckdb', 'torch', 'pandas', 'rich'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "set()\n"


def test_a_machine_without_enough_memory_is_told_from_a_bad_file() -> None:
    small = duckdb.connect(config={"memory_limit": "1MB", "temp_directory": ""})
    with pytest.raises(Refused, match="Expected to read base whole but that fails") as refused:
        run(small, "SELECT list(i) FROM range(1000000) AS numbers(i)", "base")
    assert refused.value.code is Exit.FAULT
    with pytest.raises(Refused, match="Expected to read head whole but that fails") as refused:
        run(small, "SELECT 'x'::INTEGER", "head")
    assert refused.value.code is Exit.USAGE
