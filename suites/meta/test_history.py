"""What is said of a history: on synthetic nights, where the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, combinations
from math import comb
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parity import cli
from parity.history import drift, store
from parity.history.compare import compare
from parity.history.night import Failure, Key, Measure, Missing, Night, Passed, Row, Total
from parity.history.signatures import Change, moves
from parity.history.store import History
from parity.verdict import Exit

NIGHTS = 60
OPS = tuple(f"op{i}" for i in range(6))
NEW, FLICKER, OLD = ((op, "values | y | wrong values") for op in OPS[:3])
STEP = ("op3", "headroom", "y")
QUIET = {"op4": 0.0}  # an op whose numbers do not scatter at all


def failure(key: Key, cases: int = 3) -> Failure:
    return Failure(*key, "far off", key[1], "Expected y.", "0" * 12, "{}", cases)


def rows(random: Random, failing: Sequence[Key], step: float = 1.0) -> tuple[Row, ...]:
    """Six ops with twelve headrooms and six times, each with noise of its own."""
    found: list[Row] = [failure(key) for key in failing]
    for op in OPS:
        found.append(Total(op, 100, 100, 0, "plan"))
        for name, level in (("y", 0.8), ("x.grad", 0.3)):
            moved = step if (op, "headroom", name) == STEP else 1.0
            noise = random.gauss(1, QUIET.get(op, 0.015))
            found.append(Measure(op, "headroom", name, moved * level * noise))
        found.append(Measure(op, "time", "seconds of a case", random.lognormvariate(-3, 0.1)))
    return tuple(found)


def night(number: int, commit: str, kept: tuple[Row, ...], machine: str = "one") -> Night:
    started = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T02:00:00+00:00"
    return Night(f"n{number:03}", machine, number, started, "gpu", "torch 2", commit, "", kept)


def sixty(seed: int, *, planted: bool) -> list[Night]:
    """Sixty nights; a commit lasts one night or more; one old failure is there throughout.

    Planted: ten percent more headroom from night 30, a failure from night 50, and one that shows
    on three nights of one commit and not on the others.
    """
    random = Random(seed)
    commits = list(accumulate(random.random() < 0.6 for _ in range(NIGHTS)))
    commits[19:26] = [commits[19]] * 7
    commits[50:] = [commit + 1 for commit in commits[50:]]
    found: list[Night] = []
    for number in range(NIGHTS):
        failing = [OLD]
        failing += [NEW] if planted and number >= 50 else []
        failing += [FLICKER] if planted and number in (20, 23, 24) else []
        step = 1.1 if planted and number >= 30 else 1.0
        kept = rows(random, failing, step)
        gone = {key for earlier in found for key in earlier.failures()} - {*failing}
        kept += tuple(Passed(*key) for key in gone)
        found.append(night(number, f"c{commits[number]}", kept))
    return found


def told(nights: list[Night]) -> tuple[set[tuple[Change, Key]], set[tuple[object, ...]]]:
    """Everything that sixty reports say has moved: failures, and drifts with their first night."""
    moved, drifted = set(), set()
    for count in range(2, len(nights) + 1):
        seen = nights[:count]
        moved |= {(m.change, m.failure.key) for m in moves(seen) if m.change != Change.KNOWN}
        drifted |= {(d.series, d.first.number) for d in drift.drifts(seen)}
    return moved, drifted


@pytest.mark.parametrize("seed", range(5))
def test_what_is_planted_in_sixty_nights_is_reported_and_nothing_else(seed: int) -> None:
    moved, drifted = told(sixty(seed, planted=True))
    assert moved == {(Change.NEW, NEW), (Change.FLICKERING, FLICKER)}
    assert drifted == {(STEP, 30)}


@pytest.mark.parametrize("seed", range(5))
def test_sixty_quiet_nights_give_no_alarm(seed: int) -> None:
    assert told(sixty(seed, planted=False)) == (set(), set())


def test_a_step_that_is_too_small_to_act_on_is_no_drift() -> None:
    values = [1.0] * 40 + [1.04] * 7
    assert drift.chance(values[:-7], values[-7:]) < drift.RATE / 100
    assert drifting(values) == []
    assert [d.first.number for d in drifting([1.0] * 40 + [1.06] * 7)] == [40]


def drifting(values: Sequence[float]) -> list[drift.Drift]:
    total = Total("op", 1, 1, 0, "plan")
    kept = [(total, Measure("op", "headroom", "y", value)) for value in values]
    return drift.drifts([night(i, "c", rows) for i, rows in enumerate(kept)])


def rising(values: Sequence[float]) -> list[list[int]]:
    """For each night the first nights of the rises in a count that it tells of."""
    total = Total("op", 1, 1, 0, "plan")
    nights = [
        night(i, "c", (total, Measure("op", "cost", "forward launches", value)))
        for i, value in enumerate(values)
    ]
    told = (drift.drifts(nights[: count + 1]) for count in range(len(nights)))
    return [[found.first.number for found in drifts] for drifts in told]


def test_a_count_that_rises_is_told_at_once_and_for_a_week() -> None:
    assert rising([2.0] * 3 + [3.0] * 9) == [[]] * 3 + [[3]] * 7 + [[]] * 2


def test_a_count_that_stays_falls_or_comes_back_is_no_drift() -> None:
    assert not any(rising([2.0, 2.0, 2.05, 2.05, 1.0, 1.0]))
    assert rising([2.0, 3.0, 2.0]) == [[], [1], []]


def test_other_fixed_cases_begin_a_new_series() -> None:
    nights = [
        night(i, "c", (Total("op", 1, 1, 0, f"plan {i < 40}"), Measure("op", "headroom", "y", v)))
        for i, v in enumerate([1.0] * 40 + [2.0] * 10)
    ]
    assert drift.drifts(nights) == []


@pytest.mark.parametrize(("ran", "expected"), [(1, [40]), (2, [])])
def test_a_night_that_did_not_run_everything_is_left_out(ran: int, expected: list[int]) -> None:
    values = [1.0] * 40 + [1.2] * 6 + [1.0] + [1.2]
    nights = [
        night(i, "c", (Total("op", 2, 2, 0, "plan"), Measure("op", "headroom", "y", value)))
        for i, value in enumerate(values)
    ]
    nights[46] = replace(nights[46], rows=(Total("op", 2, ran, 0, "plan"), *nights[46].rows[1:]))
    assert [d.first.number for d in drift.drifts(nights)] == expected


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 2), (4, 4), (6, 3)])
def test_the_chance_is_that_of_counting_every_order(before: int, after: int) -> None:
    everything = range(before + after)
    scores = [
        sum(late > early for late in chosen for early in set(everything) - set(chosen))
        for chosen in combinations(everything, after)
    ]
    for score in range(before * after + 1):
        values = next(c for c in combinations(everything, after) if _score(c, everything) >= score)
        mine = _score(values, everything)
        chance = drift.chance([v for v in everything if v not in values], values)
        assert chance == sum(s >= mine for s in scores) / comb(before + after, after)


def _score(chosen: Sequence[int], everything: Sequence[int]) -> int:
    return sum(late > early for late in chosen for early in set(everything) - set(chosen))


def test_equal_values_are_no_drift() -> None:
    assert drift.chance([1.0] * 50, [1.0] * 7) == 1.0


def short(*nights: tuple[str, Sequence[Row]]) -> list[Night]:
    """Nights of one op whose one fixed case always runs: commit and further rows of each."""
    total = Total("op0", 1, 1, 0, "plan")
    return [night(i, commit, (total, *kept)) for i, (commit, kept) in enumerate(nights)]


def changes(*nights: tuple[str, Sequence[Row]]) -> list[Change]:
    return [moved.change for moved in moves(short(*nights))]


FAILS, GONE = (failure(NEW, 1),), (Passed(*NEW),)
FRESH = (failure(NEW, 0),)  # shown by a case that is not one of the fixed ones


@pytest.mark.parametrize(
    ("nights", "expected"),
    [
        ([("a", ()), ("b", FAILS)], Change.NEW),
        ([("a", FAILS), ("b", FAILS)], Change.KNOWN),
        ([("a", FAILS), ("b", GONE)], Change.FIXED),
        ([("a", FAILS), ("b", ())], Change.NOT_RUN),
        ([("a", ()), ("b", FRESH)], Change.FOUND),
        ([("a", FRESH), ("b", FRESH)], Change.KNOWN),
        ([("a", FRESH), ("b", GONE)], Change.FIXED),
        ([("a", ()), ("a", FAILS)], Change.FLICKERING),
        ([("a", FAILS), ("a", GONE)], Change.FLICKERING),
        ([("a", FAILS), ("b", GONE), ("c", FAILS)], Change.FLICKERING),
        ([("a", FAILS), ("b", (failure(NEW, 2),))], Change.SPREADING),
        ([("a", (replace(failure(NEW, 1), band="bits"),)), ("b", FAILS)], Change.SPREADING),
        ([("a", (failure(NEW, 2),)), ("b", FAILS)], Change.KNOWN),
        ([("a", FAILS), *[("b", GONE)] * 8, ("c", FAILS)], Change.NEW),
        ([("a", FAILS), ("b", GONE), ("c", GONE)], None),
    ],
)  # fmt: skip
def test_what_becomes_of_a_failure(
    nights: list[tuple[str, Sequence[Row]]], expected: Change | None
) -> None:
    assert changes(*nights) == ([] if expected is None else [expected])


def report(nights: list[Night], *, interrupted: bool = False) -> dict[str, Any]:
    *_, tonight = nights
    commits = {("a", "b"): ["b Break it"]}
    history = History(tuple(nights), ())
    return compare(history, tonight, lambda *pair: commits.get(pair), interrupted=interrupted)


@pytest.mark.parametrize(
    ("nights", "code"),
    [
        ([("a", ())], Exit.NOTHING_COMPARED),
        ([("a", ()), ("b", ())], Exit.OK),
        ([("a", FAILS), ("b", FAILS)], Exit.OK),
        ([("a", ()), ("b", FAILS)], Exit.REGRESSION),
        ([("a", ()), ("b", FRESH)], Exit.INCONCLUSIVE),
        ([("a", ()), ("b", (Total("op1", 2, 1, 0, "plan"),))], Exit.INCONCLUSIVE),
        ([("a", ()), ("b", (Total("op1", 2, 0, 2, "plan"),))], Exit.OK),
    ],
)
def test_the_exit_code(nights: list[tuple[str, Sequence[Row]]], code: Exit) -> None:
    assert report(short(*nights))["exit_code"] == code
    assert report(short(*nights), interrupted=True)["exit_code"] == Exit.INTERRUPTED


def test_the_report_names_the_commits_between_and_the_last_green_night() -> None:
    found = report(short(("a", ()), ("b", FAILS)))
    (item,) = found["failures"]
    assert item["since"]["commits"] == ["b Break it"]
    assert found["last_green"]["last"] == "n000"
    assert report(short(("a", FAILS), ("b", FAILS)))["last_green"] is None


def test_the_report_tells_a_drift_and_whether_an_earlier_night_did() -> None:
    costs = [(Measure("op0", "cost", "launches", count),) for count in (2.0, 3.0, 3.0)]
    nights = short(*(("a", cost) for cost in costs))
    for tonight, known in ((nights[:2], False), (nights, True)):
        (item,) = report(tonight)["drifts"]
        assert (item["op"], item["of"], item["name"]) == ("op0", "cost", "launches")
        assert (item["before"], item["after"], item["known"]) == (2.0, 3.0, known)
        assert (item["since"]["last"], item["since"]["first"]) == ("n000", "n001")


def test_other_fixed_cases_are_told() -> None:
    first, second = short(("a", ()), ("b", ()))
    other = replace(second, rows=(Total("op0", 2, 2, 0, "other plan"),))
    assert report([first, second])["other_cases"] == []
    assert report([first, other])["other_cases"] == ["op0"]


def test_a_clock_that_went_back_is_told_and_changes_no_order() -> None:
    first, second = short(("a", ()), ("b", FAILS))
    late = replace(first, started="2027-01-01T00:00:00+00:00")
    found = report([late, second])
    assert len(found["clock"]) == 1
    assert found["exit_code"] == Exit.REGRESSION


def test_machines_are_not_compared_with_each_other(tmp_path: Path) -> None:
    mine, yours = short(("a", ()))[0], night(7, "b", (Total("op0", 1, 1, 0, "plan"), *FAILS), "two")
    for each in (mine, yours):
        store.write(tmp_path, each)
    history = store.read(tmp_path)
    assert history.before(yours) == []
    assert (history.next_number("one"), history.next_number("two")) == (1, 8)
    assert history.next_number("three") == 1


EVERY_KIND = (Total("op", 1, 1, 0, "p"), *FAILS, *GONE, Measure("op", "time", "s", 0.5),
              Missing("op", "why", 2))  # fmt: skip


def test_a_night_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = night(1, "c", EVERY_KIND, machine="a/b [x]*")
    folder = tmp_path / "odd [1]*"
    file = store.write(folder, written)
    assert [path.name for path in folder.iterdir()] == [file.name]
    assert store.read(folder) == History((written,), ())
    with pytest.raises(FileExistsError):
        store.write(folder, written)
    frame = store.load(folder)
    assert list(frame["kind"]) == ["total", "failure", "passed", "measure", "missing"]


def test_many_machines_write_into_one_folder_at_once(tmp_path: Path) -> None:
    nights = [replace(night(1, "c", EVERY_KIND, f"m{i}"), id=f"n{i:02}") for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: store.write(tmp_path, each), nights))
    assert store.read(tmp_path) == History(tuple(nights), ())


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good = store.write(tmp_path, night(1, "c", EVERY_KIND))
    whole = good.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "copy.parquet").write_bytes(whole)
    (tmp_path / ".half.parquet.123").write_bytes(whole[:50])  # what a killed writer leaves
    changed(good, tmp_path / "newer.parquet", "SELECT * REPLACE (2::BIGINT AS schema_version)")
    changed(good, tmp_path / "other.parquet", "SELECT 1 AS a")
    changed(good, tmp_path / "text.parquet", "SELECT * REPLACE ('x' AS number)")
    changed(good, tmp_path / "none.parquet", "SELECT *", "WHERE false")
    two = "SELECT * REPLACE (CASE WHEN kind = 'total' THEN 'b' ELSE id END AS id)"
    changed(good, tmp_path / "two.parquet", two)
    history = store.read(tmp_path)
    assert [n.id for n in history.nights] == ["n001"]
    named = sorted(sentence.split()[0] for sentence in history.skipped)
    expected = ["cut", "empty", "newer", "none", "other", "text", "two"]
    assert named == sorted([*(f"{name}.parquet" for name in expected), good.name])


def changed(source: Path, target: Path, query: str, where: str = "") -> None:
    import duckdb

    duckdb.sql(f"COPY ({query} FROM '{source}' {where}) TO '{target}' (FORMAT parquet)")


def test_columns_that_were_added_later_are_passed_over(tmp_path: Path) -> None:
    written = night(1, "c", EVERY_KIND)
    good = store.write(tmp_path / "made", written)
    folder = tmp_path / "kept"
    folder.mkdir()
    changed(good, folder / "more.parquet", "SELECT *, 1 AS something_new")
    assert store.read(folder) == History((written,), ())
    newer = "SELECT * REPLACE (CASE WHEN kind = 'passed' THEN 'mood' ELSE kind END AS kind)"
    changed(good, folder / "more.parquet", newer)
    fewer = tuple(row for row in EVERY_KIND if not isinstance(row, Passed))
    assert store.read(folder) == History((replace(written, rows=fewer),), ())


def test_a_machine_without_nights_is_told_from_a_folder_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(tmp_path / "nights", night(1, "c", EVERY_KIND, machine="h200"))
    asked = ["history", "--machine", "b200", "--history"]
    assert cli.run([*asked, str(tmp_path / "nights")]) == Exit.NOTHING_COMPARED
    assert "found only those of h200; name one of them" in capsys.readouterr().err
    assert cli.run([*asked, str(tmp_path / "empty")]) == Exit.NOTHING_COMPARED
    assert "found none; run `parity nightly` first" in capsys.readouterr().err
