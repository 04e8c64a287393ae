"""Problems, clusters and devices from the arguments of commands."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

import dsgd
from dsgd import clusters, problems
from dsgd.machines.arrays import own_mesh
from dsgd.planning.forecasts import count_elements

# default data and partition of most models; those of the language model
USUAL = (("digits", "by-label"), ("docstrings", "blocks"))


def equal_workers(
    seconds: float, bandwidth: float, latency: float, delay: float = 0.0, **more: Any
) -> clusters.Cluster:
    """Returns a cluster of equal workers on the survey's switch.

    Args:
        seconds: computation of each worker for one batch.
        bandwidth: of a port, bits per second.
        latency: of a message, seconds.
        delay: mean of an exponentially distributed random delay of each batch, seconds.
        more: other arguments of `clusters.Cluster`.
    """
    compute = clusters.constant(seconds)
    if delay:
        compute += clusters.exponential(delay)
    return clusters.Cluster(compute, up=clusters.constant(bandwidth), latency=latency, **more)


def make_cluster(args: Any, **more: Any) -> clusters.Cluster:
    """Returns the workers of a file, or equal workers on the survey's switch.

    Args:
        args: with the flags `commands.Workers`, `workers` and `batch_size`.
        more: other arguments of `clusters.Cluster`.
    """
    if args.cluster is not None:
        return workers_of_file(args, args.workers, **more)
    seconds = args.compute * args.batch_size
    return equal_workers(seconds, args.bandwidth, args.latency, args.delay, **more)


def workers_of_file(args: Any, workers: int, scale: float = 1.0, **more: Any) -> clusters.Cluster:
    """Returns the cluster of the file `--cluster`, with random delays if given.

    Args:
        args: with the flags `commands.Workers`.
        workers: number of workers.
        scale: factor of all bandwidths, and of the bits of a bucket.
        more: other arguments of `clusters.Cluster`.

    Raises:
        ValueError: if the file is for another number of workers.
    """
    found = clusters.load(args.cluster)
    if found.workers not in (None, workers):
        raise ValueError(
            f"--cluster {args.cluster}: the file has {found.workers} workers, but the problem has "
            f"{workers}; pass --workers {found.workers}"
        )
    cluster = found.cluster
    compute = cluster.compute + clusters.exponential(args.delay) if args.delay else cluster.compute
    assert cluster.up is not None
    up = cluster.up if scale == 1 else scale * cluster.up
    nodes = cluster.nodes
    if nodes is not None:
        nodes = dataclasses.replace(nodes, bandwidth=scale * nodes.bandwidth)
    return dataclasses.replace(
        cluster, compute=compute, up=up, nodes=nodes, bucket=scale * cluster.bucket, **more
    )


def describe_network(args: Any) -> str:
    """Describes the network of the flags `commands.Workers`, for titles."""
    link = f"latency {args.latency * 1e3:g} ms, {args.bandwidth / 1e6:g} Mbit/s"
    return link if args.cluster is None else f"{link} ({args.cluster.name})"


def logistic_regression(args: Any, workers: int, partition: str, **options: Any) -> dsgd.Problem:
    """Returns logistic regression on the data of the arguments.

    Args:
        args: with the flags `data`, `data_dir`, `batch_size` and `seed`.
        workers, partition: as for `problems.logistic_regression`.
        options: its other arguments; they replace those of the flags.
    """
    flags = {"batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    return problems.logistic_regression(args.data, workers, partition, **flags | options)


def make_problem(args: Any) -> dsgd.Problem:
    """Returns the model on the partitioned data, from the flags `commands.Model`."""
    usual_data, usual_partition = USUAL[args.model == "language-model"]
    data, partition = args.data or usual_data, args.partition or usual_partition
    options: dict[str, Any] = {"batch_size": args.batch_size, "seed": args.seed}
    if args.model == "language-model":
        return problems.language_model(data, args.workers, partition, **options)
    options |= {"alpha": args.alpha, "data_dir": args.data_dir}
    if args.model == "logistic":
        return problems.logistic_regression(data, args.workers, partition, **options)
    return problems.neural_network(args.model, data, args.workers, partition, **options)


def elements(problem: dsgd.Problem) -> int:
    """Returns the number of elements of the model."""
    return count_elements(jax.eval_shape(problem.init, jax.random.key(0)))


def devices_for(workers: int) -> jax.sharding.Mesh:
    """Returns a mesh of as many devices as divide the number of workers."""
    return own_mesh(workers)
