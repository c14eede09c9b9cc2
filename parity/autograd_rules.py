"""Rules of autograd that right values in one forward and one backward do not show.

Each rule runs the candidate again and yields what it breaks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .comparators import Mismatch, non_finite, same_bits, structure
from .evidence import Evidence
from .guards import alike
from .inputs import Inputs, all_on_host
from .observe import feed
from .oracle import Tensors, data_names
from .record import Finding
from .relations.derived import agreement
from .trial import REFUSALS, Trial, again, call, finding, gradients, incoming, poisoned, run


def second_consumer(evidence: Evidence) -> Iterator[Finding]:
    """In ``y = op(x) + z`` the gradient that reaches ``z`` is the one that was sent.

    The multiplication gives both consumers a tensor that fills memory of its own, as in a real
    graph, where an op may take it for its own.
    """
    trial = run(again(evidence))
    others = {n: torch.zeros_like(out, requires_grad=True) for n, out in trial.outputs.items()}
    sums = [(output + others[name]) * 1 for name, output in trial.outputs.items()]
    sent = incoming(trial.inputs, trial.outputs)
    targets = [*trial.leaves.values(), *others.values()]
    with poisoned():
        found = torch.autograd.grad(sums, targets, list(sent.values()), allow_unused=True)
    pristine = incoming(trial.inputs, trial.outputs)
    for name, arrived in zip(others, found[len(trial.leaves) :], strict=True):
        if arrived is not None and (mismatch := _bits(arrived, pristine[name] * 1)):
            yield finding(
                "second_consumer",
                f"gradient beside {name}",
                "overwritten",
                "reach the other consumer as it was sent",
                mismatch,
            )


def retained_graph(evidence: Evidence) -> Iterator[Finding]:
    """A second backward through a retained graph gives the same bits, or is refused."""
    trial = run(again(evidence))
    first = gradients(trial, retain_graph=True)
    try:
        second = gradients(trial)
    except REFUSALS:
        return
    for name, expected in first.items():
        if mismatch := _same(second.get(name), expected):
            phrase = "be the same in a second backward of the retained graph"
            yield finding("retained_graph", name, "second backward differs", phrase, mismatch)


def leaves_and_views(evidence: Evidence) -> Iterator[Finding]:
    """An op that writes its argument is refused leaves and outputs of ``chunk``; others take both.

    Writing a leaf changes a parameter that nobody steps, and writing one chunk changes the tensor
    behind its siblings.
    """
    for kind, of in (("leaf", _on_leaves), ("chunk", _on_chunks)):
        inputs = again(evidence)
        writes = any(item.mutable for item in inputs.spec.inputs if item.kind == "data")
        try:
            found = of(inputs)
        except REFUSALS as refusal:
            if not writes:
                sentence = f"Expected a {kind} to be accepted but got {refusal}"
                yield Finding("effect:leaves_and_views", kind, "refused", sentence=sentence)
            continue
        if writes:
            sentence = (
                f"Expected autograd to refuse a {kind} that the op would overwrite but it was "
                "accepted; mark the argument dirty."
            )
            yield Finding("effect:leaves_and_views", kind, "accepted", sentence=sentence)
        else:
            phrase = f"be the same where the input is a {kind}"
            yield from _against_first(evidence, "leaves_and_views", found, phrase)


def _on_leaves(inputs: Inputs) -> Tensors:
    leaves = {n: inputs.tensors[n].tensor.requires_grad_() for n in data_names(inputs)}
    return gradients(Trial(inputs, leaves, call(inputs, leaves)))


def _on_chunks(inputs: Inputs) -> Tensors:
    """Every data tensor as the second of two chunks of rows of a larger tensor."""
    data = {name: inputs.tensors[name].tensor for name in data_names(inputs)}
    larger = {name: torch.cat([tensor, tensor]) for name, tensor in data.items()}
    leaves = {name: torch.zeros_like(t, requires_grad=True) for name, t in larger.items()}
    fed = {name: feed(leaf, larger[name]).chunk(2)[1] for name, leaf in leaves.items()}
    found = gradients(Trial(inputs, leaves, call(inputs, fed)))
    return {name: gradient.chunk(2)[1].clone() for name, gradient in found.items()}


def one_input_only(evidence: Evidence) -> Iterator[Finding]:
    """A gradient is the same where no other input asks for one."""
    for only in data_names(evidence.seen.inputs):
        inputs = again(evidence)
        leaf = torch.zeros_like(inputs.tensors[only].tensor, requires_grad=True)
        fed = {name: inputs.tensors[name].tensor for name in data_names(inputs)}
        fed[only] = feed(leaf, fed[only])
        found = gradients(Trial(inputs, {only: leaf}, call(inputs, fed)))
        yield from _against_first(
            evidence, "one_input_only", found, "be the same where no other input asks for one", only
        )


def without_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Under ``no_grad``, as in inference, an op gives the same outputs and writes nothing else."""
    inputs = again(evidence)
    with torch.no_grad():
        outputs = call(inputs, {n: inputs.tensors[n].tensor for n in data_names(inputs)})
    for name, output in all_on_host(outputs, inputs.device).items():
        if mismatch := _disagreement(evidence, name, output):
            phrase = "be the same where no gradient is wanted"
            yield finding("without_gradients", name, "differs", phrase, mismatch)
    mutable = {item.name for item in inputs.spec.inputs if item.mutable}
    for name, item in inputs.tensors.items():
        inside, outside = item.changed()
        if len(outside) or (len(inside) and name not in mutable):
            sentence = (
                f"Expected {name} to stay as it was where no gradient is wanted but it changed."
            )
            yield Finding("effect:without_gradients", name, "written", sentence=sentence)


