"""The Megatron adapter: two real releases in processes of their own, and roots of no use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parity import Unsupported
from parity.adapters import megatron, megatron_candidate
from parity.case import Case
from parity.generate import build, finite_axes, is_legal

ROOT = Path(__file__).resolve().parents[2]
BASE, HEAD = "0.13.1", "0.14.0"
SPECS = {spec.name: spec for spec in megatron.OPS}
FUSED = "megatron/core/fusions/fused_mla_yarn_rope_apply.py"
RUNNER = """
import json, sys
from parity.provenance import mount
mount(__import__("pathlib").Path(sys.argv[1]))
from parity.interpreter import prepare
prepare()
from parity.adapters.megatron import OPS
from parity.adapters.megatron_candidate import modules
from parity.case import Case
from parity.runner import run_case
ops = {spec.name: spec for spec in OPS}
records = []
for document in json.load(sys.stdin):
    case = Case.from_dict(document)
    records.append(run_case(ops[case.op], case).to_dict())
print(json.dumps({"file": modules()[0].__file__, "records": records}))
"""


def simplest(op: str, layout: str = "sbhd", **changes: Any) -> Case:
    """The case of an op with the first value on every finite axis, 4 heads and few rows."""
    spec = SPECS[op]
    row = {name: values[0] for name, values in finite_axes(spec, layout).items()}
    case = build(spec, layout, row, Random(0))
    rows = {"seq": 3, "batch": 2} if layout == "sbhd" else {}
    pack = {"lengths": (8, 0, 16), "gaps": (0, 0, 0)} if layout == "thd" else {}
    small = {name: values[0] for name, values in spec.axes.items()} | {"heads": 4} | rows
    return replace(case, axes={**case.axes, **small}, **pack, **changes)


def query(layout: str = "sbhd", **changes: Any) -> Case:
    return simplest("fused_apply_mla_rope_for_q", layout, **changes)


def key_value(layout: str = "sbhd", **changes: Any) -> Case:
    return simplest("fused_apply_mla_rope_for_kv", layout, **changes)


def with_heads(case: Case, heads: int, tile: int) -> Case:
    return replace(case, axes={**case.axes, "heads": heads}, tile={"BLOCK_H": tile})


def expanded(case: Case) -> Case:
    gradients = {name: "expanded" for name in case.variants if name.endswith(".grad")}
    return replace(case, variants={**case.variants, **gradients})


CASES = {
    "plain": key_value(),
    "bf16": key_value(dtype="bfloat16", table_dtype="storage"),
    "tile 2": with_heads(key_value(), 4, 2),
    "tile 4": with_heads(key_value(), 4, 4),
    "tile does not divide": with_heads(key_value(), 6, 4),
    "query, tile does not divide": with_heads(query(), 6, 4),
    "tile 1 of 6": with_heads(key_value(), 6, 1),
    "expanded": expanded(key_value()),
    "query expanded": expanded(query()),
    "thd expanded": expanded(key_value("thd")),
    "thd": key_value("thd"),
    "thd, tail": key_value("thd", tail=2),
    "thd, cp": key_value("thd", cp_size=2, cp_rank=1),
    "query": query(),
}


Records = dict[str, dict[str, Any]]  # release -> name of a case above -> its record


def test_two_published_releases(megatron_release: Callable[[str], Path]) -> None:
    """One test, since each release takes a process that imports it."""
    records: Records = {}
    for version in (BASE, HEAD):
        root = megatron_release(version)
        documents = json.dumps([case.to_dict() for case in CASES.values()])
        answer = json.loads(_run(RUNNER, str(root), documents))
        assert Path(answer["file"]) == root / FUSED
        records[version] = dict(zip(CASES, answer["records"], strict=True))
    for claim in (
        key_value_is_right_and_identical,
        every_tile_that_divides_gives_the_same_bits,
        a_tile_that_does_not_divide_the_heads_writes_outside,
        rows_past_the_last_sequence_read_before_the_tables,
        head_accepts_an_expanded_gradient_in_sbhd_only,
        context_parallel_is_new_in_head,
        backward_of_the_query_may_write_its_incoming_gradient,
    ):
        claim(records)


def _run(script: str, root: str, text: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, root],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def _signatures(record: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["check"], finding["tensor"]) for finding in record["findings"]}


def _right(record: dict[str, Any]) -> bool:
    """Values and memory as the contract says; what autograd is told is judged elsewhere."""
    return all(finding["check"].startswith("effect:") for finding in record["findings"])


def test_cases_are_legal() -> None:
    assert [is_legal(SPECS[case.op], case) for case in CASES.values()] == [""] * len(CASES)


def key_value_is_right_and_identical(records: Records) -> None:
    for name in ("plain", "bf16", "tile 2", "tile 4", "tile 1 of 6", "thd"):
        base, head = records[BASE][name], records[HEAD][name]
        assert _right(base)
        assert _right(head)
        assert base["digests"] == head["digests"]


def every_tile_that_divides_gives_the_same_bits(records: Records) -> None:
    for release in records.values():
        digests = [release[name]["digests"]["key"] for name in ("plain", "tile 2", "tile 4")]
        assert digests[1:] == digests[:1] * 2


def a_tile_that_does_not_divide_the_heads_writes_outside(records: Records) -> None:
    for release in records.values():
        for name in ("tile does not divide", "query, tile does not divide"):
            assert {("guards", "forward"), ("guards", "backward")} <= _signatures(release[name])


def rows_past_the_last_sequence_read_before_the_tables(records: Records) -> None:
    for release in records.values():
        findings = release["thd, tail"]["findings"]
        phases = ("forward", "backward")
        wanted = {("reads", f"{name} in {phase}") for name in ("cos", "sin") for phase in phases}
        assert _signatures(release["thd, tail"]) == wanted
        lines = [finding["sentence"] for finding in findings]
        assert all("fused_mla_yarn_rope_apply.py:" in line for line in lines)
        assert "(cos) element -" in lines[0]


def head_accepts_an_expanded_gradient_in_sbhd_only(records: Records) -> None:
    for name in ("expanded", "query expanded"):
        (finding,) = records[BASE][name]["findings"]
        assert finding["error"] == "AssertionError"
        assert finding["frame"] == "fused_mla_yarn_rope_apply.py:backward"
        assert _right(records[HEAD][name])
    for release in records.values():
        assert ("runs", "backward") in _signatures(release["thd expanded"])


def context_parallel_is_new_in_head(records: Records) -> None:
    assert records[BASE]["thd, cp"]["status"] == "unsupported"
    assert "no parameter cp_size" in records[BASE]["thd, cp"]["reason"]
    assert _right(records[HEAD]["thd, cp"])


def backward_of_the_query_may_write_its_incoming_gradient(records: Records) -> None:
    for release in records.values():
        assert _right(release["query"])


@pytest.fixture
def root(
    tmp_path: Path, megatron_from: Callable[[Path], AbstractContextManager[None]]
) -> Iterator[Path]:
    """A folder for a hand-made `megatron`, first on the import path; forgotten afterwards."""
    with megatron_from(tmp_path):
        yield tmp_path


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


OLD = {
    "megatron/core/__init__.py": "__version__ = '0.12.3'",
    "megatron/core/config.py": "",
    "megatron/core/fusions/__init__.py": "",
}


def test_a_root_without_megatron(root: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^Expected Megatron-Core on the import path but found no"
    ):
        megatron_candidate.modules()


def test_a_release_before_the_fused_functions(root: Path) -> None:
    _write(root, OLD)
    with pytest.raises(ValueError, match=r"in megatron-core 0\.12\.3 but this release has none; "):
        megatron_candidate.modules()


def test_a_release_that_lacks_a_package_it_imports(root: Path) -> None:
    _write(root, OLD | {FUSED: "import no_such_package"})
    with pytest.raises(ValueError, match="but no_such_package is missing; install no_such_package"):
        megatron_candidate.modules()


def test_a_release_that_mocks_triton_is_refused(root: Path) -> None:
    _write(root, OLD | {FUSED: "HAVE_TRITON = False"})
    with pytest.raises(ValueError, match="replaced Triton with a mock"):
        megatron_candidate.modules()


# Just enough of a release to show what the adapter does to it: a guard and an autotuned kernel.
GUARDED = """
import triton
from megatron.core import config
HAVE_TRITON = True

