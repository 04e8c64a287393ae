"""Neural networks on classification data: non-convex problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import checks
from dsgd.base import Problem
from dsgd.problems.adapters import Network, adapt
from dsgd.problems.data import DataSource, dense, load, test_options
from dsgd.problems.finite_sum import finite_sum, right
from dsgd.problems.partition import partition_label


@checks.arguments
def neural_network(
    model: Any = "mlp",
    data: DataSource = "digits",
    workers: int = 16,
    partition: str | Sequence[Any] = "iid",
    *,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    min_samples: int = 1,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int = 16,
    replacement: bool | Literal["epoch"] = True,
    l2: float = 0.0,
    seed: int = 0,
    trainable: Any = None,
    data_dir: str | Path | None = None,
) -> Problem:
    """Returns the softmax cross-entropy of a neural network. Each seed of a run draws its own
    initial parameters.

    Args:
        model: "mlp"; "cnn" or "resnet-18" (images only); or a model as in `finite_sum`, from `[m,
            ...]` to logits `[m, classes]`.
        data, workers, partition, alpha, classes, shards, similarity: as in `logistic_regression`.
        min_samples, weights: as in `logistic_regression`.
        batch_size, replacement, l2, seed, data_dir: as in `logistic_regression`.
        trainable: as in `finite_sum`.

    Raises:
        ValueError: if the model is unknown, a model of images is given other data, the number of
            logits differs from the number of classes, and as for `finite_sum` and
            `logistic_regression`.
        FileNotFoundError: if a data file does not exist.
    """
    from dsgd.problems.models import MODELS  # noqa: PLC0415 (importing flax takes a quarter of a second)

    dataset = dense(load(data, data_dir))
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(
                f"neural_network: model = {model!r}; expected one of {', '.join(MODELS)}, or a "
                "flax module"
            )
        if model != "mlp" and dataset.train_inputs.ndim != 4:
            shape = dataset.train_inputs.shape[1:]
            raise ValueError(
                f"neural_network: model = {model!r} on {dataset.name}, whose samples have shape "
                f"{shape}; expected [height, width, channels]"
            )
        name, network = model, MODELS[model](dataset.classes)
    else:
        name, network = getattr(model, "__name__", type(model).__name__), model
    model = adapt(network, jax.ShapeDtypeStruct(dataset.train_inputs.shape, jnp.result_type(float)))
    _require_logits(name, model, dataset.train_inputs.shape[1:], dataset.classes)
    return finite_sum(
        model,
        optax.softmax_cross_entropy_with_integer_labels,
        (dataset.train_inputs, dataset.train_targets.astype(np.int32)),
        workers,
        partition,
        alpha=alpha,
        classes=classes,
        shards=shards,
        similarity=similarity,
        min_samples=min_samples,
        weights=weights,
        batch_size=batch_size,
        replacement=replacement,
        l2=l2,
        seed=seed,
        **test_options(dataset, right),
        trainable=trainable,
        name=f"neural_network({name}, {dataset.name}, {partition_label(partition)})",
    )


def _require_logits(name: str, model: Network, shape: tuple[int, ...], classes: int) -> None:
    inputs = jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float))
    params = jax.eval_shape(model.parameters.init, jax.eval_shape(lambda: jax.random.key(0)))
    logits = jax.eval_shape(model.apply, params, inputs)
    if not isinstance(logits, jax.ShapeDtypeStruct) or logits.shape != (1, classes):
        given = checks.kind(logits)
        raise ValueError(
            f"neural_network: model {name} maps {(1, *shape)} to {given}; expected logits "
            f"{(1, classes)}, one for each of the {classes} classes"
        )
