"""Neural networks from flax on classification data: the non-convex problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import Problem, PyTree
from dsgd.problems.data import DataSource, load
from dsgd.problems.finite_sum import classification

if TYPE_CHECKING:
    from flax import linen as nn


@checks.arguments
def neural_network(
    model: str | nn.Module = "mlp",
    data: DataSource = "digits",
    workers: int = 16,
    partition: str = "iid",
    *,
    alpha: float = 0.5,
    batch_size: int = 16,
    replacement: bool = True,
    l2: float = 0.0,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Problem:
    """Softmax cross-entropy of a flax model; each seed of a run draws its own start.

    Args:
        model: "mlp", "cnn" (images only), or a flax module that maps `[m, ...]` to logits `[m, classes]` and keeps nothing but "params".
        data, workers, partition, alpha, batch_size, replacement, l2, seed, data_dir: as in `logistic_regression`.

    Raises:
        ValueError: an unknown model, a CNN on data that are no images, a module with other collections than "params" or
            with another number of logits than classes, or as `logistic_regression`.
        FileNotFoundError: data files that are not there.
    """
    from flax import linen as nn  # noqa: PLC0415 (a quarter of a second)

    from dsgd.problems.models import MODELS  # noqa: PLC0415

    dataset = load(data, data_dir)
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"unknown model {model!r}: need one of {', '.join(MODELS)}, or a flax module")
        if model == "cnn" and dataset.train_inputs.ndim != 4:
            shape = dataset.train_inputs.shape[1:]
            raise ValueError(f"model 'cnn' on {dataset.name}, whose samples have shape {shape}; need [height, width, channels]")
        name, network = model, MODELS[model](dataset.classes)
    elif isinstance(model, nn.Module):
        name, network = type(model).__name__, model
    else:
        need = f"one of {', '.join(MODELS)}, or a flax module with its fields, problems.MLP(classes=10)"
        raise ValueError(f"neural_network: model = {checks.shown(model)}: need {need}, say")
    _check_network(name, network, dataset.train_inputs.shape[1:], dataset.classes)
    return classification(
        _Apply(network),
        _Init(network, dataset.train_inputs.shape[1:]),
        dataset,
        workers=workers,
        partition=partition,
        alpha=alpha,
        batch_size=batch_size,
        replacement=replacement,
        l2=l2,
        seed=seed,
        name=f"neural_network({name}, {dataset.name}, {partition})",
    )


# Equal for equal networks, so that the same problem built twice compiles once; a network with a list among its fields has no hash itself.


@dataclass(frozen=True)
class _Apply:
    network: nn.Module

    def __call__(self, params: PyTree, inputs: jax.Array) -> Any:
        return self.network.apply({"params": params}, inputs)

    def __hash__(self) -> int:
        return hash(type(self.network))


@dataclass(frozen=True)
class _Init:
    network: nn.Module
    shape: tuple[int, ...]

    def __call__(self, key: jax.Array) -> PyTree:
        return self.network.init(key, jnp.zeros((1, *self.shape)))["params"]

    def __hash__(self) -> int:
        return hash((type(self.network), self.shape))


def _check_network(name: str, network: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    logits, variables = jax.eval_shape(lambda key: network.init_with_output(key, jnp.zeros((1, *shape))), key)
    if set(variables) != {"params"}:
        raise ValueError(f"model {name} keeps {sorted(variables)}; need a module that keeps only 'params' (GroupNorm, not BatchNorm)")
    if logits.shape != (1, classes):
        raise ValueError(
            f"model {name} maps {(1, *shape)} to {logits.shape}; need logits {(1, classes)}, one for each of the {classes} classes"
        )