def repeats(evidence: Evidence) -> Iterator[Finding]:
    """The same case in fresh memory gives the same bits; once is enough to convict.

    It reads the very tables of the first run, as the next step of a model does; all other rules
    have new tensors.  Nor does a call with other data change what the first one returned, as it
    would where all of them return one buffer.
    """
    trial = run(evidence.seen.inputs.afresh(evidence.seen.lent))
    found = all_on_host(trial.outputs, trial.inputs.device) | gradients(trial)
    for name in evidence.comparable:
        first = evidence.lanes(name).actual
        result = found.get(name)
        if mismatch := _same(None if result is None else evidence.settled(name, result), first):
            phrase = "be the same on every run"
            yield finding("repeats", name, "nondeterministic", phrase, mismatch)
    run(again(evidence), lambda leaf, tensor: feed(leaf, torch.zeros_like(tensor)))
    for name, kept in all_on_host(evidence.seen.returned, trial.inputs.device).items():
        if mismatch := _bits(kept, evidence.seen.results[name]):
            phrase = "stay as it was returned when the op is called again"
            yield finding("repeats", name, "overwritten", phrase, mismatch)


def _against_first(
    evidence: Evidence, rule: str, found: Tensors, phrase: str, only: str = ""
) -> Iterator[Finding]:
    """Gradients against those of the case's first run, all of them or that of one input."""
    wanted = [only] if only else data_names(evidence.seen.inputs)
    for name in (f"{each}.grad" for each in wanted):
        if mismatch := _disagreement(evidence, name, found.get(name)):
            yield finding(rule, name, "differs", phrase, mismatch)


def _disagreement(evidence: Evidence, name: str, result: Tensor | None) -> Mismatch | None:
    first = evidence.seen.results[name]
    if result is None:
        return Mismatch("missing", "is missing")
    if mismatch := structure(actual=result, expected=first, strides=False):
        return mismatch
    if alike(result, first):
        return None
    return agreement(evidence, name, evidence.settled(name, result), evidence.lanes(name).actual)


def _same(actual: Tensor | None, expected: Tensor) -> Mismatch | None:
    if actual is None:
        return Mismatch("missing", "is missing")
    mismatch = structure(actual=actual, expected=expected, strides=False)
    return mismatch or _bits(actual, expected)


def _bits(actual: Tensor, expected: Tensor) -> Mismatch | None:
    """Every bit but the payload of NaN, the signs of zeros too."""
    everywhere = torch.ones(expected.shape, dtype=torch.bool, device=expected.device)
    actual, expected = actual.detach(), expected.detach()
    return non_finite(actual=actual, expected=expected) or same_bits(
        actual=actual, expected=expected, signed_zero=everywhere
    )
