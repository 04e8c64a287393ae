"""One job in all versions: `benchmark peers` runs each version in a separate process, some of them
with another Python.

    python -m experiments.benchmark.jobs.peers numpy '{"data": FOLDER, "rounds": 20}'

The job is logistic regression of N workers, each with few samples, all of which are in every
gradient. Nothing is random, so all versions compute the same iterates. Everything is float64. Each
version imports its own library; everything else needs only numpy.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmark import timing

# number of rounds from the start -> the models, `[N, d]`; for minibatch_sgd the model, `[d]`
Run = Callable[[int], Any]
RESULT = "result"  # line that a version prints when the first result is available
# rounds between two records of dsgd, or snapshots of decent-bench: only the last round has one
RARELY = 1 << 20


@dataclass(frozen=True)
class Job:
    """Arguments of the job.

    Args:
        data: folder with inputs.npy `[N, m, d]` and targets.npy `[N, m]`, 0 or 1.
        rounds: number of rounds to the first result.
        seconds: approximate length of the timing after it, which has at least as many rounds; 0: no
            timing.
        save: file for the models of the first result, .npy; "": none.
        method: name in `algorithms.ALGORITHMS`; a version implements some of them.
        learning_rate: step size of all methods.
    """

    data: str
    rounds: int
    seconds: float = 0.0
    save: str = ""
    method: str = "decentralized_sgd"
    learning_rate: float = 1.0

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs `[N, m, d]` and targets `[N, m]`, float64."""
        return np.load(Path(self.data) / "inputs.npy"), np.load(Path(self.data) / "targets.npy")


def dsgd_run(what: Job) -> Run:
    """Runs the job in dsgd, as a user would write it: a loss, data, and a registered method."""
    import jax
    import jax.numpy as jnp
    import optax

    import algorithms
    import dsgd

    inputs, targets = what.load()

    def loss(x, samples):
        return optax.sigmoid_binary_cross_entropy(samples[0] @ x, samples[1]).mean()

    start = jnp.zeros(inputs.shape[-1])
    data = jnp.asarray(inputs), jnp.asarray(targets)
    problem = dsgd.Problem(
        init=lambda key: start, loss=loss, data=data, sample=lambda key, mine: mine
    )
    method = algorithms.make(what.method, optax.sgd(what.learning_rate), len(inputs))
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)

    def run(rounds: int) -> jax.Array:
        result = dsgd.run(method, problem, steps=rounds, key=key, record_every=RARELY, mesh=mesh)
        return jax.block_until_ready(
            result.state.workers.params if what.method != "minibatch_sgd" else result.params
        )

    return run


def scan(what: Job) -> Run:
    """Runs the job as a hand-written JAX loop. Products by einsum are the fastest of six forms on
    CPUs (matmul is as fast, broadcasting is slower).
    """
    import jax
    import jax.numpy as jnp

    inputs, targets = map(jnp.asarray, what.load())
    N, m, d = inputs.shape
    rate = what.learning_rate / m

    def ring(x, inputs, targets):
        error = jax.nn.sigmoid(jnp.einsum("nmd,nd->nm", inputs, x)) - targets
        half = x - rate * jnp.einsum("nmd,nm->nd", inputs, error)
        return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3

    def mean(x, inputs, targets):
        error = jax.nn.sigmoid(inputs.reshape(N * m, d) @ x) - targets.reshape(N * m)
        return x - rate / N * (error @ inputs.reshape(N * m, d))

    one_round, shape = {"decentralized_sgd": (ring, (N, d)), "minibatch_sgd": (mean, (d,))}[
        what.method
    ]

    @jax.jit
    def many(rounds, inputs, targets):
        return jax.lax.fori_loop(
            0, rounds, lambda _, x: one_round(x, inputs, targets), jnp.zeros(shape)
        )

    return lambda rounds: jax.block_until_ready(many(rounds, inputs, targets))


def numpy_loop(what: Job) -> Run:
    """Runs the job as a numpy loop."""
    inputs, targets = what.load()

    def one_round(x):
        error = 1 / (1 + np.exp(-np.matmul(inputs, x[..., None])[..., 0])) - targets
        half = x - what.learning_rate / targets.shape[1] * np.matmul(error[:, None], inputs)[:, 0]
        return (half + np.roll(half, 1, axis=0) + np.roll(half, -1, axis=0)) / 3

    def run(rounds: int) -> np.ndarray:
        x = np.zeros((len(inputs), inputs.shape[-1]))
        for _ in range(rounds):
            x = one_round(x)
        return x

    return run


def torch_tensors(what: Job) -> Run:
    """Runs the job in PyTorch: all workers' models are one tensor."""
    import torch  # pyright: ignore[reportMissingImports]

    inputs, targets = map(torch.from_numpy, what.load())

    @torch.inference_mode()
    def run(rounds: int) -> Any:
        x = torch.zeros(inputs.shape[0], inputs.shape[-1], dtype=inputs.dtype)
        for _ in range(rounds):
            error = torch.sigmoid(torch.bmm(inputs, x[..., None])[..., 0]) - targets
            half = (
                x - what.learning_rate / targets.shape[1] * torch.bmm(error[:, None], inputs)[:, 0]
            )
            x = (half + torch.roll(half, 1, dims=0) + torch.roll(half, -1, dims=0)) / 3
        return x

    return run


