"""Federated averaging on sampled clients in all versions: `benchmark clients` runs each version in
a separate process, some of them with another Python.

    python -m experiments.benchmark.jobs.clients dsgd '{"data": FOLDER, ...}'

Each version trains the same model on the same clients from the same parameters: in each
communication round m of N clients make H steps of SGD on batches of B samples, each client in
random order through its own samples, and the server takes the mean of their models. Everything is
float32. If all clients participate and each has B samples, the only difference between versions is
rounding. Each version imports its own library; everything else needs only numpy.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmark.jobs import peers

# number of communication rounds -> seconds of a round, and the server's parameters
Run = Callable[[int], tuple[float, Sequence[Any]]]
RARELY = 1 << 20  # rounds between two records of dsgd: only the first and the last round have one


@dataclass(frozen=True)
class Job:
    """Arguments of the job.

    Args:
        data: folder with images.npy, uint8 `[M, 28, 28]`, labels.npy, int32 `[M]`, of all clients,
            one client after the other; sizes.npy, their numbers of samples, `[N]`; start.npz, the
            parameters that training starts from, see `forward`; and a test set, test_images.npy and
            test_labels.npy.
        method: name in `algorithms.ALGORITHMS`; other libraries run fed_avg.
        sampled: m.
        local_steps: H.
        batch_size: B, at most the size of the smallest client.
        rounds: number of communication rounds; all versions make at least two.
        learning_rate: step size of the clients.
        save: file for the parameters, .npz.
    """

    data: str
    method: str
    sampled: int
    local_steps: int
    batch_size: int
    rounds: int
    learning_rate: float
    save: str

    def load(self) -> Clients:
        """Returns the clients' samples."""
        images, labels, sizes = (
            np.load(Path(self.data) / f"{name}.npy") for name in ("images", "labels", "sizes")
        )
        return Clients(images, labels, np.cumsum(sizes) - sizes, sizes)

    def start(self) -> list[np.ndarray]:
        """Returns the parameters that training starts from."""
        return load_parameters(Path(self.data) / "start.npz")


