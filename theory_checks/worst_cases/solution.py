r"""Solves the program with Clarabel, and certifies a bound in ball arithmetic.

Clarabel receives the dual program; its variables are the multipliers:

$$ \min b \cdot l, \qquad l \ge 0, \quad S_k = \mathrm{mat}_k(A_k^T l - c_k) \succeq 0, \quad r =
c_F - A_F^T l = 0. $$

It has fewer variables, and is solved more accurately. For any $l \ge 0$, weak duality with the
residuals of the constraints yields

$$ c \cdot y \le b \cdot l + \sum_k \max(0, -\lambda_{\min}(S_k)) \operatorname{tr} G_k + \sum_i
|r_i| \, |F_i|, $$

in which the traces and values are bounded for all functions of the class (`sizes`). These bounds
grow exponentially with the number of rounds, so that the residuals must be much smaller than the
rounding errors of floats. Therefore the program is solved with the margin $S_k \succeq \epsilon
I$, so that no $S_k$ has a negative eigenvalue, and the multipliers are corrected to several hundred
bits, so that r vanishes to that precision. The bound is evaluated in ball arithmetic (Arb), which
encloses all rounding errors.

A solver with an accuracy of 1e-9 finds no digit of a value that is 1e-12 times the size of the
start. Therefore a program whose value and bound differ is stated again in units of its solution.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from theory_checks.worst_cases.program import Program

_TOLERANCE = 1e-9
MARGINS = (1e-9, 1e-9, 1e-9, 1e-9, 1e-8, 1e-7)
"""epsilon of each attempt; each is made in units of the solution of the one before."""
_ACCURATE = 1e-5  # largest difference between value and bound, relative to the bound
_BITS = 640  # precision of the certificate
_FLOATS = 1e-9  # relative error of the bounds of `sizes`, which are computed in floats, and more
_CORRECTIONS = 12  # of the multipliers; each adds about ten digits


class Solution(NamedTuple):
    """A solution of the program.

    Args:
        value: the value of the primal solution, which may exceed the bound by its errors.
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


def solve(program: Program, margin: float, trace: float, values: np.ndarray) -> Solution:
    """Solves a program with the margin of an attempt.

    Args:
        program: the program.
        margin: epsilon, one of `MARGINS`.
        trace: a bound on the sum of the traces of all blocks, each times its number of modes.
        values: bounds on |F|.

    Raises:
        ImportError: if Clarabel or python-flint is not installed.
    """
    status, multipliers, y = _solve_dual(program, margin)
    bound = certify(program, multipliers, trace, values)
    return Solution(float(program.c @ y) * program.unit, bound, status, y, multipliers)


def is_accurate(found: Solution, least: float) -> bool:
    """Whether the value and the bound agree; values below `least` count as 0. The comparison is
    False for NaN.
    """
    return abs(found.bound - found.value) <= _ACCURATE * abs(found.bound) + least


def failure(found: Solution) -> ValueError:
    """Returns the error for a solution that is not accurate."""
    digits = -np.log10(np.clip(abs(1 - found.value / found.bound), 1e-16, 1))
    return ValueError(
        f"worst_case: the solver ended with status {found.status}, value {found.value:.6g} and "
        f"bound {found.bound:.6g}, which agree in {digits:.1f} digits; expected a program that it "
        "can solve to 5 digits: fewer steps, or a smaller step size if the method diverges"
    )


def _solve_dual(program: Program, margin: float) -> tuple[str, np.ndarray, np.ndarray]:
    r"""Solves the dual program with $S_k \succeq \epsilon I$.

    Returns:
        The status, the multipliers, and the primal solution.
    """
    clarabel = _clarabel()
    m, products = len(program.b), program.products
    equalities = len(program.c) - products
    largest = abs(program.A).max(axis=1).toarray().ravel()
    rows = 1 / np.where(largest > 0, largest, 1)  # the largest coefficient of a constraint is 1
    by_variable = (scipy.sparse.diags(rows) @ program.A).T.tocsr()
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
    found = clarabel.DefaultSolver(quadratic, rows * program.b, A, b, cones, settings).solve()
    z = np.array(found.z)
    y = np.concatenate([z[equalities + m :], -z[:equalities]])
    return str(found.status), rows * np.maximum(found.x, 0), y


def _clarabel() -> Any:
    return _optional("clarabel", "the solver Clarabel", "clarabel")


def _flint() -> Any:
    return _optional("flint", "the ball arithmetic of python-flint", "python-flint")


def _optional(name: str, words: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"worst_case needs {words}, which the extra 'theory' includes; pip install {package}"
        ) from error


def _identity(n: int) -> np.ndarray:
    """Returns svec of the identity."""
    j, i = np.tril_indices(n)
    return (i == j).astype(float)


