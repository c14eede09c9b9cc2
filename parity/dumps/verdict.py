"""What the comparison of two dumps means: failures, doubts, the exit code, the line for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..verdict import Exit

Quote = Callable[[object], str]  # how text from a dump is shown


def conclusion(result: dict[str, Any]) -> dict[str, Any]:
    """Exit code, reasons and Markdown line; a failure outranks a doubt, a doubt a pass."""
    failed = any(failures(result, str))
    doubted = any(doubts(result, str))
    code = Exit.REGRESSION if failed else Exit.INCONCLUSIVE if doubted else Exit.OK
    return {
        "exit_code": int(code),
        "reasons": [*failures(result, str), *doubts(result, str)],
        "markdown": markdown(result),
    }


def failures(result: dict[str, Any], quote: Quote) -> Iterator[str]:
    """Why head is not base: tokens, masks, log-probs that stopped being numbers, limits."""
    rollouts = result["rollouts"]
    if rollouts["diverged_samples"]:
        first = rollouts["first"]
        yield (
            f"{rollouts['diverged_samples']:,} of {many(rollouts['common_samples'], 'sample')} "
            f"diverge, first at {place(first, quote)}: token {_token(first['base_token'])} in base "
            f"and {_token(first['head_token'])} in head."
        )
    if rollouts["masks_that_differ"]:
        yield f"The mask differs at {many(rollouts['masks_that_differ'], 'token')}."
    for column, found in result["logprobs"].items():
        if found["new_not_finite"]:
            count = many(found["new_not_finite"], "token")
            yield f"{column} is finite in base and not in head at {count}."
    for limit in result["limits"]:
        if limit["beyond"] > limit["share"] * limit["compared"]:
            yield (
                f"{_share(limit)} of the tokens have |d {limit['column']}| above "
                f"{limit['above']:g}, at most {limit['share']:g} may."
            )


def _share(limit: dict[str, Any]) -> str:
    share = limit["beyond"] / limit["compared"]
    return f"{share:.3g} ({limit['beyond']:,} of {limit['compared']:,})"


def doubts(result: dict[str, Any], quote: Quote) -> Iterator[str]:
    """What was not compared although it should have been."""
    for name, only in result["rollouts"]["samples_only_in"].items():
        if only["samples"]:
            first = f"prompt {quote(only['first']['prompt_id'])}"
            count = many(only["samples"], "sample")
            yield f"{count} only in {name} ({only['rows']:,} rows), e.g. {first}."
    for name, arm in result["arms"].items():
        for column, found in arm["not_finite"].items():
            if found["first"]:
                yield (
                    f"{column} of {name} is NaN at {found['nan']:,}, infinite at "
                    f"{found['infinite']:,} and missing at {found['missing']:,} unmasked tokens, "
                    f"first at {place(found['first'], quote)}."
                )
    for column, found in result["logprobs"].items():
        if not found["tokens"]:
            yield f"No token was left at which {column} could be compared."


def place(row: dict[str, Any], quote: Quote) -> str:
    """Where a token is."""
    return (
        f"prompt {quote(row['prompt_id'])}, sample {quote(row['sample'])}, "
        f"position {row['position']:,}"
    )


def _token(value: int | None) -> str:
    return "none" if value is None else str(value)


def many(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def markdown(result: dict[str, Any]) -> str:
    """One line for a pull request; text from the dumps stands in code spans and stays there."""
    rollouts = result["rollouts"]
    tokens = f"{_amount(rollouts['common_rows'])} tokens"
    parts = [f"rollouts {_identical(rollouts)}, {tokens}"]
    for column, found in result["logprobs"].items():
        if found["tokens"]:
            parts.append(f"{column} max |d| {found['max']:.2g}, KL {kl(found['kl'], '.2g')}")
    reasons = [*failures(result, code_span), *doubts(result, code_span)]
    return " ".join([", ".join(parts) + ".", *reasons])


def _identical(rollouts: dict[str, Any]) -> str:
    if rollouts["identical"]:
        return "identical across arms"
    return "identical where both arms have them" if not rollouts["diverged_samples"] else "DIFFER"


def kl(value: float | None, form: str = ".3g") -> str:
    """An estimate with the name of its estimator; there is none where exp overflowed."""
    return f"{'beyond float64' if value is None else format(value, form)} (k3)"


def code_span(value: object) -> str:
    """Foreign text as Markdown code: no markup, mention, table or second line comes out of it."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
    return f"`{text.replace('`', chr(39)).replace('|', '/') or ' '}`"


def _amount(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1e6:.2f} M" if count >= 1_000_000 else f"{count / 1e3:.1f} k"
