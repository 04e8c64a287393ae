"""`worst_case` computes the worst case of a method over a class of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dsgd
from dsgd import checks
from dsgd.base import Algorithm, Key, Problem, Round
from dsgd.engine import protocol, queries, run_keys
from dsgd.engine.oracle import Oracle
from theory_checks.machinery import rounds
from theory_checks.worst_cases import functions as interpolated
from theory_checks.worst_cases import layout, measures, messages, sizes, solution
from theory_checks.worst_cases import symmetry as symmetries
from theory_checks.worst_cases.classes import Smooth
from theory_checks.worst_cases.coefficients import Build, Reader, Values
from theory_checks.worst_cases.measures import MEASURES, OVER, Measure, Over
from theory_checks.worst_cases.program import Assembly, Program, Scales
from theory_checks.worst_cases.symmetry import Symmetry

LARGEST = 100
"""The largest block of a Gram matrix. Time and memory of the solver grow with its sixth power."""
_MOST_WORKERS = 128  # that are tried if the number of workers is not given
_ZERO = 1e-20  # coefficients of a measure up to this are rounding errors
_RELIABLE = 1e-3  # smaller objectives have too few digits, since the solver's error is about 1e-9
_SMALLEST = 1e-6  # of a square in the units of a solution, whose error is about 1e-9
_RUN = 1e-5  # relative error of lengths in a run on the worst functions, as `solution` accepts it
_CUT = 1e-9  # eigenvalues of a Gram matrix below this share of the largest are rounding errors


@dataclass(frozen=True, eq=False)
class WorstCase:
    """The worst case of a method over a class of functions.

    Args:
        value: the measure on the worst functions.
        bound: an upper bound for all functions of the class, from the multipliers of the solution.
            It is evaluated in ball arithmetic, rounded up: it holds without tolerance for the data
            of the program, the method's coefficients and their products in float64.
        exact: whether functions of the class attain the value. If False, for several functions that
            are not convex, the infimum of the worst functions may be lower than assumed, and the
            worst case may be lower than the value.
        status: status of the solver.
        problem: the worst functions. The optimum is the origin with value 0.
        method: the method; with compressed messages, it makes the worst errors.
        functions: the class.
        steps: number of rounds.
        measure, over: what is measured.
        key: key of the run.
        symmetry: the permutations of the workers that leave the method unchanged: "all", rotations
            and reflections of a "ring", or "none" of these groups.
        gram: sizes of the blocks of the Gram matrix.
        certified: how the bound is certified: "interval", by ball arithmetic.
    """

    value: float
    bound: float
    exact: bool
    status: str
    problem: Problem
    method: Algorithm
    functions: Smooth
    steps: int
    measure: Measure
    over: Over
    key: jax.Array
    symmetry: Symmetry
    gram: tuple[int, ...]
    certified: Literal["interval"] = "interval"

    def run(self) -> float:
        """Runs the method on the worst functions by `dsgd.run`, in float64, and returns the
        measure.
        """
        with jax.enable_x64(True):
            result = dsgd.run(self.method, self.problem, steps=self.steps, key=self.key, mesh=1)
        column = {"gap": "loss", "gradient": "grad_sqnorm"}.get(self.measure, self.measure)
        series = np.asarray(result.history[column], np.float64)
        taken = series[measures.measured_rounds(self.over, self.steps)]
        return float(taken.min() if self.over == "best" else taken.mean())


@checks.arguments
def worst_case(
    method: Algorithm | Callable[..., Algorithm],
    functions: Smooth,
    *,
    steps: int,
    measure: Measure = "gap",
    over: Over = "last",
    workers: int | None = None,
    delta: float | None = None,
    key: Key | None = None,
    **hyperparameters: float,
) -> WorstCase:
    r"""Computes the worst case of a method over a class of functions, exactly, from the method's
    own `query` and `update`.

    The method must be linear in its start, the gradients and the errors of its messages, the same
    in every coordinate, and deterministic up to the key of the run. The dimension of the worst
    functions is at most the size of the Gram matrix; for problems of lower dimension the value is
    an upper bound.

    Args:
        method: a method; or a function that returns one, with the hyperparameters as keyword
            arguments, and with a `compressor` if delta is given.
        functions: the class.
        steps: T, number of rounds.
        measure: what is measured, at the model that a run would return: "gap", $f(\bar x) -
            f^\star$; "gradient", $|f'(\bar x)|^2$; "distance", $|\bar x - x^\star|^2$; or
            "consensus", $\frac1N \sum_n |x_n - \bar x|^2$ of the local models.
        over: "last": after the last round. "mean": on average over the models before each of the T
            rounds. "best": the smallest before each round and after the last.
        workers: N; None: the smallest number, at least 2, that the method accepts: for methods on a
            graph, the number of its nodes.
        delta: in (0, 1]: the compressor is the worst map with $|C(v) - v|^2 \le (1 - \delta)
            |v|^2$, which may differ between rounds and workers. None: the method has no
            `compressor`.
        key: key of the run, which matters if the method draws workers; None: key 0.
        hyperparameters: values of the function's arguments, such as `rate=0.5`.

    Returns:
        The worst case, with a certified bound and functions that attain it.

    Raises:
        ImportError: if Clarabel is not installed.
        ValueError: if an argument is out of range, the method is not covered, a block of the Gram
            matrix has more than 100 rows, or the solver fails.

    Source: Drori and Teboulle, "Performance of first-order methods for smooth convex minimization:
    a novel approach", 2014; Taylor, Hendrickx and Glineur, "Smooth strongly convex interpolation
    and exact worst-case performance of first-order methods", 2017.
    """
    analysis = Analysis.from_method(
        method,
        functions,
        hyperparameters,
        steps=steps,
        measure=measure,
        over=over,
        workers=workers,
        delta=delta,
        key=key,
    )
    return _verify(analysis.attain(analysis.solve(hyperparameters), hyperparameters))


def _verify(worst: WorstCase) -> WorstCase:
    """Runs the method on the worst functions; raises a ValueError if the run exceeds the bound by
    more than the error of the functions: their minimizer is the origin up to the accuracy of the
    solution.
    """
    found, unit = worst.run(), worst.functions.unit(worst.measure)
    error = _RUN * (worst.bound + np.sqrt(abs(worst.bound) * unit)) + _RUN**2 * unit
    if not found <= worst.bound + error:
        raise ValueError(
            f"worst_case: dsgd.run of {worst.method.name} on the worst functions reaches "
            f"{found:.9g}, above the bound {worst.bound:.9g}; expected a method whose rounds are "
            "those that the analysis traced, independent of the sizes of the iterates"
        )
    return worst


class Solved(NamedTuple):
    """A program with its solution.

    Args:
        layout: points of the run.
        basis: coordinates of its vectors.
        vectors: its coefficients, `[K, inputs]`.
        units: sizes of the inputs.
        scales: units of the values and of the measure.
        program: the program.
        solution: its solution.
    """

    layout: layout.Layout
    basis: symmetries.Basis
    vectors: np.ndarray
    units: np.ndarray
    scales: Scales
    program: Program
    solution: solution.Solution

    @property
    def objective(self) -> float:
        """The value of the program's primal solution, in the units of the program."""
        return float(self.program.c @ self.solution.y)

    def assembly(self, delta: float | None, vectors: np.ndarray) -> Assembly:
        """Returns the program's constraints for other coefficients of the same points."""
        return Assembly(self.layout, self.basis, vectors, self.units, delta, self.scales)


