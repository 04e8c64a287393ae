"""The points, gradients and values of the workers' functions that a run and its measure refer to.

All vectors of the analysis are linear in *inputs*: the start, a gradient for each point, the
gradients at the optimum, and the errors of messages. A worker that queries the same point twice
receives the same gradient, so equal points are merged: the later input is replaced by the earlier
one in all coefficients. (Without merging, the semidefinite program has no interior.) The minimizer
is the origin, and $f_n(x^\\star) = 0$, since a constant in each $f_n$ does not matter. Functions
that are not convex need not have a minimizer; the start is then the origin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory_checks.worst_cases.classes import Smooth
from theory_checks.worst_cases.coefficients import Coefficients, Reader

_SAME = 1e-11  # relative difference up to which two points are the same
_INVARIANT = 1e-13  # rounding errors of the start's coefficients


class Rows(NamedTuple):
    """Numbering of the coefficient vectors of a run as rows of one matrix, see `stack`."""

    T: int
    Q: int
    N: int
    R: int

    def point(self, t: int, q: int, n: int) -> int:
        """Returns the row of the point at which query q of round t asks worker n."""
        return (t * self.Q + q) * self.N + n

    def model(self, t: int) -> int:
        """Returns the row of the model before round t."""
        return self.T * self.Q * self.N + t

    def local_model(self, t: int, n: int) -> int:
        """Returns the row of worker n's model before round t."""
        return self.model(self.T) + 1 + t * self.N + n

    def message(self, t: int, r: int) -> int:
        """Returns the row of the vector that message r of round t compresses."""
        return self.local_model(self.T, self.N) + t * self.R + r


def stack(coefficients: Coefficients) -> np.ndarray:
    """Returns all coefficient vectors as rows of one matrix, `[K, B]`, numbered by `Rows`."""
    B = coefficients.models.shape[-1]
    parts = (
        coefficients.points,
        coefficients.models,
        coefficients.local_models,
        coefficients.messages,
    )
    return np.concatenate([np.asarray(part).reshape(-1, B) for part in parts])


class Point(NamedTuple):
    """A point of a worker's function.

    Args:
        row: its coefficients, a row of the matrix.
        gradient: the input that is the gradient there.
    """

    row: int
    gradient: int


class Message(NamedTuple):
    """A compressed message.

    Args:
        row: the coefficients of the vector that is compressed.
        error: the input that is its error.
        t: the round.
        id: its id, by which its key is recognised.
        owner: the worker that compresses it, if it depends on this worker's gradient of the round
            and on no other; else None.
    """

    row: int
    error: int
    t: int
    id: int
    owner: int | None


class Layout(NamedTuple):
    """Points, inputs and messages of the analysis of one run.

    Args:
        of: the class of functions.
        rows: numbering of the coefficient vectors.
        merge: `[B, inputs]`: from the inputs of the run to those of the analysis, which has
            additional ones and in which equal ones are merged.
        points: the points of each worker's function, without the optimum.
        queried: number of the point at which query q of round t asks worker n, by (t, q, n).
        evaluated: number of the point that is the model of round t, by (t, n), for all rounds
            in which the models' values and gradients are needed.
        optimum: the inputs $f_n'(x^\\star)$; empty if all are 0 or there is no optimum.
        slots: inputs that correspond to each other on all workers, by name, `[N]` each.
        shared: the other inputs.
        messages: the messages, without those of padding.
    """

    of: Smooth
    rows: Rows
    merge: np.ndarray
    points: list[list[Point]]
    queried: dict[tuple[int, int, int], int]
    evaluated: dict[tuple[int, int], int]
    optimum: list[int]
    slots: dict[tuple[Any, ...], np.ndarray]
    shared: list[int]
    messages: list[Message]

    @property
    def rounds(self) -> list[int]:
        """The rounds before which all functions are evaluated at the model."""
        return sorted({t for t, _ in self.evaluated})


def lay_out(
    reader: Reader, coefficients: Coefficients, of: Smooth, evaluated: set[int]
) -> tuple[Layout, np.ndarray]:
    """Finds the points of a run.

    Args:
        reader: the method.
        coefficients: from the reader.
        of: the class of functions.
        evaluated: rounds before which the functions are evaluated at the model.

    Returns:
        The layout, and the coefficient vectors in the inputs of the analysis, `[K, inputs]`.

    Raises:
        ValueError: if the run is not the same, up to a translation, for a start and functions that
            are translated.
    """
    N, B = reader.N, reader.inputs
    rows = Rows(reader.steps, reader.queries, N, reader.ids.shape[1])
    rounds = sorted(evaluated)
    at_model = {(t, n): B + i * N + n for i, t in enumerate(rounds) for n in range(N)}
    first_optimum = B + len(rounds) * N
    vectors = np.pad(stack(coefficients), ((0, 0), (0, len(rounds) * N + N)))
    onto = np.arange(vectors.shape[1])
    used_rows = _used_rows(rows, coefficients.asked)
    sent = [rows.message(t, r) for t in range(rows.T) for r in range(rows.R)]
    _require_invariant(vectors[used_rows, 0], vectors[sent, 0])
    if not of.convex:
        vectors[:, 0], onto[0] = 0, -1
    messages = _messages(reader, rows, vectors, onto)
    points, queried = _find_points(reader, rows, coefficients.asked, vectors, onto)
    evaluations = {}
    for (t, n), gradient in at_model.items():
        evaluations[t, n] = _find_or_add(points[n], vectors, onto, rows.model(t), gradient)
    differ = of.convex and (of.heterogeneity > 0 or of.where == "average") and N > 1
    optimum = [first_optimum + n for n in range(N)] if differ else []
    merge = np.zeros((B, vectors.shape[1]))
    kept = np.flatnonzero(onto[:B] >= 0)
    merge[kept, onto[kept]] = 1
    names = _names(reader, points, messages, at_model, optimum)
    slots, shared = _slots(names, N)
    if of.convex:
        shared = [0, *shared]
    layout = Layout(of, rows, merge, points, queried, evaluations, optimum, slots, shared, messages)
    return layout, vectors