class Clients(NamedTuple):
    """Samples of all clients.

    Args:
        images, labels: as in `Job`.
        offsets, sizes: first sample, and number of samples, of each client, `[N]`.
    """

    images: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    def samples(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of client n."""
        of_client = slice(self.offsets[n], self.offsets[n] + self.sizes[n])
        return self.images[of_client], self.labels[of_client]


def load_parameters(path: Path) -> list[np.ndarray]:
    """Returns the parameters in a file, see `forward`."""
    with np.load(path) as file:
        return [file[name] for name in file.files]


def order(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """Returns the numbers of `count` samples: passes through all `size` samples of a client, each
    in random order.
    """
    passes = -(-count // size)
    return np.concatenate([rng.permutation(size) for _ in range(passes)])[:count]


def forward(params: Sequence[Any], images: Any, convolve: Callable[[Any, Any], Any]) -> Any:
    """Returns the logits of images, in JAX.

    Args:
        params: weights and biases, each layer's one after the other: of a linear layer; or of two
            convolutions `[3, 3, channels, features]` and two linear layers, with a maximum over 2 x
            2 pixels after the convolutions: the network for EMNIST of Reddi et al., "Adaptive
            federated optimization", 2021, without dropout.
        images: uint8 `[b, 28, 28]`.
        convolve: (images `[b, height, width, channels]`, weights) -> the convolution without
            padding.
    """
    import jax

    x = images.astype(params[0].dtype) / 255
    if len(params) > 2:
        x = x[..., None]
        for kernel, bias in (params[0:2], params[2:4]):
            x = jax.nn.relu(convolve(x, kernel) + bias[None, None, None])
        b, height, width, features = x.shape
        x = x.reshape(b, height // 2, 2, width // 2, 2, features).max((2, 4))
        x = jax.nn.relu(x.reshape(b, -1) @ params[4] + params[5][None])
    return x.reshape(len(x), -1) @ params[-2] + params[-1][None]


def convolve_by_product(x: Any, kernel: Any) -> Any:
    """Returns the convolution as a product with shifted images. XLA's convolution is slow on CPUs
    for rows with different kernels, and in loops.
    """
    import jax.numpy as jnp

    size = len(kernel)
    height, width = (side - size + 1 for side in x.shape[1:3])
    places = [(i, j) for i in range(size) for j in range(size)]
    shifted = [x[:, i : i + height, j : j + width] for i, j in places]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def convolve(x: Any, kernel: Any) -> Any:
    """Returns XLA's convolution."""
    from jax import lax

    return lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Returns the loss of each sample, in JAX."""
    import jax
    import jax.numpy as jnp

    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def dsgd_run(job: Job) -> Run:
    """Runs the job in dsgd."""
    import jax
    import jax.numpy as jnp
    import optax

    import algorithms
    import dsgd
    from dsgd import clusters, compressors, network, problems

    clients, start = job.load(), [jnp.asarray(leaf) for leaf in job.start()]
    model = problems.Model(lambda key: start, partial(forward, convolve=convolve_by_product))
    test = tuple(
        jnp.asarray(np.load(Path(job.data) / f"test_{name}.npy")) for name in ("images", "labels")
    )

    def evaluate(params, data, test):
        return {"loss": cross_entropy(forward(params, test[0], convolve), test[1]).mean()}, None

    problem = problems.finite_sum(
        model,
        cross_entropy,
        (clients.images, clients.labels),
        len(clients.sizes),
        np.split(np.arange(len(clients.labels)), clients.offsets[1:]),
        batch_size=job.batch_size,
        replacement="epoch",
        name="clients",
    )._replace(evaluate=dsgd.Evaluation(evaluate, test))
    if len(start) > 2:
        # products of one client after the other are faster than those of all clients together
        gradient = jax.custom_batching.sequential_vmap(jax.grad(problem.loss))
        problem = problem._replace(loss=dsgd.Loss(problem.loss, gradient))
    cluster = clusters.Cluster(
        clusters.constant(0.0),
        present=clusters.sampled(job.sampled, of=len(clients.sizes)),
        participation_period=job.local_steps,
    )
    sgd, hundredth = optax.sgd(job.learning_rate), compressors.top_k(0.01)
    method = {
        "fed_avg": lambda: algorithms.fed_avg(sgd, job.local_steps),
        "scaffold": lambda: algorithms.scaffold(sgd, job.local_steps, via=network.star),
        "ef21": lambda: algorithms.ef21(sgd, compressors.whole_model(hundredth)),
    }[job.method]()
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)
    keeps = job.method != "fed_avg" and job.sampled < len(clients.sizes)

    def make_rounds(rounds: int) -> Any:
        return jax.block_until_ready(
            dsgd.run(
                method,
                problem,
                steps=rounds * job.local_steps,
                key=key,
                cluster=cluster,
                record_every=RARELY,
                mesh=mesh,
                store=job.data if keeps else None,
            ).params
        )

    def run(rounds: int) -> tuple[float, Sequence[Any]]:
        make_rounds(1)
        began = time.perf_counter()
        params = make_rounds(rounds)
        return (time.perf_counter() - began) / rounds, params

    return run


def fedjax_run(job: Job) -> Run:
    """Runs the job in fedjax, on clients of its `InMemoryFederatedData`. It weights clients by
    their numbers of samples.
    """
    import fedjax  # pyright: ignore[reportMissingImports]
    import jax
    from fedjax.algorithms import fed_avg  # pyright: ignore[reportMissingImports]

    clients = job.load()
    data = fedjax.InMemoryFederatedData(
        {n: dict(zip("xy", clients.samples(n), strict=True)) for n in range(len(clients.sizes))}
    )

    def loss(params, batch, key):
        return cross_entropy(forward(params, batch["x"], convolve), batch["y"]).mean()

    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=job.batch_size, num_epochs=None, num_steps=job.local_steps
    )
    client, server = fedjax.optimizers.sgd(job.learning_rate), fedjax.optimizers.sgd(1.0)
    method = fed_avg.federated_averaging(jax.grad(loss), client, server, batches)

    def run(rounds: int) -> tuple[float, Sequence[Any]]:
        sampler = fedjax.client_samplers.UniformGetClientSampler(data, job.sampled, seed=0)
        state, times = method.init(job.start()), []
        for _ in range(rounds):
            state, _ = method.apply(state, sampler.sample())
            jax.block_until_ready(state.params)
            times.append(time.perf_counter())
        return mean_interval(times), state.params

    return run


def mean_interval(times: Sequence[float]) -> float:
    """Returns the mean seconds of a round after the first, given the times at the rounds' ends."""
    return (times[-1] - times[0]) / (len(times) - 1)


def torch_model(params: Sequence[np.ndarray]) -> Any:
    """Returns the model of `forward` as a module of PyTorch, of images in float32 `[b, 28, 28]`."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    *_, (hidden, classes) = (leaf.shape for leaf in params[::2])
    model = (
        nn.Sequential(nn.Flatten(), nn.Linear(hidden, classes))
        if len(params) == 2
        else nn.Sequential(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(params[4].shape[0], hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    )
    with torch.no_grad():
        for leaf, value in zip(model.parameters(), to_torch(params), strict=True):
            leaf.copy_(torch.from_numpy(value))
    return model


def to_torch(params: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the parameters in the layout of PyTorch: channels come first."""
    if len(params) > 2:
        side = round((len(params[4]) / params[2].shape[-1]) ** 0.5)
        flat = params[4].reshape(side, side, -1, params[4].shape[1])
        dense = flat.transpose(2, 0, 1, 3).reshape(params[4].shape)
        params = [*params[:4], dense, *params[5:]]
    axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    return [np.ascontiguousarray(leaf.transpose(axes[leaf.ndim])) for leaf in params]


def from_torch(params: Sequence[Any]) -> list[np.ndarray]:
    """Returns the inverse of `to_torch`, of tensors or arrays."""
    axes = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
    found = [np.asarray(leaf).transpose(axes[leaf.ndim]) for leaf in params]
    if len(found) > 2:
        features, (rows, columns) = found[2].shape[-1], found[4].shape
        side = round((rows / features) ** 0.5)
        flat = found[4].reshape(features, side, side, columns)
        found[4] = flat.transpose(1, 2, 0, 3).reshape(rows, columns)
    return found


def torch_batches(rng: np.random.Generator, job: Job, clients: Clients, n: int) -> tuple[Any, Any]:
    """Returns the images and labels of all batches of client n in a round, one batch after the
    other, as tensors `[H B, ...]`.
    """
    import torch  # pyright: ignore[reportMissingImports]

    images, labels = clients.samples(n)
    rows = order(rng, len(labels), job.local_steps * job.batch_size)
    return (
        torch.from_numpy(images[rows]).float() / 255,
        torch.from_numpy(labels[rows].astype(np.int64)),
    )


def pfl_run(job: Job) -> Run:
    """Runs the job in pfl-research, with PyTorch. A user's data set is drawn with its batches,
    because pfl passes through a data set in its order.
    """
    import torch  # pyright: ignore[reportMissingImports]
    from pfl import algorithm  # pyright: ignore[reportMissingImports]
    from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
    from pfl.callback.base import TrainingProcessCallback  # pyright: ignore[reportMissingImports]
    from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
    from pfl.data.pytorch import PyTorchTensorDataset  # pyright: ignore[reportMissingImports]
    from pfl.data.sampling import get_user_sampler  # pyright: ignore[reportMissingImports]
    from pfl.hyperparam import NNTrainHyperParams  # pyright: ignore[reportMissingImports]
    from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
    from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]

    clients, module, rng = job.load(), torch_model(job.start()), np.random.default_rng(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def loss(self, images: Any, labels: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.network(images), labels)

        def metrics(self, images: Any, labels: Any) -> dict[str, Any]:
            return {}

    class Clock(TrainingProcessCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            self.times.append(time.perf_counter())
            return False, Metrics()

    def make_user(n: int) -> Any:
        return PyTorchTensorDataset(torch_batches(rng, job, clients, n))

    sampler = get_user_sampler("minimize_reuse", rng.permutation(len(clients.sizes)).tolist())
    users = FederatedDataset(make_user, sampler)
    network = Network()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))

    def run(rounds: int) -> tuple[float, Sequence[Any]]:
        clock = Clock()
        algorithm.FederatedAveraging().run(
            algorithm.NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=job.sampled,
                val_cohort_size=None,
            ),
            SimulatedBackend(training_data=users, val_data=users),
            model,
            NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=job.learning_rate,
                local_batch_size=job.batch_size,
            ),
            callbacks=[clock],
        )
        return mean_interval(clock.times), from_torch([p.detach() for p in module.parameters()])

    return run


