"""The fingerprint of a run: what it computes, from which data, keys, hyperparameters and start.

A checkpoint stores the fingerprint, so that only the same run resumes from it.
"""

from __future__ import annotations

import hashlib
import json

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import Problem, PyTree
from dsgd.engine import loop, programs
from dsgd.engine.client_pool import ClientPool
from dsgd.machines import agreement, arrays
from dsgd.runs.run_spec import RunSpec

PROGRAM = "program"
_TOOLS = {"platform", "jax"}  # they matter only if they lower to a different program


def validate(job: RunSpec, has_checkpoint: bool) -> dict[str, str]:
    """Returns the fingerprint of the run, by name, and validates that it is equal in all processes.

    The result is {} if it is not needed: in a single process without a checkpoint.

    Args:
        job, has_checkpoint: as in `make`.

    Raises:
        ValueError: if the processes execute different runs; or as in `make`.
    """
    several = job.plan.mesh.is_multi_process
    about = make(job, has_checkpoint) if several or has_checkpoint else {}
    if several:
        also = {
            "steps": job.steps,
            "first round": job.before,
            "devices": job.plan.mesh.size,
            "capacity": job.plan.capacity,
        }
        asked = {"checkpoint": has_checkpoint, "until": job.until is not None}
        require_same(about | {name: str(value) for name, value in (also | asked).items()})
    return about


def make(job: RunSpec, has_checkpoint: bool) -> dict[str, str]:
    """Returns the fingerprint of the run, by name.

    It is equal for equal runs, and does not depend on the number of rounds or devices, or on the
    division into chunks.

    Args:
        job: the run.
        has_checkpoint: whether the run has a checkpoint.

    Raises:
        ValueError: if a run with a checkpoint has streamed batches without a fingerprint.
    """
    plan = job.plan
    return {
        "method": job.name,
        **_hyperparameters(job),
        "problem": job.problem.name,
        "workers": str(plan.N),
        "batch_size": str(job.problem.batch_size),
        "data": digest(
            job.shared,
            _data_digest(job.problem.data, has_checkpoint) + weights_text(job.problem),
        ),
        **_batches(job, has_checkpoint),
        "seeds": str(job.keys.shape[-1] if plan.runs else None),
        "record_every": str(plan.record_every),
        "train_loss": str(plan.train_loss),
        "evaluate_every": str(plan.evaluate_every),
        "cluster": plan.cluster.name if plan.cluster else "None",
        "key": digest(job.keys),
        "start": "None" if job.start is None else digest(job.start),
        "platform": plan.mesh.devices.flat[0].platform,
        "jax": jax.__version__,
        PROGRAM: _program(job),
    }


def differences(
    one: dict[str, str],
    other: dict[str, str],
    where: tuple[str, str] = ("in the checkpoint", "in this run"),
) -> str:
    """Returns the differences of two fingerprints, as text.

    The text is empty if there are none, or if they have no effect on the lowered program.

    Args:
        one, other: the fingerprints.
        where: the words with which the text refers to the two.
    """
    differ = [name for name in other if one.get(name) != other[name]]
    if PROGRAM not in differ:
        differ = [name for name in differ if name not in _TOOLS]
    named = [
        f"{name} = {one.get(name)} {where[0]}, {other[name]} {where[1]}"
        for name in differ
        if name != PROGRAM
    ]
    if named or not differ:
        return "; ".join(named)
    return (
        "the compiled programs differ: another hyperparameter, schedule, topology, loss or version "
        "of the code"
    )


def require_same(about: dict[str, str]) -> None:
    """Raises ValueError if the processes execute different runs. The message lists the differences
    in every process.
    """
    first, *others = [
        json.loads(words) for words in agreement.all_gather("what is run", json.dumps(about))
    ]
    for i, other in enumerate(others, start=1):
        if found := differences(first, other, ("in process 0", f"in process {i}")):
            raise ValueError(
                f"the processes run different configurations ({found}); expected the same call in "
                "every process"
            )


def _hyperparameters(job: RunSpec) -> dict[str, str]:
    return {f"grid {name}": f"{np.asarray(values).tolist()}" for name, values in job.points.items()}


def _batches(job: RunSpec, has_checkpoint: bool) -> dict[str, str]:
    """Returns the fingerprint of the streamed batches, which a run with a checkpoint requires, and
    a digest of the first one.
    """
    if job.feed is None:
        return {"batches": "None"}
    if not has_checkpoint:
        return {"batches": job.feed.fingerprint or "unnamed"}
    if job.feed.fingerprint is None:
        raise ValueError(
            "run: checkpoint is given, but batches have no fingerprint, so a resumed run might get "
            "other batches; expected an attribute `fingerprint`; pass dsgd.Batches(batches, "
            "'CIFAR-10, shuffled with seed 3')"
        )
    by_worker = NamedSharding(job.plan.mesh, P(workers.AXIS))
    rows = _rows_digest(arrays.place(job.feed.first, by_worker))
    return {
        "batches": job.feed.fingerprint,
        "digest of the first batch": hashlib.sha256(rows.encode()).hexdigest()[:16],
    }


def _program(job: RunSpec) -> str:
    """Returns a hash of the initialization and the loop, lowered for one device and chunks of one
    record.
    """
    one = Mesh(job.plan.mesh.local_devices[:1], (workers.AXIS,))
    alone = job._replace(plan=job.plan._replace(mesh=one, capacity=1))
    carry, points, keys, *others = alone.shapes()
    start = programs.text(loop.first_carry, alone.plan, points, keys)
    advance = programs.text(loop.advance, alone.plan, carry, points, keys, *others)
    return hashlib.sha256((start + advance).encode()).hexdigest()[:16]


def weights_text(problem: Problem) -> str:
    """Returns the workers' weights as text, for `digest`; "" if all are equal."""
    return "" if problem.weights is None else f" weights {list(map(float, problem.weights))}"


def _data_digest(data: PyTree, has_checkpoint: bool) -> str:
    """Returns the digests of the workers' data; of clients that are loaded when they are drawn,
    their fingerprint, which a run with a checkpoint requires.
    """
    if not isinstance(data, ClientPool):
        return _rows_digest(data)
    assert data.source is not None
    if has_checkpoint and data.source.fingerprint is None:
        raise ValueError(
            "run: checkpoint is given, but the clients have no fingerprint, so a resumed run might "
            "get other data; pass problems.clients(sizes, load, fingerprint='FEMNIST, by writer')"
        )
    return f"{data.source.fingerprint} {_rows_digest(data.size)}"


def _rows_digest(data: PyTree) -> str:
    """Returns the digests of the workers' rows of arrays `[N, ...]`, wherever they are stored."""
    named = jax.tree_util.tree_leaves_with_path(data)
    return " ".join(
        f"{jax.tree_util.keystr(path)} {' '.join(arrays.row_digests(leaf))}" for path, leaf in named
    )


def digest(tree: PyTree, more: str = "") -> str:
    """Returns a digest of all leaves, with names, types and shapes, and of additional text."""
    sha = hashlib.sha256(more.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sha.update(f"{jax.tree_util.keystr(path)} {arrays.row_digest(arrays.fetch(leaf))}".encode())
    return sha.hexdigest()[:16]
