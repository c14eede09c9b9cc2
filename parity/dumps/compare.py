"""Two arms of per-token records, joined token by token: what differs, where, and by how much.

Log-probs are compared where they mean the same thing: at tokens of both arms that stand before the
first divergence of their sample (later ones follow other text) and that no arm masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .read import LOGPROBS, run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LISTED = 1000  # first divergences by sample in the JSON file, earliest first
WORST = 10
QUANTILES = {"median": 0.5, "p99": 0.99, "p999": 0.999}
BINS_PER_OCTAVE = 8  # a quantile is exact to its bin: at most 2^(1/8) - 1 = 9 % too large
LAST = 2**62
ORDER = "position, length(prompt_id), prompt_id, length(sample), sample"

# Where base and head have a token each under one key, or one of them alone.
JOINED = """
CREATE TABLE tokens AS SELECT id, position,
    base.token_id AS base_token, head.token_id AS head_token,
    base.mask AS base_mask, head.mask AS head_mask,
    base.reward AS base_reward, head.reward AS head_reward,
    base.old_logprob AS base_old_logprob, head.old_logprob AS head_old_logprob,
    base.train_logprob AS base_train_logprob, head.train_logprob AS head_train_logprob
FROM base FULL JOIN head USING (id, position)
"""
SAMPLES = """
CREATE TABLE samples AS
SELECT id, names.prompt_id->>'$' AS prompt_id, names.sample->>'$' AS sample,
    base_tokens, head_tokens, first