def decent_bench(what: Job) -> Run:
    """Runs the job in decent-bench: with its cost, network and methods, on numpy, the default for
    its costs.
    """
    import networkx as nx
    from decent_array import interoperability as arrays  # pyright: ignore[reportMissingImports]
    from decent_bench.agents import Agent  # pyright: ignore[reportMissingImports]
    from decent_bench.algorithms import p2p  # pyright: ignore[reportMissingImports]
    from decent_bench.costs import LogisticRegressionCost  # pyright: ignore[reportMissingImports]
    from decent_bench.networks import P2PNetwork  # pyright: ignore[reportMissingImports]

    arrays.set_backend("numpy", "cpu")
    inputs, targets = what.load()
    agents = []
    for mine, classes in zip(inputs, targets, strict=True):
        samples = [
            (arrays.from_numpy(x), arrays.from_numpy(y))
            for x, y in zip(mine, classes[:, None], strict=True)
        ]
        agents.append(Agent(LogisticRegressionCost(samples), state_snapshot_period=RARELY))
    # its weights are Metropolis weights, 1/3
    network = P2PNetwork(nx.cycle_graph(len(agents)), agents)
    methods = {
        "decentralized_sgd": p2p.ATC,
        "dgd": p2p.DGD,
        "extra": p2p.EXTRA,
        "exact_diffusion": p2p.ED,
        "atc_tracking": p2p.ATC_Tracking,
        "nids": p2p.NIDS,
        "k_gt": partial(p2p.KGT, num_local_steps=4, aux_step_size=1.0),
        "lt_admm": partial(p2p.LT_ADMM, num_local_steps=4, aux_step_size=0.05, penalty=0.5),
    }
    method = methods[what.method](step_size=what.learning_rate)
    steps = getattr(method, "num_local_steps", 1)

    def run(rounds: int) -> np.ndarray:
        method.run(network, iterations=rounds // steps)
        return np.stack([arrays.to_numpy(agent.x) for agent in network.agents()])

    return run


def fedjax_clients(what: Job) -> Run:
    """Runs mini-batch SGD in fedjax: federated averaging with one step of each client, on all of
    its samples.
    """
    import fedjax  # pyright: ignore[reportMissingImports]
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg  # pyright: ignore[reportMissingImports]

    inputs, targets = what.load()

    def loss(x, batch, key):
        logits = batch["x"] @ x
        return jnp.mean(jnp.logaddexp(0, logits) - batch["y"] * logits)

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=targets.shape[1], num_epochs=1)
    client, server = fedjax.optimizers.sgd(what.learning_rate), fedjax.optimizers.sgd(1.0)
    method = fed_avg.federated_averaging(jax.grad(loss), client, server, batches)
    keys = jax.random.split(jax.random.key(0), len(inputs))
    clients = [
        (n, fedjax.ClientDataset({"x": inputs[n], "y": targets[n]}), keys[n])
        for n in range(len(inputs))
    ]

    def run(rounds: int) -> Any:
        state = method.init(jnp.zeros(inputs.shape[-1]))
        for _ in range(rounds):
            state, _ = method.apply(state, clients)
        return jax.block_until_ready(state.params)

    return run


class Version(NamedTuple):
    """A version: a function of the job, and the packages whose versions are reported."""

    build: Callable[[Job], Run]
    packages: tuple[str, ...]


VERSIONS = {
    "dsgd": Version(dsgd_run, ("dsgd", "jax", "jaxlib", "numpy")),
    "scan": Version(scan, ("jax", "jaxlib", "numpy")),
    "numpy": Version(numpy_loop, ("numpy",)),
    "torch": Version(torch_tensors, ("torch", "numpy")),
    "decent-bench": Version(decent_bench, ("decent-bench", "decent-array", "numpy")),
    "fedjax": Version(fedjax_clients, ("fedjax", "jax", "jaxlib", "numpy")),
}


def main(version: Version, job: Job) -> None:
    """Runs the job: prints a line when the first result is available, and a line of JSON at the
    end.
    """
    run = version.build(job)
    models = run(job.rounds)
    print(RESULT, flush=True)
    if job.save:
        np.save(job.save, np.asarray(models))
    report: dict[str, Any] = {
        "memory": peak(),
        "versions": {name: importlib.metadata.version(name) for name in version.packages},
    }
    report["versions"]["Python"] = platform.python_version()
    if job.seconds:
        # the fixed cost of each call must be negligible
        count = max(timing.calibrate(run, job.seconds), job.rounds)
        report["rounds_per_second"] = count / timing.clock(run, count)
    print(json.dumps(report))


def peak() -> int:
    """Returns the peak memory of this process, bytes.

    On Linux it does not use `ru_maxrss`, which a process inherits from the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(VERSIONS[sys.argv[1]], Job(**json.loads(sys.argv[2])))