@triton.autotune(configs=[triton.Config({"BLOCK_H": n}, num_warps=n) for n in (1, 2)], key=[])
@triton.jit
def any_name_at_all(x, BLOCK_H: triton.language.constexpr):
    pass

def fused_mla_rope_concat(a, b, c, d, cu_seqlens=None, cp_size=1):
    return getattr(config, 'allowed', None), any_name_at_all.configs, cu_seqlens, cp_size
"""
SWITCH = (
    "allowed = False\ndef set_experimental_flag(flag):\n    global allowed\n    allowed = flag\n"
)


def _concat(tile: int, **options: Any) -> Any:
    positional: dict[str, Any] = dict.fromkeys(("nope", "rope", "cos", "sin"))
    return megatron_candidate.fused_mla_rope_concat(**positional, BLOCK_H=tile, **options)


def test_guard_is_opened_and_the_tile_pinned_again_and_again(root: Path) -> None:
    _write(root, OLD | {FUSED: GUARDED, "megatron/core/config.py": SWITCH})
    for tile in (2, 1, 2):
        allowed, configs, _, _ = _concat(tile)
        assert allowed
        assert [(config.kwargs["BLOCK_H"], config.num_warps) for config in configs] == [
            (tile, tile)
        ]


def test_options_a_release_knows_are_passed_and_defaults_of_others_dropped(root: Path) -> None:
    _write(root, OLD | {FUSED: GUARDED})
    _, _, cu_seqlens, cp_size = _concat(1, cu_seqlens="c", cp_size=2, cp_rank=0, inverse=False)
    assert (cu_seqlens, cp_size) == ("c", 2)


@pytest.mark.parametrize(
    ("tile", "options", "sentence"),
    [
        (1, {"inverse": True}, "fused_mla_rope_concat of this revision has no parameter inverse"),
        (4, {}, "no config with BLOCK_H=4"),
    ],
)
def test_what_a_release_lacks_is_unsupported(
    root: Path, tile: int, options: dict[str, Any], sentence: str
) -> None:
    _write(root, OLD | {FUSED: GUARDED})
    with pytest.raises(Unsupported, match=sentence):
        _concat(tile, **options)


def test_a_function_a_release_lacks_is_unsupported(root: Path) -> None:
    _write(root, OLD | {FUSED: GUARDED})
    arguments: dict[str, Any] = dict.fromkeys(("t", "cos", "sin", "nope_dim", "emb_dim"))
    with pytest.raises(Unsupported, match="has no fused_mla_rope_inplace"):
        megatron_candidate.fused_mla_rope_inplace(**arguments, BLOCK_H=1)