def _used_rows(rows: Rows, asked: np.ndarray) -> list[int]:
    points = [rows.point(*place) for place in np.argwhere(asked).tolist()]
    return [*points, *range(rows.model(0), rows.local_model(rows.T, rows.N))]


def _require_invariant(models: np.ndarray, messages: np.ndarray) -> None:
    """Refuses methods that are not invariant under translations, for which the origin matters: the
    analysis places the optimum, or the start, there.

    Args:
        models: coefficients of the start in the points and models, which must be 1.
        messages: those in the compressed vectors, which must be 0.
    """
    for what, found, expected in (("point or model", models, 1), ("message", messages, 0)):
        wrong = found[np.abs(found - expected) > _INVARIANT]
        if len(wrong):
            raise ValueError(
                f"worst_case: a {what} of the method contains {wrong[0]:.6g} times its start, so "
                "that its worst case depends on the distance of the optimum from the origin, which "
                f"the class does not bound; expected {expected} times the start. Weight decay, "
                "averages that start at zero and messages of whole models are not covered: use a "
                "regularized function, averages that start at the first model, messages of changes"
            )


def _messages(reader: Reader, rows: Rows, vectors: np.ndarray, onto: np.ndarray) -> list[Message]:
    """Returns the messages that compress something; removes the errors of the others, which are
    padding, from all vectors.
    """
    T, Q, N, R = rows
    every = [(t, r) for t in range(T) for r in range(R)]
    while True:
        padding = [
            reader.error(t, r)
            for t, r in every
            if not np.any(vectors[rows.message(t, r)]) and onto[reader.error(t, r)] >= 0
        ]
        if not padding:
            break
        vectors[:, padding], onto[padding] = 0, -1
    found = []
    for t, r in every:
        error, row = reader.error(t, r), rows.message(t, r)
        if onto[error] >= 0:
            by_worker = vectors[row, reader.gradient(t, 0, 0) : reader.gradient(t, Q, 0)]
            by_worker = np.abs(by_worker).reshape(Q, N).max(axis=0)
            owners = np.flatnonzero(by_worker > _SAME)
            owner = int(owners[0]) if len(owners) == 1 else None
            found.append(Message(row, error, t, int(reader.ids[t, r]), owner))
    return found


def _find_points(
    reader: Reader, rows: Rows, asked: np.ndarray, vectors: np.ndarray, onto: np.ndarray
) -> tuple[list[list[Point]], dict[tuple[int, int, int], int]]:
    """Returns the points at which each worker is asked, and the number of the point of each
    query.
    """
    points: list[list[Point]] = [[] for _ in range(rows.N)]
    queried = {}
    for t, q, n in np.argwhere(asked).tolist():
        row, gradient = rows.point(t, q, n), reader.gradient(t, q, n)
        queried[t, q, n] = _find_or_add(points[n], vectors, onto, row, gradient)
    return points, queried


def _find_or_add(
    points: list[Point], vectors: np.ndarray, onto: np.ndarray, row: int, gradient: int
) -> int:
    """Returns the number of the point in the list, which is added if it is new. The gradient of a
    point that is not new is replaced by that of the earlier one in all vectors.
    """
    for number, point in enumerate(points):
        difference = np.abs(vectors[point.row] - vectors[row]).max()
        if difference <= _SAME * (1 + np.abs(vectors[row]).max()):
            vectors[:, point.gradient] += vectors[:, gradient]
            vectors[:, gradient] = 0
            onto[gradient] = point.gradient
            return number
    points.append(Point(row, gradient))
    return len(points) - 1


def _names(
    reader: Reader,
    points: list[list[Point]],
    messages: list[Message],
    at_model: dict[tuple[int, int], int],
    optimum: list[int],
) -> dict[int, tuple]:
    """Returns the name of each input and its worker: (name ..., n), or (name ..., None) for inputs
    that belong to no worker.
    """
    queries = {
        reader.gradient(t, q, n): ("query", t, q, n)
        for t in range(reader.steps)
        for q in range(reader.queries)
        for n in range(reader.N)
    }
    models = {gradient: ("model", t, n) for (t, n), gradient in at_model.items()}
    gradients = {
        point.gradient: {**queries, **models}[point.gradient] for of in points for point in of
    }
    optima = {gradient: ("optimum", n) for n, gradient in enumerate(optimum)}
    errors, sent = {}, {}
    for message in messages:
        which = sent.setdefault((message.t, message.owner), 0)
        sent[message.t, message.owner] += 1
        errors[message.error] = ("error", message.t, which, message.owner)
    return {**gradients, **optima, **errors}


def _slots(names: dict[int, tuple], N: int) -> tuple[dict[tuple, np.ndarray], list[int]]:
    """Returns the inputs that all workers have, by name, and the other inputs."""
    found: dict[tuple, dict[int | None, int]] = {}
    shared = []
    for gradient, (*name, n) in sorted(names.items()):
        if n is None:
            shared.append(gradient)
        else:
            found.setdefault(tuple(name), {})[n] = gradient
    slots = {}
    for name, by_worker in found.items():
        if len(by_worker) == N:
            slots[name] = np.array([by_worker[n] for n in range(N)])
        else:
            shared += by_worker.values()
    return slots, shared