FROM (
    SELECT id, count(base_token) AS base_tokens, count(head_token) AS head_tokens,
        min(position) FILTER (base_token IS DISTINCT FROM head_token) AS first
    FROM tokens GROUP BY id
) AS counted JOIN names USING (id)
"""
COMMON = """
CREATE VIEW common AS SELECT tokens.*, prompt_id, sample, first, base_tokens AS length
FROM tokens JOIN samples USING (id) WHERE base_tokens > 0 AND head_tokens > 0
"""
COMPARED = f"""
CREATE VIEW alike AS SELECT * FROM common WHERE position < coalesce(first, {LAST});
CREATE VIEW compared AS SELECT * FROM alike WHERE base_mask AND head_mask
"""


def k3(log_ratio: str) -> str:
    """SQL for the estimator k3 of KL(p || q) at one token drawn from p; log_ratio is log q - log p.

    k3 = exp(r) - 1 - r: unbiased and never negative (J. Schulman, "Approximating KL Divergence",
    2020).  Below 1e-3 the series, since the difference cancels: both are exact to 1e-9 there.
    """
    r = f"({log_ratio})"
    series = f"{r} * {r} * (0.5 + {r} / 6 + {r} * {r} / 24)"
    return f"CASE WHEN abs({r}) < 1e-3 THEN {series} ELSE exp({r}) - 1 - {r} END"


def join(connection: DuckDBPyConnection) -> int:
    """Join the tables ``base`` and ``head``; the number of keys that both have."""
    for query in (JOINED, SAMPLES, COMMON, COMPARED):
        run(connection, query)
    both = "count(*) FILTER (base_token IS NOT NULL AND head_token IS NOT NULL)"
    return int(_row(connection, f"SELECT {both} FROM tokens")[0])


def arm(connection: DuckDBPyConnection, name: str) -> dict[str, Any]:
    """What one arm holds, with the distance of its own two log-probs (old to train)."""
    ratio = "train_logprob - old_logprob"
    finite = "mask AND isfinite(old_logprob) AND isfinite(train_logprob)"
    rows, masked, kl, largest = _row(
        connection,
        f"SELECT count(*), count(*) FILTER (NOT mask), avg({k3(ratio)}) FILTER ({finite}), "
        f"max(abs({ratio})) FILTER ({finite}) FROM {name}",
    )
    samples = _row(connection, f"SELECT count(*) FROM samples WHERE {name}_tokens > 0")[0]
    return {
        "rows": rows,
        "samples": samples,
        "masked": masked,
        "not_finite": {column: _not_finite(connection, name, column) for column in LOGPROBS},
        "old_to_train": {"kl": _finite(kl), "max": largest},
    }


def _not_finite(connection: DuckDBPyConnection, name: str, column: str) -> dict[str, Any]:
    """Unmasked tokens of an arm without a finite log-prob: how many of each kind, and the first."""
    place = "'position': position, 'prompt_id': prompt_id->>'$', 'sample': sample->>'$'"
    nan, infinite, missing, first = _row(
        connection,
        f"SELECT count(*) FILTER (isnan({column})), count(*) FILTER (isinf({column})), "
        f"count(*) FILTER ({column} IS NULL), min({{{place}}}) FROM {name} "
        f"WHERE mask AND NOT coalesce(isfinite({column}), false)",
    )
    return {"nan": nan, "infinite": infinite, "missing": missing, "first": first}


def rollouts(connection: DuckDBPyConnection) -> dict[str, Any]:
    """Whether both arms hold the same tokens, and where each sample first diverges.

    The mask does not matter here: a masked token that differs is a token that differs.
    """
    both = "base_token IS NOT NULL AND head_token IS NOT NULL"
    rows, differ, base_only, head_only = _row(
        connection,
        f"SELECT count(*) FILTER ({both}), "
        f"count(*) FILTER ({both} AND base_token <> head_token), "
        "count(*) FILTER (head_token IS NULL), count(*) FILTER (base_token IS NULL) FROM common",
    )
    samples, diverged = _row(
        connection,
        "SELECT count(*), count(first) FROM samples WHERE base_tokens > 0 AND head_tokens > 0",
    )
    firsts = _dicts(
        connection,
        "SELECT prompt_id, sample, position, base_token, head_token FROM common "
        f"WHERE position = first ORDER BY {ORDER} LIMIT {LISTED}",
    )
    only = {name: _only(connection, name) for name in ("base", "head")}
    return {
        "identical": not diverged and not any(item["samples"] for item in only.values()),
        "common_rows": rows,
        "common_samples": samples,
        "tokens_that_differ": differ,
        "rows_only_in_base": base_only,
        "rows_only_in_head": head_only,
        "diverged_samples": diverged,
        "first": firsts[0] if firsts else None,
        "first_by_sample": firsts,
        "samples_only_in": only,
        "masks_that_differ": _row(
            connection, "SELECT count(*) FROM alike WHERE base_mask <> head_mask"
        )[0],
    }


def _only(connection: DuckDBPyConnection, name: str) -> dict[str, Any]:
    """The samples that one arm alone holds."""
    other = "head" if name == "base" else "base"
    count, rows, first = _row(
        connection,
        f"SELECT count(*), coalesce(sum({name}_tokens), 0)::BIGINT, "
        f"min({{'prompt_id': prompt_id, 'sample': sample}}) FROM samples WHERE {other}_tokens = 0",
    )
    return {"samples": count, "rows": rows, "first": first}


def reward(connection: DuckDBPyConnection) -> dict[str, Any]:
    """Rewards of samples whose tokens are the same in both arms."""
    samples, differ, largest = _row(
        connection,
        "SELECT count(DISTINCT id), count(DISTINCT id) FILTER (differs), "
        "max(abs(head_reward - base_reward)) FROM (SELECT *, "
        "head_reward IS DISTINCT FROM base_reward AS differs FROM common WHERE first IS NULL)",
    )
    return {"samples": samples, "differ": differ, "max": largest}


def logprob(connection: DuckDBPyConnection, column: str) -> dict[str, Any]:
    """The differences head - base of one log-prob: overall, by place, and the worst tokens.

    ``kl`` estimates KL(base || head), since the tokens compared are those that base drew.
    ``new_not_finite`` counts tokens where base has a finite value and head has none.
    """
    base, head = f"base_{column}", f"head_{column}"
    finite = f"isfinite({base}) AND isfinite({head})"
    ratio = f"{head} - {base}"
    cells = run(
        connection,
        "SELECT CASE position WHEN 0 THEN -1 ELSE floor(log2(position)) END::INT, "
        "floor(log2(length))::INT, "
        f"floor({BINS_PER_OCTAVE} * log2(nullif(abs({ratio}), 0)))::INT AS bin, count(*), "
        f"max(abs({ratio})), sum(abs({ratio})), sum({k3(ratio)}) FROM compared WHERE {finite} "
        "GROUP BY ALL ORDER BY bin NULLS FIRST",
    ).fetchall()
    new = f"isfinite({base}) AND NOT coalesce(isfinite({head}), false)"
    return {
        **_spread(cells),
        "kl": _finite(sum(cell[6] for cell in cells) / max(1, sum(cell[3] for cell in cells))),
        "by_position": _buckets(cells, 0),
        "by_length": _buckets(cells, 1),
        "worst": _dicts(
            connection,
            "SELECT prompt_id, sample, position, base_token AS token_id, "
            f"{base} AS base, {head} AS head, abs({ratio}) AS difference FROM compared "
            f"WHERE {finite} ORDER BY difference DESC, {ORDER} LIMIT {WORST}",
        ),
        "new_not_finite": _row(connection, f"SELECT count(*) FROM compared WHERE {new}")[0],
    }


def above(connection: DuckDBPyConnection, column: str, threshold: float) -> dict[str, int]:
    """Of how many compared tokens how many differ by more than a threshold."""
    difference = f"abs(head_{column} - base_{column})"
    compared, beyond = _row(
        connection,
        f"SELECT count(*), count(*) FILTER ({difference} > {threshold!r}) FROM compared "
        f"WHERE isfinite(base_{column}) AND isfinite(head_{column})",
    )
    return {"compared": compared, "beyond": beyond}


def _buckets(cells: list[Any], index: int) -> list[dict[str, Any]]:
    """Spreads by powers of two of a position (0 has its own bucket) or of a length."""
    return [
        {
            "from": int(2**exponent),  # 2^-1 is the bucket of 0
            "to": int(2 ** (exponent + 1)) - 1 if exponent >= 0 else 0,
            **_spread(cell for cell in cells if cell[index] == exponent),
        }
        for exponent in sorted({cell[index] for cell in cells})
    ]


def _spread(cells: Iterable[Any]) -> dict[str, Any]:
    """Count, equal ones, mean, quantiles and maximum of cells that come in order of their bin."""
    cells = list(cells)
    count = sum(cell[3] for cell in cells)
    if not count:
        return {"tokens": 0}
    bins: dict[Any, list[float]] = {}
    for cell in cells:
        held = bins.setdefault(cell[2], [0, 0.0])
        held[0], held[1] = held[0] + cell[3], max(held[1], cell[4])
    return {
        "tokens": count,
        "equal": int(bins.get(None, [0])[0]),
        "mean": math.fsum(cell[5] for cell in cells) / count,
        **{name: _quantile(bins.values(), share * count) for name, share in QUANTILES.items()},
        "max": max(cell[4] for cell in cells),
    }


def _quantile(bins: Iterable[list[float]], rank: float) -> float:
    """The largest value of the bin that holds the value of a rank."""
    bins = list(bins)
    ranks = accumulate(count for count, _ in bins)
    return next((top for (_, top), last in zip(bins, ranks, strict=True) if last >= rank), 0.0)


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold: exp(r) overflows where head is 709 or more above base."""
    return value if value is not None and math.isfinite(value) else None


def _row(connection: DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = run(connection, query).fetchall()[0]
    return found


def _dicts(connection: DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    result = run(connection, query)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