def flower_run(job: Job) -> Run:
    """Runs the job in Flower's simulation, with PyTorch and one process (of Ray) for each core."""
    from flwr.app import (  # pyright: ignore[reportMissingImports]
        ArrayRecord,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import ServerApp  # pyright: ignore[reportMissingImports]
    from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
    from flwr.simulation import run_simulation  # pyright: ignore[reportMissingImports]

    logging.getLogger("flwr").setLevel(logging.ERROR)
    N = len(np.load(Path(job.data) / "sizes.npy"))
    names = [f"{i:02}" for i in range(len(job.start()))]
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Any, context: Any) -> Any:
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)
        # mapped, so that a process reads the samples of its clients only
        images, labels, sizes = (
            np.load(Path(job.data) / f"{name}.npy", mmap_mode="r")
            for name in ("images", "labels", "sizes")
        )
        clients = Clients(images, labels, np.cumsum(sizes) - sizes, sizes)
        params = message.content["arrays"].to_numpy_ndarrays()
        model = torch_model(from_torch(params))
        optimizer = torch.optim.SGD(model.parameters(), job.learning_rate)
        client = int(context.node_config["partition-id"])
        rng = np.random.default_rng([message.content["config"]["server-round"], client])
        batches = torch_batches(rng, job, clients, client)
        for x, y in zip(*(part.split(job.batch_size) for part in batches), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        trained = [p.detach().numpy() for p in model.parameters()]
        reply = {
            "arrays": ArrayRecord(dict(zip(names, map(_array, trained), strict=True))),
            "metrics": MetricRecord({"num-examples": job.local_steps * job.batch_size}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    def _array(leaf: np.ndarray) -> Any:
        from flwr.app import Array  # pyright: ignore[reportMissingImports]

        return Array(leaf)

    def run(rounds: int) -> tuple[float, Sequence[Any]]:
        times: list[float] = []
        found: list[Any] = []

        def note_time(round: int, arrays: Any) -> None:
            if round:
                times.append(time.perf_counter())

        @server_app.main()
        def serve(grid: Any, context: Any) -> None:
            start = dict(zip(names, map(_array, to_torch(job.start())), strict=True))
            strategy = FedAvg(
                fraction_train=job.sampled / N,
                fraction_evaluate=0.0,
                min_train_nodes=job.sampled,
                min_available_nodes=N,
            )
            result = strategy.start(
                grid, ArrayRecord(start), num_rounds=rounds, evaluate_fn=note_time
            )
            found.extend(result.arrays.to_numpy_ndarrays())

        run_simulation(
            server_app,
            client_app,
            num_supernodes=N,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
        return mean_interval(times), from_torch(found)

    return run


class Version(NamedTuple):
    """A version: a function of the job, and the packages whose versions are reported."""

    build: Callable[[Job], Run]
    packages: tuple[str, ...]


VERSIONS = {
    "dsgd": Version(dsgd_run, ("dsgd", "jax", "jaxlib", "numpy")),
    "fedjax": Version(fedjax_run, ("fedjax", "jax", "jaxlib", "numpy")),
    "pfl": Version(pfl_run, ("pfl", "torch", "numpy")),
    "flower": Version(flower_run, ("flwr", "ray", "torch", "numpy")),
}


def main(version: Version, job: Job) -> None:
    """Runs the job: saves the parameters, and prints a line of JSON at the end: seconds of a
    communication round; peak memory of the process, bytes, while it loads the data, and after that.
    """
    run = version.build(job)
    loading = peers.peak()
    forget_peak()
    seconds, params = run(job.rounds)
    memory = peers.peak()
    np.savez(job.save, *map(np.asarray, params))
    packages = {name: importlib.metadata.version(name) for name in version.packages}
    print(
        json.dumps(
            {
                "seconds": seconds,
                "memory": memory,
                "loading": loading,
                "versions": {**packages, "Python": platform.python_version()},
            }
        )
    )


def forget_peak() -> None:
    """Makes the present memory of this process the peak, on Linux."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(VERSIONS[sys.argv[1]], Job(**json.loads(sys.argv[2])))