def certify(program: Program, multipliers: np.ndarray, trace: float, values: np.ndarray) -> float:
    """Returns the bound of the multipliers, which are at least 0; see `solve`. It is rounded up."""
    flint = _flint()
    if not np.isfinite(multipliers).all():
        return np.inf
    with flint.ctx.workprec(_BITS):
        exact = _correct(flint, program, multipliers)
        residual = _residual(flint, program, exact)
        trace, values = (1 + _FLOATS) * trace, (1 + _FLOATS) * values
        correction = sum(
            (abs(r) * flint.arb(most) for r, most in zip(residual[1], values, strict=True)),
            flint.arb(trace) * max(map(_deficit, residual[0])),
        )
        total = sum(
            (flint.arb(b) * each for b, each in zip(program.b, exact, strict=True)), correction
        )
        return _above(total * flint.arb(program.unit))


def _correct(flint: Any, program: Program, multipliers: np.ndarray) -> list[Any]:
    """Returns multipliers for which $A_F^T l = c_F$ holds to the precision of the balls: each is
    changed in proportion to its size, so that all stay at least 0.
    """
    equalities = program.A[:, program.products :].tocsc()
    weighted = equalities.multiply(multipliers[:, None]).tocsc()
    normal = (equalities.T @ weighted).toarray()
    unit = np.sqrt(np.where(np.diag(normal) > 0, np.diag(normal), 1))
    inverse = np.linalg.pinv(normal / np.outer(unit, unit), rcond=1e-13, hermitian=True)
    inverse /= np.outer(unit, unit)
    exact = [flint.arb(each) for each in multipliers]
    for _ in range(_CORRECTIONS):
        residual = _products(flint, equalities, program.c[program.products :], exact)
        # a small residual is a float times a power of two
        size = max((abs(r).mid() for r in residual), default=flint.arb(0))
        if not size > flint.arb(2) ** (-_BITS // 2):
            break
        step = inverse @ np.array([float((r / size).mid()) for r in residual])
        change = weighted @ step
        exact = [(x - flint.arb(dx) * size).mid() for x, dx in zip(exact, change, strict=True)]
    return [each if each >= 0 else flint.arb(0) for each in exact]


def _products(flint: Any, A: Any, c: np.ndarray, exact: list[Any]) -> list[Any]:
    """Returns $A^T l - c$."""
    found = []
    for column, right in enumerate(c):
        total = -flint.arb(right)
        for place in range(A.indptr[column], A.indptr[column + 1]):
            total += flint.arb(A.data[place]) * exact[A.indices[place]]
        found.append(total)
    return found


def _residual(flint: Any, program: Program, exact: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the matrices S and the residuals r."""
    found = _products(flint, program.A.tocsc(), program.c, exact)
    half, first, blocks = flint.arb(0.5).sqrt(), 0, []
    for n in program.sizes:
        rows = [[flint.arb(0)] * n for _ in range(n)]
        for j in range(n):
            for i in range(j + 1):
                rows[j][i] = found[first] if i == j else found[first] * half
                first += 1
        blocks.append(rows)
    return blocks, found[program.products :]


def _deficit(rows: list[list[Any]]) -> Any:
    """Returns e >= 0 with S + e I positive definite, 0 if S is. `rows` has S below the diagonal."""
    shift = 0.0
    while not _is_positive(rows, shift):
        matrix = np.array([[float(x.mid()) for x in row] for row in rows])
        lowest = np.linalg.eigvalsh(matrix)[0]  # of the lower triangle
        shift = max(1.5 * shift, -lowest * (1 + 1e-9), 1e-16 * np.abs(matrix).max())
        if not np.isfinite(shift):
            break
    return shift


def _is_positive(rows: list[list[Any]], shift: float) -> bool:
    """Whether the pivots of the matrix plus `shift` times the identity are certainly positive."""
    done: list[list[Any]] = []
    pivots: list[Any] = []
    for j, row in enumerate(rows):
        scaled = []  # the row of L times the pivots
        for i in range(j):
            x = row[i]
            for k in range(i):
                x -= scaled[k] * done[i][k]
            scaled.append(x)
        new = [x / pivot for x, pivot in zip(scaled, pivots, strict=True)]
        pivot = row[j] + shift
        for x, y in zip(scaled, new, strict=True):
            pivot -= x * y
        if not pivot > 0:
            return False
        done.append(new)
        pivots.append(pivot)
    return True


def _above(x: Any) -> float:
    """Returns a float that is at least as large as the ball."""
    if not x.is_finite():
        return np.inf
    return float(np.nextafter(float(x.upper()), np.inf))


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
