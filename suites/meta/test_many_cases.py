"""The long search counts its cases, and tells a finding with its case."""

import time
from dataclasses import replace

import pytest

from parity import catalog
from suites.meta import blend
from suites.meta.many_cases import judged

WRONG = blend.planted(forward=lambda x, r: blend.forward(x, r) + 1)


@pytest.mark.parametrize("candidate", [blend.SPEC.candidate, f"{__name__}:WRONG"])
def test_a_finding_is_counted_and_told_with_its_case(
    candidate: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(blend.SPEC, candidate=candidate)
    monkeypatch.setattr(catalog, "resolve", lambda _: {spec.name: spec})
    cases, found = judged(range(1, 2), time.time() + 2)
    told = capsys.readouterr().out
    assert cases > 0
    assert (found > 0) == ("WRONG" in candidate) == ('"op":' in told)
    assert f"seed 1: {cases} cases, {found} with findings" in told