@dataclass(frozen=True, eq=False)
class Analysis:
    """Worst cases of a method as a function of its hyperparameters. Arguments are those of
    `worst_case`.
    """

    build: Build
    functions: Smooth
    reader: Reader
    measure: Measure
    over: Over
    delta: float | None
    key: jax.Array

    @classmethod
    def from_method(
        cls,
        method: Algorithm | Callable[..., Algorithm],
        functions: Smooth,
        hyperparameters: Values,
        *,
        steps: int,
        measure: Measure,
        over: Over,
        workers: int | None,
        delta: float | None,
        key: Key | None,
    ) -> Analysis:
        """Validates the arguments, and traces and probes the method."""
        steps = checks.positive_int("worst_case: steps", steps)
        for name, value, known in (
            ("measure", measure, MEASURES),
            ("over", over, OVER),
        ):
            if value not in known:
                raise ValueError(
                    f"worst_case: {name} = {value!r}; expected {', '.join(map(repr, known))}"
                )
        if measure == "distance" and not functions.convex:
            raise ValueError(
                "worst_case: measure = 'distance', but functions that are not convex need not have "
                "a minimizer; expected measure='gradient'"
            )
        if delta is not None:
            checks.number("worst_case: delta", delta, "(0, 1]")
        build = _builder(method, hyperparameters, compressed=delta is not None)
        delta = None if delta == 1 else delta  # messages without errors
        key = checks.typed_key(0 if key is None else key)
        N = (
            _accepted_workers(build, hyperparameters, delta)
            if workers is None
            else checks.positive_int("worst_case: workers", workers)
        )
        if N > 1 and not functions.convex and functions.where == "optimum":
            raise ValueError(
                f"worst_case: functions of {N} workers with mu = {functions.mu} need not have an "
                "optimum; expected Smooth(..., where='path') or 'average', which bounds the "
                "heterogeneity at the models"
            )
        reader = Reader(build, steps, N, key, delta, hyperparameters, functions)
        return cls(build, functions, reader, measure, over, delta, key)

    @cached_property
    def _evaluated_rounds(self) -> set[int]:
        of = self.functions
        path = of.where != "optimum"
        return measures.rounds_of(
            self.measure, self.over, self.reader.steps, of.gap is not None, path
        )

    def solve(self, values: Values) -> Solved:
        """Solves the program for these hyperparameters. If its value is not accurate, it is solved
        again in units of the solution.
        """
        coefficients = self.reader(values)
        points, vectors = layout.lay_out(
            self.reader, coefficients, self.functions, self._evaluated_rounds
        )
        units = sizes.units(points, vectors)
        basis = symmetries.basis(points, symmetries.find(points, vectors), units)
        _require_small(basis, self.reader.steps)
        scales, attempts = Scales(1.0, 1.0), []
        for margin in solution.MARGINS:
            assembly = Assembly(points, basis, vectors, units, self.delta, scales)
            stated = assembly.program(self.measure, self.over)
            found = solution.solve(stated, margin, *self._limits(assembly))
            attempts.append(Solved(points, basis, vectors, units, scales, stated, found))
            best, first = _best(attempts), attempts[0].program
            # A measure whose coefficients are rounding errors is 0.
            least = first.unit * _ZERO if np.abs(first.c).max() <= _ZERO else 0.0
            reliable = abs(best.objective) >= _RELIABLE or best.solution.bound <= least
            if reliable and solution.is_accurate(best.solution, least):
                return best
            if np.isfinite(found.y).all():
                grams = solution.matrices(found.y[: stated.products], stated.sizes)
                basis = basis.rescale(grams, _SMALLEST)
                F = found.y[stated.products :][: assembly.values]
                scales = scales.rescale(F, attempts[-1].objective, _SMALLEST)
        raise solution.failure(_best(attempts).solution)

    def limits(self, solved: Solved) -> tuple[float, np.ndarray]:
        """Returns a bound on the trace of G and bounds on |F|, for `solution.certify`."""
        return self._limits(solved.assembly(self.delta, solved.vectors))

    def _limits(self, assembly: Assembly) -> tuple[float, np.ndarray]:
        bounds = sizes.sizes(assembly.layout, assembly.vectors, self.delta)
        trace = bounds.trace(assembly.basis, assembly.units)
        return trace, assembly.value_bounds(bounds, self.measure, self.over)

    def slope(self, solved: Solved, values: Values, name: str) -> float:
        r"""Returns the derivative of the worst case by a hyperparameter, from the multipliers l:

        $$ \frac{dw}{d\gamma} = \frac{dc}{d\gamma} \cdot y - l \cdot \frac{dA}{d\gamma} y. $$

        It is a subgradient if the multipliers are not unique.
        """
        change = layout.stack(self.reader.derivative(values, name)) @ solved.layout.merge
        # c and A are quadratic in the coefficients, so central differences are exact.
        ahead, behind = (
            solved.assembly(self.delta, solved.vectors + sign * change).program(
                self.measure, self.over
            )
            for sign in (1, -1)
        )
        y, multipliers = solved.solution.y, solved.solution.multipliers
        of_objective = (ahead.c - behind.c) @ y
        of_constraints = multipliers @ ((ahead.A - behind.A) @ y)
        return float(of_objective - of_constraints) / 2 * solved.program.unit

    def attain(self, solved: Solved, values: Values) -> WorstCase:
        """Returns the worst case with the functions that attain it."""
        N, of = self.reader.N, self.functions
        vectors = solved.basis.inputs(
            [
                _factor(block)
                for block in solution.matrices(
                    solved.solution.y[: solved.program.products], solved.program.sizes
                )
            ]
        )
        if solved.layout.messages:  # N servers have one part each; the first has all coordinates
            vectors = np.pad(vectors, ((0, 0), (0, (N - 1) * vectors.shape[1])))
        values_at = self._values_at(solved)
        points = [_points(solved, n, vectors, values_at) for n in range(N)]
        most = max(len(f) for _, _, f in points)
        x, g, f = (
            np.stack([_repeat_last(rows, most) for rows in each])
            for each in zip(*points, strict=True)
        )
        start = vectors[0] if of.convex else np.zeros(vectors.shape[1])
        method = self.build(values, self._compressor(solved, vectors))
        return WorstCase(
            min(solved.solution.value, solved.solution.bound),
            solved.solution.bound,
            of.convex or N == 1,
            solved.solution.status,
            interpolated.problem(
                x, g, f, start, L=of.L, mu=of.mu, name=f"worst case of {method.name}"
            ),
            method,
            of,
            self.reader.steps,
            self.measure,
            self.over,
            self.key,
            solved.basis.symmetry,
            tuple(solved.basis.sizes),
        )

    def _values_at(self, solved: Solved) -> Callable[[int, int], float]:
        assembly = solved.assembly(self.delta, solved.vectors)
        F = solved.solution.y[solved.program.products :]
        return lambda n, point: float(assembly.value(n, point) @ F[: assembly.values])

    def _compressor(self, solved: Solved, vectors: np.ndarray) -> Any:
        sent = solved.layout.messages
        ids = np.array([message.id for message in sent], np.int32)
        p = vectors.shape[1] // self.reader.N if sent else 0
        errors = vectors[[message.error for message in sent], :p]
        return messages.with_errors(ids, errors, self.delta or 1.0)


