"""Error of ``vtrace`` against a float64 double sum, and its time to compile and to run, by T.

python tests/benchmarks/vtrace_error.py
"""

import argparse
import time
from functools import partial

import common
import mindspore as ms
import numpy as np

from impala_ms.ops.vtrace import vtrace
from tests.compiled import FunctionCell
from tests.ops.test_vtrace import double_sum, random_unrolls

BARS = dict(rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, lambda_=1.0)
CASES = {
    "on-policy, no ends": dict(on_policy=True, ends=False),
    "mixed ratios, no ends": dict(ends=False),
    "mixed ratios and ends": {},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 5, 20, 100, 500, 1000])
    parser.add_argument("--columns", type=int, default=32, help="B (default 32)")
    parser.add_argument("--seeds", type=int, default=10, help="how many (default 10)")
    arguments = parser.parse_args()
    call(FunctionCell(vtrace), random_unrolls(2, 2, seed=0))  # the compiler itself starts
    rows = []
    for steps in arguments.lengths:
        unrolls = partial(random_unrolls, steps, arguments.columns)
        cell, inputs, times = FunctionCell(vtrace), unrolls(seed=0), []
        for _ in range(101):
            began = time.perf_counter()
            call(cell, inputs)
            times.append(time.perf_counter() - began)
        shown = []
        for case in CASES.values():
            pairs = [errors(cell, unrolls(seed=seed, **case)) for seed in range(arguments.seeds)]
            shown.append("{:.1e} ({:.1e})".format(*np.max(pairs, axis=0)))
        run_ms = 1e3 * common.median(times[1:])
        rows.append([steps, *shown, f"{times[0]:.2f}", f"{run_ms:.2f}"])
    header = ["T", *(f"error: {case}" for case in CASES), "compile s", "run ms"]
    print(common.markdown(header, rows))
    print(
        "\nError: highest max|err| / max|vs| of any column and seed; in brackets that of the plain"
    )
    print(f"float32 recursion, step by step. {common.machine()}.")


def call(cell, inputs):
    """``vs`` as an array."""
    return cell(*map(ms.Tensor, inputs))[0].asnumpy()


def errors(cell, inputs):
    """Highest error of any column relative to its largest |vs|: of ours, of the recursion."""
    wanted, _ = double_sum(*inputs, **BARS)
    found = np.stack([call(cell, inputs), recursion(*inputs)])
    if not np.isfinite(found).all():
        raise ValueError("vs is not finite")
    return (np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=0)).max(axis=1)


def recursion(log_rhos, discounts, rewards, values, bootstrap):
    """Remark 1 of the paper in float32, one step after the other."""
    rhos = np.minimum(np.exp(log_rhos), np.float32(1))
    following, correction, vs = bootstrap, np.zeros_like(bootstrap), np.empty_like(values)
    for t in reversed(range(len(values))):
        delta = rhos[t] * (rewards[t] + discounts[t] * following - values[t])
        correction = delta + discounts[t] * rhos[t] * correction
        following, vs[t] = values[t], values[t] + correction
    return vs


if __name__ == "__main__":
    main()
