"""Tokens per second of training a language model: methods on simulated workers, next to a plain JAX
training loop of the same model.

    python -m experiments.benchmark tokens
    python -m experiments.benchmark tokens --model gpt2-small --batch-size 8

The plain loop has one model and makes a step of AdamW with the mean gradient of all workers'
windows, by a jitted function with donated arguments: the same computation as that of synchronous
AdamW. The methods with local steps keep a model and an AdamW state for each worker. Nothing is
evaluated. All versions take turns, and medians are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
from dsgd.base import PyTree
from dsgd.problems.language_model import next_byte
from dsgd.problems.models import Transformer
from experiments.benchmark.rounds import time_versions
from experiments.shared import commands, statistics, tables
from experiments.slow_links import MODELS, make_problem

PLAIN = "plain JAX loop"
OPTIMIZER = optax.adamw(1e-3)


@dataclass(frozen=True)
class Args(commands.Flags):
    """Times training steps of a language model."""

    model: Literal["small", "medium", "gpt2-small"] = "small"
    """Transformer, as in experiments.slow_links."""
    text: str = "grammar"
    """Text: docstrings, grammar, or a file or folder."""
    workers: commands.Count = 8
    """Number of workers."""
    batch_size: commands.Count = 2
    """Number of windows that each worker draws in a step."""
    period: commands.Count = 20
    """H, number of steps between two messages of the methods with local steps."""
    seconds: commands.Positive = 2.0
    """Approximate seconds of one timing."""
    repeats: commands.Count = 5
    """Number of timings of each version."""
    out: Path = Path("results/benchmark/tokens")
    """Folder for config.json, tokens.csv and table.csv."""


class Row(NamedTuple):
    """Timings of a version: tokens per second, and the ratio to the plain loop, medians."""

    version: str
    tokens_per_second: float
    of_plain: float


def main(args: Args) -> None:
    commands.begin(args)
    rows: list[Row] = []
    with commands.keep_rows(args.out / "tokens.csv", Row._fields, rows):
        taken = time_versions(versions(args), args.seconds, args.repeats)
        tokens = args.period * args.workers * args.batch_size * MODELS[args.model].context
        for name, seconds in taken.items():
            ratio = float(np.median(taken[PLAIN] / seconds))
            rows.append(Row(name, float(np.median(tokens / seconds)), ratio))
    commands.finish(args, {}, {"table": tabulate(args, rows)})


def versions(args: Args) -> dict[str, Callable[[int], object]]:
    """Returns, by name, functions that make the steps of a given number of periods."""
    problem = make_problem(args)
    silent = problem._replace(evaluate=measure_nothing)
    methods = {
        "synchronous AdamW": algorithms.minibatch_sgd(OPTIMIZER),
        "local AdamW": algorithms.local_sgd(OPTIMIZER, args.period),
        "DiLoCo": algorithms.diloco(OPTIMIZER, args.period),
    }
    mesh = dsgd.workers.mesh(1)

    def run(method: dsgd.Algorithm) -> Callable[[int], object]:
        return lambda periods: jax.block_until_ready(
            dsgd.run(
                method,
                silent,
                steps=periods * args.period,
                record_every=args.period,
                key=jax.random.key(args.seed),
                mesh=mesh,
            )
        )

    return {PLAIN: plain(args, problem), **{name: run(each) for name, each in methods.items()}}


def measure_nothing(
    params: PyTree, data: PyTree, shared: PyTree
) -> tuple[dict[str, jax.Array], None]:
    """Evaluates nothing."""
    return {"loss": jnp.zeros(())}, None


def plain(args: Args, problem: dsgd.Problem) -> Callable[[int], object]:
    """Returns a function that makes the steps of a given number of periods of AdamW, on batches
    from all workers' windows.
    """
    size = MODELS[args.model]
    model = Transformer(256, size.context, size.width, size.layers, size.heads)
    real = np.asarray(problem.data.weights) > 0
    inputs, targets = (jnp.asarray(np.asarray(leaf)[real]) for leaf in problem.data[:2])
    count = args.workers * args.batch_size

    def loss(params, inputs, targets):
        logits = jnp.asarray(model.apply({"params": params}, inputs))
        return jnp.mean(next_byte(logits, targets))

    @jax.jit
    def start(key):
        params = model.init(key, inputs[:1])["params"]
        return params, OPTIMIZER.init(params)

    def step(params, state, key, inputs, targets):
        rows = jax.random.randint(key, (count,), 0, len(inputs))
        gradient = jax.grad(loss)(params, inputs[rows], targets[rows])
        updates, state = OPTIMIZER.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step, donate_argnums=(0, 1))

    def run(periods: int) -> object:
        key = jax.random.key(args.seed)
        params, state = start(key)
        for each in jax.random.split(key, periods * args.period):
            params, state = step(params, state, each, inputs, targets)
        return jax.block_until_ready(params)

    return run


def tabulate(args: Args, rows: list[Row]) -> Table:
    """Tabulates one row per version."""
    table = tables.table(
        f"training a {args.model} transformer, {args.workers} workers on one device,\n"
        f"{args.batch_size} windows of {MODELS[args.model].context} bytes each, H = {args.period}, "
        f"{statistics.runs(args.repeats).replace('seed', 'timing')}",
        ("version", "tokens/s", "of the plain loop"),
    )
    for row in rows:
        table.add_row(row.version, f"{row.tokens_per_second:,.0f}", f"{row.of_plain:.2f}")
    return table