def _points(
    solved: Solved, n: int, vectors: np.ndarray, values: Callable[[int, int], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns points, gradients and values of worker n's function, with the optimum."""
    points = solved.layout.points[n]
    x = solved.vectors[[point.row for point in points]] @ vectors
    g = vectors[[point.gradient for point in points]]
    f = np.array([values(n, number) for number in range(len(points))])
    if not solved.layout.of.convex:
        return x, g, f
    optimum = solved.layout.optimum
    at_optimum = vectors[optimum[n]] if optimum else 0 * vectors[0]
    origin = np.zeros((1, vectors.shape[1]))
    return (
        np.concatenate([x, origin]),
        np.concatenate([g, at_optimum[None]]),
        np.append(f, 0.0),
    )


def _repeat_last(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns the rows with the last one repeated, so that there are `count`."""
    return np.concatenate([rows, np.repeat(rows[-1:], count - len(rows), axis=0)])


def _factor(gram: np.ndarray) -> np.ndarray:
    """Returns vectors with this Gram matrix, `[n, p]`."""
    values, axes = np.linalg.eigh(gram)
    kept = values > _CUT * max(values.max(initial=0), 1e-300)
    return axes[:, kept] * np.sqrt(values[kept])


def _best(attempts: list[Solved]) -> Solved:
    """Returns the attempt whose value is the nearest to the smallest of the bounds, which all hold,
    with this bound.
    """
    bound = min(attempt.solution.bound for attempt in attempts)

    def distance(attempt):
        difference = abs(attempt.solution.value - bound)
        return difference if np.isfinite(difference) else np.inf

    best = min(attempts, key=distance)
    return best._replace(solution=best.solution._replace(bound=bound))


def _require_small(basis: symmetries.Basis, steps: int) -> None:
    largest = max(basis.sizes)
    if largest > LARGEST:
        fitting = max(1, steps * LARGEST // largest)
        raise ValueError(
            f"worst_case: the Gram matrix has a block of {largest} rows; expected at most "
            f"{LARGEST}; use about {fitting} steps, fewer workers, or a method that permutations "
            "of the workers leave unchanged, such as one on topologies.ring"
        )


def _builder(
    method: Algorithm | Callable[..., Algorithm], hyperparameters: Values, *, compressed: bool
) -> Build:
    """Returns the method as a function of hyperparameters and a compressor."""
    if isinstance(method, Algorithm):
        if hyperparameters or compressed:
            given = [*hyperparameters, *["delta"] * compressed]
            raise ValueError(
                f"worst_case: {', '.join(given)} given with a method; expected a function that "
                "returns the method, such as lambda rate: algorithms.extra(optax.sgd(rate), graph)"
            )
        return lambda values, compressor: method
    named = ["compressor"] if compressed else []
    checks.require_call("worst_case: method", method, keywords=[*named, *hyperparameters])

    def build(values: Values, compressor: Any) -> Algorithm:
        made = method(**values, **({"compressor": compressor} if compressed else {}))
        if not isinstance(made, Algorithm):
            raise ValueError(
                f"worst_case: method returns {checks.kind(made)}; expected a dsgd.Algorithm"
            )
        return made

    return build


def _accepted_workers(build: Build, values: Values, delta: float | None) -> int:
    """Returns the smallest number of workers, at least 2, with which a round can be traced."""
    refused: ValueError | None = None
    for N in range(2, _MOST_WORKERS + 1):
        try:
            _trace_round(build, values, N, delta)
        except ValueError as error:
            refused = refused or error
        else:
            return N
    assert refused is not None
    raise refused


def _trace_round(build: Build, values: Values, N: int, delta: float | None) -> None:
    """Traces one round of N workers; nothing is compiled."""
    problem = rounds.problem_of_gradients(1, lambda x, answer: answer)

    def first_round(key):
        compressor = messages.with_errors(np.zeros(0, np.int32), np.zeros((0, 1)), delta or 1.0)
        method = protocol.Method(build(values, compressor), problem, N)
        state = method.init(problem.init(key))
        query, samples, update = run_keys.round_keys(key, state.step)
        this_round = Round(state.step, N, query, problem=problem)
        asked = method.query(state, this_round)
        gradients = queries.map_each(
            lambda query: Oracle(problem, N, jnp.zeros((N, 1))).gradients(query, samples), asked
        )
        work = queries.local_work(asked, problem, N)
        return method.update(state, gradients, this_round._replace(work=work), update)[0]

    with jax.enable_x64(True):
        jax.eval_shape(rounds.place_on_one_device(first_round), checks.typed_key())
