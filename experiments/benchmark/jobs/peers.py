"""One job in all ways: `benchmark peers` runs each version in a process of its own, some of them in
a Python of their own.

    python -m experiments.benchmark.jobs.peers numpy '{"data": FOLDER, "rounds": 20}'

The job is logistic regression of N workers, each with few samples and all of them in every
gradient, so that nothing is random: all versions make the same iterates. Everything is float64.
Each version imports its own library; the rest needs numpy alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmark import timing

# rounds, from the start on -> the models, [N, d], or of mb-sgd the one model, [d]
Run = Callable[[int], Any]
RESULT = "result"  # the line that a version prints when the first result is there
# rounds between two records of dsgd, or snapshots of decent-bench: only the last round has one
RARELY = 1 << 20


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Args:
        data: a folder with inputs.npy `[N, m, d]` and targets.npy `[N, m]`, 0 or 1.
        rounds: until the first result.
        seconds: length of the timing after it, about, which has as many rounds at least; 0: none.
        save: file for the models of the first result, .npy; "": none.
        method: by its name in `algorithms.ALGORITHMS`; a version has some.
        learning_rate: of all methods.
    """

    data: str
    rounds: int
    seconds: float = 0.0
    save: str = ""
    method: str = "dsgd"
    learning_rate: float = 1.0

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `[N, m, d]` and targets `[N, m]`, float64."""
        return np.load(Path(self.data) / "inputs.npy"), np.load(Path(self.data) / "targets.npy")


def dsgd_run(what: Job) -> Run:
    """In dsgd, as a user would write it: a loss, data, and a registered method."""
    import jax
    import jax.numpy as jnp
    import optax

    import algorithms
    import dsgd

    dsgd.cache.enable()
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
            result.state.workers.params if what.method != "mb-sgd" else result.params
        )

    return run


def scan(what: Job) -> Run:
    """As a hand-written JAX loop. Products as einsum are the fastest of six forms on CPUs (matmul
    is as fast, broadcasts are slower).
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

    one_round, shape = {"dsgd": (ring, (N, d)), "mb-sgd": (mean, (d,))}[what.method]

    @jax.jit
    def many(rounds, inputs, targets):
        return jax.lax.fori_loop(
            0, rounds, lambda _, x: one_round(x, inputs, targets), jnp.zeros(shape)
        )

    return lambda rounds: jax.block_until_ready(many(rounds, inputs, targets))


def numpy_loop(what: Job) -> Run:
    """As a numpy loop."""
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
    """In PyTorch: all workers' models as one tensor."""
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
    """In decent-bench: its own cost, network and methods, on numpy, which is its default for its
    own costs.
    """
    import networkx as nx
    from decent_array import interoperability as arrays  # pyright: ignore[reportMissingImports]
    from decent_bench.agents import Agent  # pyright: ignore[reportMissingImports]
    from decent_bench.algorithms.p2p import ATC, ED, EXTRA  # pyright: ignore[reportMissingImports]
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
    network = P2PNetwork(nx.cycle_graph(len(agents)), agents)  # whose weights are Metropolis's, 1/3
    methods = {"dsgd": ATC, "extra": EXTRA, "exact-diffusion": ED}
    method = methods[what.method](step_size=what.learning_rate)

    def run(rounds: int) -> np.ndarray:
        method.run(network, iterations=rounds)
        return np.stack([arrays.to_numpy(agent.x) for agent in network.agents()])

    return run


def fedjax_clients(what: Job) -> Run:
    """Mini-batch SGD in fedjax: federated averaging with one step of each client, on all of its
    samples.
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
    """How a version is made of a job, and the packages whose versions it reports."""

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
    """Does the job: prints a line when the first result is there, and at the end one of JSON."""
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
        # what each call does once must not count for much
        count = max(timing.calibrate(run, job.seconds), job.rounds)
        report["rounds_per_second"] = count / timing.clock(run, count)
    print(json.dumps(report))


def peak() -> int:
    """The most bytes of memory that this process has had.

    Linux: not `ru_maxrss`, which a process takes over from the one that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(VERSIONS[sys.argv[1]], Job(**json.loads(sys.argv[2])))
