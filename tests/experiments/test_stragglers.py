"""`python -m experiments.stragglers` with a tiny budget: its files, its tables, and its seconds."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scripts

import dsgd
from dsgd import problems
from experiments import stragglers
from experiments.stragglers import Args

SHOWN = ("synchronous", "DropCompute", "asynchronous")
BATCHES: list[int] = []  # number of samples of the fixture's batches


def least_squares(data, workers, partition, *, batch_size, seed, data_dir):
    """Replaces logistic regression, without loading data."""
    assert (data, partition, seed, data_dir) == ("digits", "iid", 0, None)
    BATCHES.append(batch_size)
    inputs, noise = np.random.default_rng(0).normal(size=(2, workers, 8, 4)).astype(np.float32)
    return dsgd.Problem(
        init=lambda key: jnp.zeros(4),
        loss=lambda params, batch: jnp.mean((batch[0] @ params - batch[1]) ** 2),
        data=(inputs, inputs.sum(axis=-1) + 0.1 * noise[..., 0]),
        sample=dsgd.Sampler(lambda key, mine: mine, batch_size=batch_size),
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """With one kind of stragglers and three of the methods, for fewer programs; the results, and
    the printed lines.
    """
    args = Args(
        workers=4,
        server=1,
        straggling=0.1,
        micro_batches=3,
        backups=1,
        bound=6,
        rounds=12,
        seeds=2,
        learning_rates=(0.1, 0.5),
        target=0.5,
        out=tmp_path_factory.mktemp("stragglers"),
        progress=False,
    )
    kinds, known, found = stragglers.stragglers, stragglers.make_methods, {}
    tabulate = stragglers.tabulate

    def watch(args, where, methods, outcomes):
        found.update(outcomes)
        return tabulate(args, where, methods, outcomes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "logistic_regression", least_squares)
        patch.setattr(
            stragglers, "stragglers", lambda args: {"single server": kinds(args)["single server"]}
        )
        patch.setattr(
            stragglers,
            "make_methods",
            lambda *arguments: {name: known(*arguments)[name] for name in SHOWN},
        )
        patch.setattr(stragglers, "tabulate", watch)
        patch.setattr(stragglers, "MEASURED", 20)
        scripts.ran(stragglers.main, args)
    return args, found


def test_all_methods_run_for_about_the_same_seconds(ran):
    _, found = ran
    ends = {name: one.history["clock"][:, -1].mean() for name, one in found.items()}
    assert all(0.75 < end / ends["synchronous"] < 1.35 for end in ends.values())
    steps = {name: one.history["step"][-1] for name, one in found.items()}
    assert steps["asynchronous"] > 4 * steps["synchronous"]
    assert steps["DropCompute"] > steps["synchronous"]


def test_a_gradient_has_the_same_micro_batches_and_samples_for_every_method(ran):
    """Without waiting all take the same time; DropCompute drops only micro-batches that wait."""
    args, found = ran
    shortest = {
        name: np.diff(found[name].history["clock"]).min() for name in ("synchronous", "DropCompute")
    }
    assert shortest["synchronous"] >= args.micro_batches * args.micro_batch
    assert shortest["synchronous"] == pytest.approx(shortest["DropCompute"], rel=1e-2)
    dropped = found["DropCompute"].history["dropped"][:, 1:]
    assert 0 < dropped.mean() < 0.25
    assert [args.micro_batches * args.batch_size, args.batch_size] == BATCHES
