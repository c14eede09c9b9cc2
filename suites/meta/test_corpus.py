"""Kept cases run first, and one that could no longer run says so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.catalog import resolve
from parity.corpus import keep, kept
from parity.generate import coverage, finite_axes, plan
from parity.pairwise import pairwise

SPEC = resolve("parity")["fused_mla_rope_concat"]
ROOT = Path(__file__).parents[2]


def test_the_corpus_of_this_repository_is_legal() -> None:
    """Every folder names an op of the catalog and every file a case that it allows."""
    specs = resolve("parity")
    for folder in (ROOT / "suites" / "corpus").iterdir():
        assert kept(ROOT, specs[folder.name])


def test_a_kept_case_comes_back_as_it_was(tmp_path: Path) -> None:
    case = plan(SPEC, 1, 0)[0]
    keep(tmp_path, case)
    assert kept(tmp_path, SPEC) == [case]
    assert kept(tmp_path, replace(SPEC, name="another_op")) == []


def test_a_kept_case_that_the_contract_forbids_is_an_error(tmp_path: Path) -> None:
    keep(tmp_path, plan(SPEC, 1, 0)[0])
    with pytest.raises(ValueError, match="Rewrite the case"):
        kept(tmp_path, replace(SPEC, dtypes=("bfloat16",), axes={**SPEC.axes, "heads": (999,)}))


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = keep(tmp_path, plan(SPEC, 1, 0)[0])
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="Expected JSON"):
        kept(tmp_path, SPEC)


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_every_plan_covers_every_pair_of_finite_choices(spec) -> None:
    cases = plan(spec, 0, seed=0)
    seen, possible = coverage(spec, cases)
    assert seen == possible
    assert coverage(spec, cases[: len(cases) // 4])[0] < possible


def test_a_plan_is_the_same_every_time_and_another_for_another_seed() -> None:
    ids = [case.id for case in plan(SPEC, 120, 7)]
    assert ids == [case.id for case in plan(SPEC, 120, 7)]
    assert len(set(ids)) == len(ids) >= 120
    assert set(ids) != {case.id for case in plan(SPEC, 120, 8)}


def test_pairwise_needs_far_fewer_rows_than_the_product() -> None:
    axes = {name: values for name, values in finite_axes(SPEC, "thd").items() if len(values) > 1}
    product = 1
    for values in axes.values():
        product *= len(values)
    assert len(pairwise(axes)) < 100 < product / 10_000
    assert pairwise({"only": (1, 2)}) == [{"only": 1}, {"only": 2}]


def test_a_case_survives_json(tmp_path: Path) -> None:
    for case in plan(SPEC, 20, 1):
        assert type(case).from_dict(json.loads(case.to_json())) == case


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"op": 3}, "'op'"),
        ({"axes": {"heads": -1}}, "'axes'"),
        ({"axes": {"heads": True}}, "'axes'"),
        ({"lengths": [1.5]}, "'lengths'"),
        ({"seed": "0"}, "'seed'"),
        ({"schema_version": 99}, "schema_version"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_case_gets_one_sentence(change: dict[str, object], sentence: str) -> None:
    case = plan(SPEC, 1, 0)[0]
    with pytest.raises(ValueError, match=sentence) as caught:
        type(case).from_dict(case.to_dict() | change)
    assert "\n" not in str(caught.value)
