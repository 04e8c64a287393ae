r"""Solves the program with Clarabel, and computes a bound that does not depend on the solver.

Clarabel receives the dual program; its variables are the multipliers:

$$ \min b \cdot l, \qquad l \ge 0, \quad S_k = \mathrm{mat}_k(A_k^T l - c_k) \succeq 0, \quad r =
c_F - A_F^T l = 0. $$

It has fewer variables, and is solved more accurately. For any $l \ge 0$, weak duality with the
residuals of the constraints yields

$$ c \cdot y \le b \cdot l + \sum_k \max(0, -\lambda_{\min}(S_k)) \operatorname{tr} G_k + \sum_i
|r_i| \, |F_i|, $$

in which the traces and values are bounded for all functions of the class (`sizes`). These bounds
grow exponentially with the number of rounds. Therefore the program is solved with the margin $S_k
\succeq \epsilon I$, so that no $S_k$ has a negative eigenvalue in spite of rounding, and the
multipliers are corrected so that r is of the size of rounding errors.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from theory_checks.worst_cases.program import Program

_TOLERANCE = 1e-9
_MARGINS = (1e-9, 1e-8, 1e-7)  # epsilon; each is tried if the one before was too small
_ACCURATE = 1e-5  # largest difference between value and bound, relative to their size


class Solution(NamedTuple):
    """A solution of the program.

    Args:
        value: the value of the primal solution.
        bound: the certified bound.
        status: status of the solver.
        y: the primal solution.
        multipliers: the dual solution, at least 0.
    """

    value: float
    bound: float
    status: str
    y: np.ndarray
    multipliers: np.ndarray


def solve(program: Program, trace: float, values: np.ndarray) -> Solution:
    """Solves a program.

    Args:
        program: the program.
        trace: a bound on the sum of the traces of all blocks, each times its number of modes.
        values: bounds on |F|.

    Raises:
        ImportError: if Clarabel is not installed.
        ValueError: if the solver fails, or its value and the bound differ.
    """
    found = None
    for margin in _MARGINS:
        status, multipliers, y = _solve_dual(program, margin)
        value = float(program.c @ y) * program.unit
        bound = certified(program, multipliers, trace, values)
        if found is None or bound < found.bound:
            found = Solution(min(value, bound), bound, status, y, multipliers)
        if _agree(found, program.unit):
            return found
    assert found is not None
    raise ValueError(
        f"worst_case: the solver ended with status {found.status}, value {found.value:.6g} and "
        f"bound {found.bound:.6g}, which differ; expected a program that it can solve: fewer "
        "steps, or a smaller step size if the method diverges"
    )


def _agree(found: Solution, unit: float) -> bool:
    """Whether the value is as accurate as the solver. The comparison is False for NaN."""
    return found.bound - found.value <= _ACCURATE * (unit + abs(found.bound))


def _solve_dual(program: Program, margin: float) -> tuple[str, np.ndarray, np.ndarray]:
    r"""Solves the dual program with $S_k \succeq \epsilon I$.

    Returns:
        The status, the multipliers, and the primal solution.
    """
    clarabel = _clarabel()
    m, products = len(program.b), program.products
    equalities = len(program.c) - products
    by_variable = program.A.T.tocsr()
    A = scipy.sparse.vstack(
        [by_variable[products:], -scipy.sparse.identity(m), -by_variable[:products]], format="csc"
    )
    least = np.concatenate([margin * _identity(n) for n in program.sizes])
    b = np.concatenate([program.c[products:], np.zeros(m), -program.c[:products] - least])
    cones = [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(m)]
    cones += [clarabel.PSDTriangleConeT(n) for n in program.sizes]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _TOLERANCE
    quadratic = scipy.sparse.csc_matrix((m, m))
    found = clarabel.DefaultSolver(quadratic, program.b, A, b, cones, settings).solve()
    z = np.array(found.z)
    y = np.concatenate([z[equalities + m :], -z[:equalities]])
    return str(found.status), _corrected(program, np.maximum(found.x, 0)), y


def _clarabel() -> Any:
    try:
        return importlib.import_module("clarabel")  # an optional package
    except ImportError as error:
        raise ImportError(
            "worst_case needs the solver Clarabel, which the extra 'theory' includes; pip install "
            "clarabel"
        ) from error


def _corrected(program: Program, multipliers: np.ndarray) -> np.ndarray:
    """Returns multipliers for which $A_F^T l = c_F$ holds up to rounding: each is changed in
    proportion to its size, so that all stay at least 0.
    """
    equalities = program.A[:, program.products :]
    for _ in range(2):  # the second time for the rounding errors of the first
        residual = equalities.T @ multipliers - program.c[program.products :]
        weighted = equalities.multiply(multipliers[:, None]).tocsc()
        step = np.linalg.lstsq((equalities.T @ weighted).toarray(), residual, rcond=None)[0]
        multipliers = np.maximum(multipliers - weighted @ step, 0)
    return multipliers


def _identity(n: int) -> np.ndarray:
    """Returns svec of the identity."""
    j, i = np.tril_indices(n)
    return (i == j).astype(float)


def certified(program: Program, multipliers: np.ndarray, trace: float, values: np.ndarray) -> float:
    """Returns the bound of the multipliers, which are at least 0; see `solve`."""
    residual = program.A.T @ multipliers - program.c
    lowest = [
        float(np.linalg.eigvalsh(matrix)[0])
        for matrix in matrices(residual[: program.products], program.sizes)
    ]
    correction = trace * max(0.0, -min(lowest))
    correction += float(np.abs(residual[program.products :]) @ values)
    return (float(program.b @ multipliers) + correction) * program.unit


def matrices(products: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Returns the symmetric matrices with the stacked svec `products`."""
    found, first = [], 0
    for n in sizes:
        j, i = np.tril_indices(n)
        matrix = np.zeros((n, n))
        each = products[first : first + len(i)] * np.where(i == j, 1, np.sqrt(0.5))
        matrix[i, j] = matrix[j, i] = each
        found.append(matrix)
        first += len(i)
    return found
