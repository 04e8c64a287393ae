"""What users' models, targets and losses must be taken for."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import accumulate, leaves, loop, oracle, queries

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
INTEGER_LABELS = optax.softmax_cross_entropy_with_integer_labels
HINGE = jax.vmap(optax.losses.multiclass_hinge_loss)


def linear(outputs: int) -> problems.Model:
    return problems.Model(lambda key: jnp.zeros((3, outputs)), lambda W, x: x @ W)


SGD = algorithms.minibatch_sgd(optax.sgd(0.1))


def classifier(targets, loss=INTEGER_LABELS, outputs=2, model=None, **options):
    targets = np.asarray(targets) if len(targets) else ()
    return problems.finite_sum(
        model or linear(outputs), loss, (X, targets), **{"workers": 2, "batch_size": 2, **options}
    )


def one_hot_loss(logits, targets):
    return -jnp.sum(jax.nn.one_hot(targets, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1)


def weighted_loss(logits, targets):
    return jnp.array([1.0, 2.0])[targets] * INTEGER_LABELS(logits, targets)


def smoothed_loss(logits, targets):
    return optax.softmax_cross_entropy(
        logits, optax.smooth_labels(jax.nn.one_hot(targets, logits.shape[-1]), 0.1)
    )


CYCLE = np.arange(24)


ONE_OFF, THREE = CYCLE % 2 + 1, CYCLE % 3


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        *(
            (loss, ONE_OFF, "targets from 1 to 2.*relabel")
            for loss in (one_hot_loss, weighted_loss, smoothed_loss, HINGE)
        ),
        (HINGE, 2 * (CYCLE % 2) - 1, "targets from -1 to 1"),
        (one_hot_loss, THREE, "targets from 0 to 2"),
        (
            INTEGER_LABELS,
            2 * (CYCLE % 2) - 1,
            r"targets from -1 to 1, .* indices of the model's 2 outputs; .* 0 to 1; .*\(targets "
            r"\+ 1\) // 2",
        ),
        (INTEGER_LABELS, ONE_OFF, "targets from 1 to 2.*relabel them with targets - 1"),
        (INTEGER_LABELS, THREE, "targets from 0 to 2.*or pass a model with 3 outputs"),
        (
            INTEGER_LABELS,
            (CYCLE % 2 * 7).astype(np.uint8),
            r"targets from 0 to 7.*np.unique\(targets, return_inverse=True\)",
        ),
    ],
)
def test_labels_outside_the_classes_are_refused(loss, targets, message):
    with pytest.raises(ValueError, match=message):
        classifier(targets, loss)


def test_labels_of_the_classes_and_a_marker_of_samples_that_do_not_count_are_accepted():
    def ignoring(logits, targets):
        return jnp.where(targets == -100, 0, INTEGER_LABELS(logits, jnp.maximum(targets, 0)))

    classifier(CYCLE % 2)
    classifier(np.where(CYCLE < 3, -100, CYCLE % 2), ignoring)


def test_integer_targets_that_are_no_classes_are_accepted():
    table = jnp.asarray(np.random.default_rng(1).normal(size=(24, 2)))
    classifier(CYCLE, lambda outputs, targets: jnp.sum((outputs - table[targets]) ** 2, axis=-1))
    classifier(CYCLE, lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
    margins = 2 * (CYCLE % 2) - 1
    classifier(
        margins, lambda outputs, targets: optax.hinge_loss(outputs[:, 0], targets), outputs=1
    )
    for loss in (optax.squared_error, lambda f, y: jnp.logaddexp(0, -f * y)):
        model = problems.Model(lambda key: jnp.zeros(3), lambda w, x: x @ w)
        problems.finite_sum(model, loss, (X, 1.0 * margins), workers=2, batch_size=2)


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [(optax.sigmoid_binary_cross_entropy, int), (optax.sigmoid_focal_loss, float)],
)
def test_binary_labels_outside_0_and_1_are_refused(loss, dtype):
    model = problems.Model(lambda key: jnp.zeros(3), lambda w, x: x @ w)
    labels = (2 * (CYCLE % 2) - 1).astype(dtype)
    with pytest.raises(
        ValueError,
        match=r"targets from -1.* to 1.*expected targets in \[0, 1\]; relabel them with \(targets \+ 1\) / 2",
    ):
        problems.finite_sum(model, loss, (X, labels), workers=2, batch_size=2)
    problems.finite_sum(model, loss, (X, (labels + 1) // 2), workers=2, batch_size=2)


def test_labels_of_a_test_set_are_checked_for_loss_and_metrics():
    from dsgd.problems.finite_sum import right

    good, bad = CYCLE % 2, CYCLE % 2 + 1
    with pytest.raises(ValueError, match=r"test set, .*: targets from 1 to 2"):
        classifier(good, HINGE, test=(X, bad), metrics={"accuracy": right})
    classifier(good, test=(X, good), metrics={"accuracy": right})


def test_labels_of_workers_data_and_of_batches_from_outside_are_checked(mesh, key):
    with pytest.raises(ValueError, match="targets from 0 to 2"):
        problems.finite_sum(
            linear(2),
            INTEGER_LABELS,
            problems.ByWorker(lambda n: (X, CYCLE % (2 + n))),
            workers=2,
            batch_size=2,
        )
    inputs, weights = np.stack([X[:2]] * 2), jnp.ones((2, 2))
    batches = [
        problems.Examples(inputs, np.full((2, 2), label, np.int32), weights) for label in (1, 2)
    ]
    with pytest.raises(
        ValueError,
        match=r"batches of rounds 1 to 1: finite_sum: targets from 2 to 2.*classes 0 to 1",
    ):
        dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(0.1)),
            classifier(CYCLE % 2),
            steps=2,
            key=key,
            mesh=mesh,
            batches=batches,
        )


# Batch norm and dropout


class Linen(nn.Module):
    rate: float = 0.5
    norm: bool = True
    outputs: int = 2

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x) if self.norm else x
        return nn.Dropout(self.rate, deterministic=not train)(nn.Dense(self.outputs)(x))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.layer = nnx.BatchNorm(3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)
        self.drop, self.scale = nnx.Dropout(0.5, rngs=rngs), jnp.ones(2)

    def __call__(self, x):
        return self.drop(self.layer(self.norm(x))) * self.scale[None]


def flax_outputs(model, params, x) -> Any:
    if isinstance(model, nn.Module):
        return jax.jit(model.apply, static_argnames="train")(
            params if "params" in params else {"params": params}, x, train=False
        )
    module = Nnx(nnx.Rngs(7))
    nnx.update(module, params)
    module.eval()
    return module(x)


@cache
def trained(model) -> tuple[dsgd.Problem, dsgd.Result]:
    problem = classifier(
        CYCLE % 2,
        batch_size=4,
        model=model,
        test=(X, CYCLE % 2),
        metrics={"test_loss": INTEGER_LABELS},
    )
    return problem, dsgd.run(SGD, problem, steps=2, key=jax.random.key(0), mesh=1, record_every=2)


@pytest.mark.parametrize("model", [Linen(), Nnx], ids=["linen", "nnx class"])
def test_evaluation_is_that_of_flax_with_the_statistics_that_are_taken_home(model):
    _, result = trained(model)
    losses = INTEGER_LABELS(flax_outputs(model, result.params, X), CYCLE % 2)
    for name in ("loss", "test_loss"):
        np.testing.assert_allclose(result.history[name][-1], losses.mean(), rtol=1e-5)
    assert result.history["loss"][-1] != result.history["loss"][0]
    assert (result.state.fixed != ()) == (
        len(jax.tree.leaves(result.params)) > len(jax.tree.leaves(result.state.server))
    )


def test_running_averages_are_the_means_over_batches_of_the_workers():
    """The norm is on the inputs, so they do not depend on what is trained."""
    problem, result = trained(Linen())
    statistics = result.params["batch_stats"]["BatchNorm_0"]
    batches, sample = [], jax.jit(problem.sample)
    for n in range(2):
        mine = jax.tree.map(lambda leaf: leaf[n], problem.data)  # noqa: B023 (called at once)
        keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), n) for k in range(16)]
        batches += [np.asarray(sample(own, mine).inputs) for own in keys]
    np.testing.assert_allclose(
        statistics["mean"], np.mean([batch.mean(axis=0) for batch in batches], axis=0), atol=1e-5
    )
    np.testing.assert_allclose(
        statistics["var"], np.mean([batch.var(axis=0) for batch in batches], axis=0), rtol=1e-4
    )


def test_a_training_step_is_that_of_flax_in_training(mesh, key):
    model = Linen(rate=0.0)
    # all that a worker has
    problem = classifier(CYCLE % 2, model=model, batch_size=12, replacement=False)
    start = problem.init(loop.split(key)[0])

    def loss(params, x, y):
        outputs, _ = model.apply(
            {**start, "params": params}, x, train=True, mutable=["batch_stats"]
        )
        return INTEGER_LABELS(outputs, y).mean()

    slope = jax.jit(jax.grad(loss))
    slopes = [
        slope(start["params"], problem.data.inputs[n], problem.data.targets[n]) for n in range(2)
    ]
    expected = jax.tree.map(lambda x, *slopes: x - 0.1 * sum(slopes) / 2, start["params"], *slopes)
    found = dsgd.run(SGD, problem, steps=1, key=key, mesh=mesh).params["params"]
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found, expected
    )


@pytest.mark.parametrize("outside", [False, True])
def test_dropout_masks_differ_by_worker_round_and_seed_and_not_by_devices(outside, key):
    """The gradient of the sum of the outputs with respect to the bias is the number of those that
    are not dropped.
    """
    model = Linen(norm=False, outputs=9)
    problem = classifier(
        (), model=model, loss=lambda outputs, targets: outputs.sum(axis=-1), batch_size=12
    )
    batches = problems.Examples(np.zeros((2, 12, 3), np.float32), (), jnp.ones((2, 12)))

    def masks(rounds, devices):
        def ask(key, data, batches):
            query = queries.Asked(problem.init(jax.random.key(0)))
            return oracle.gradients(problem, query, key, data, 2, batches if outside else None)[
                "Dense_0"
            ]["bias"]

        specs = (P(), P("workers"), P("workers"))
        mapped = jax.shard_map(
            ask,
            mesh=dsgd.workers.mesh(devices),
            in_specs=specs,
            out_specs=P("workers"),
            check_vma=False,
        )
        return [
            np.asarray(jax.jit(mapped)(jax.random.key(i), problem.data, batches)) for i in rounds
        ]

    one, two = masks([0, 1], 1), masks([0, 1], 2)
    np.testing.assert_allclose(one, two)
    rows = np.concatenate(one)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_what_only_training_draws_is_off_in_exact_gradients_and_in_the_evaluation(mesh, key):
    problem = classifier(CYCLE % 2, model=Linen(norm=False))
    result = dsgd.run(
        algorithms.gradient_descent(optax.sgd(0.1)), problem, steps=1, key=key, mesh=mesh
    )
    start = problem.init(loop.split(key)[0])
    slope = jax.jit(
        jax.grad(
            lambda params: INTEGER_LABELS(
                flax_outputs(Linen(norm=False), params, X), CYCLE % 2
            ).mean()
        )
    )(start)
    jax.tree.map(
        lambda x, x0, g: np.testing.assert_allclose(x, x0 - 0.1 * g, atol=1e-6),
        result.params,
        start,
        slope,
    )
    with pytest.raises(ValueError, match="exact gradient of a model with batch norm and dropout"):
        dsgd.run(
            algorithms.gradient_descent(optax.sgd(0.1)),
            classifier(CYCLE % 2, model=Linen()),
            steps=1,
            key=key,
            mesh=mesh,
        )


# Parameters that are not trained


Y = X @ np.array([1, 2, 3], np.float32)


def with_fixed(key):
    return {
        "w": jnp.zeros(3),
        "frozen": jax.random.normal(key, (3,)),
        "table": jnp.arange(3),
        "key": jax.random.fold_in(key, 1),
    }


def predict(params, x):
    return (
        x @ params["w"]
        + 0.1 * x @ params["frozen"]
        + params["table"].sum()
        + jax.random.normal(params["key"])
    )


def only(start):
    """The same problem of the trained leaf alone."""
    return problems.Model(
        lambda key: {"w": jnp.zeros(3)}, lambda params, x: predict({**start, **params}, x)
    )


FIXED = {"workers": 3, "batch_size": 4, "l2": 0.1, "loss": optax.squared_error}


def test_frozen_and_integer_leaves_stay_and_the_rest_runs_as_without_them(mesh, key):
    model = problems.Model(with_fixed, predict)
    problem = classifier(
        Y, model=model, trainable={"w": True, "frozen": False, "table": True, "key": True}, **FIXED
    )
    start = problem.init(loop.split(key)[0])
    found, alone = (
        dsgd.run(
            algorithms.make("choco-sgd", optax.sgd(0.05), 3), each, steps=4, key=key, mesh=mesh
        )
        for each in (problem, classifier(Y, model=only(start), **FIXED))
    )
    for leaf in ("frozen", "table"):
        np.testing.assert_array_equal(found.params[leaf], start[leaf])
    assert jnp.array_equal(
        jax.random.key_data(found.params["key"]), jax.random.key_data(start["key"])
    )
    np.testing.assert_allclose(found.params["w"], alone.params["w"], rtol=1e-6)
    for column in ("bits", "loss", "grad_sqnorm", "consensus"):
        np.testing.assert_allclose(found.history[column], alone.history[column], rtol=1e-5)


def test_runs_with_fixed_leaves_go_on_from_results_and_checkpoints(tmp_path, mesh, key):
    problem = classifier(
        Y,
        model=problems.Model(with_fixed, predict),
        trainable=lambda params: {**dict.fromkeys(params, True)},
        **FIXED,
    )
    options = {"key": key, "mesh": mesh, "seeds": 2, "record_every": 4}
    whole = dsgd.run(SGD, problem, steps=4, **options)
    first = dsgd.run(SGD, problem, steps=2, checkpoint=tmp_path, **options)
    resumed = dsgd.run(SGD, problem, steps=4, checkpoint=tmp_path, **options)
    second = dsgd.run(SGD, problem, steps=2, start=first, **options)
    for other in (resumed, second):
        for leaf in ("w", "frozen", "table"):
            np.testing.assert_array_equal(other.params[leaf], whole.params[leaf])


def test_a_model_is_a_start_for_another_run_that_trains_the_same_leaves(mesh, key):
    problem = classifier(
        Y,
        model=problems.Model(with_fixed, predict),
        trainable={"w": True, "frozen": False, "table": True, "key": True},
        **FIXED,
    )
    options = {"steps": 2, "key": key, "mesh": mesh, "record_every": 2}
    first = dsgd.run(SGD, problem, **options)
    second = dsgd.run(
        SGD,
        problem._replace(init=dsgd.Parameters(lambda key: first.params, problem.trainable)),
        **options,
    )
    assert second.history["loss"][0] == pytest.approx(first.history["loss"][-1])
    np.testing.assert_array_equal(second.history["bits"], first.history["bits"])
    np.testing.assert_array_equal(second.params["frozen"], first.params["frozen"])
    assert not np.array_equal(second.params["w"], first.params["w"])
    with pytest.raises(
        ValueError,
        match=r"evaluate returns a gradient with leaves \['w'\]; expected the tree with leaves \['frozen'\], \['w'\]",
    ):
        dsgd.run(SGD, problem._replace(init=lambda key: first.params), **options)


def test_a_problem_of_ones_own_may_freeze_leaves(mesh, key):
    def init(key):
        return {"w": jnp.ones(2), "scale": jnp.float32(3)}

    problem = dsgd.Problem(
        init=init,
        loss=lambda params, batch: 0.5 * params["scale"] * jnp.sum((params["w"] - batch) ** 2),
        data=jnp.zeros((2, 2)),
        sample=lambda key, mine: mine,
    )
    assert problem.trainable is None
    bits = dsgd.run(SGD, problem, steps=1, key=key, mesh=mesh).history["bits"][-1]
    frozen = problem._replace(
        init=dsgd.Parameters(init, lambda params: {"w": True, "scale": params["scale"].ndim > 0})
    )
    result = dsgd.run(SGD, frozen, steps=1, key=key, mesh=mesh)
    np.testing.assert_allclose(result.params["w"], 0.7, rtol=1e-6)
    assert result.params["scale"] == 3
    assert result.history["bits"][-1] == 2 / 3 * bits


def test_a_problem_of_ones_own_may_have_integer_leaves_with_its_own_gradient_and_evaluation(
    mesh, key
):
    def slope(params, batch):
        return {"w": params["w"] - batch, "n": np.zeros((), jax.dtypes.float0)}

    def evaluate(params, data, shared):
        return {"loss": jnp.sum(params["w"] ** 2) + params["n"]}, None

    problem = dsgd.Problem(
        init=lambda key: {"w": jnp.ones(2), "n": jnp.int32(3)},
        loss=lambda params, batch: 0.5 * jnp.sum((params["w"] - batch) ** 2) + params["n"],
        data=jnp.ones((2, 2)),
        sample=lambda key, mine: 2 * mine,
    )
    for changed in (
        problem,
        problem._replace(loss=dsgd.Loss(problem.loss, slope), evaluate=evaluate),
    ):
        params = dsgd.run(SGD, changed, steps=1, key=key, mesh=mesh).params
        np.testing.assert_allclose(params["w"], 1.1, rtol=1e-6)
        assert params["n"] == 3


def test_leaves_that_an_optimizer_masks_stay_bit_by_bit_where_models_are_averaged(mesh, key):
    model = problems.Model(
        lambda key: {"w": jnp.zeros(3), "frozen": jax.random.normal(key, (3,))},
        lambda p, x: x @ (p["w"] + p["frozen"]),
    )
    problem = classifier(Y, model=model, **FIXED)
    start = problem.init(loop.split(key)[0])
    frozen = optax.chain(
        optax.adam(0.1), optax.masked(optax.set_to_zero(), {"w": False, "frozen": True})
    )
    found = dsgd.run(
        algorithms.make("local-sgd", frozen, 3), problem, steps=4, key=key, mesh=mesh
    ).params
    np.testing.assert_array_equal(found["frozen"], start["frozen"])
    assert np.abs(found["w"]).min() > 0.01


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (
            {"w": 1, "frozen": False, "table": True, "key": True},
            r"trainable = .*; expected a tree of True and False",
        ),
        ({"w": True}, "trainable = {'w': True}; expected a prefix of the parameters' tree"),
        (False, "parameters have no floating-point leaf that is trainable; expected at least one"),
    ],
)
def test_a_choice_of_leaves_that_does_not_fit_is_refused(trainable, message):
    with pytest.raises(ValueError, match=message):
        classifier(Y, model=problems.Model(with_fixed, predict), trainable=trainable, **FIXED)


# Gradients of single samples


def least_squares(**options):
    model = problems.Model(
        lambda key: {"w": jnp.array([1.0, 0, -1])}, lambda params, x: x @ params["w"]
    )
    return classifier(
        Y,
        model=model,
        loss=optax.squared_error,
        **{"workers": 3, "batch_size": 8, "replacement": False, **options},
    )


def clipped_mean(x, y, w, C, l2=0.0):
    slopes = 2 * (x @ w - y)[:, None] * x
    return (
        np.mean(slopes / np.maximum(1, np.linalg.norm(slopes, axis=1, keepdims=True) / C), axis=0)
        + l2 * w
    )


def test_gradients_are_clipped_sample_by_sample_before_their_mean(mesh, key):
    l2 = 0.3
    problem = problems.per_sample(least_squares(l2=l2), problems.clipped(0.7))
    found = dsgd.run(SGD, problem, steps=1, key=key, mesh=mesh).params["w"]
    w, (x, y) = np.array([1.0, 0, -1]), map(np.asarray, problem.data[:2])
    np.testing.assert_allclose(
        found,
        w - 0.1 * np.mean([clipped_mean(x[n], y[n], w, 0.7, l2) for n in range(3)], axis=0),
        rtol=1e-5,
    )
    exact = dsgd.run(
        algorithms.gradient_descent(optax.sgd(0.1)), problem, steps=1, key=key, mesh=mesh
    ).params["w"]
    np.testing.assert_allclose(exact, found, rtol=1e-5)


def test_clipping_is_that_of_optax_and_in_pieces_as_in_one(monkeypatch):
    problem: Any = least_squares()
    batch = jax.tree.map(lambda leaf: leaf[0], problem.data)
    params = problem.init(jax.random.key(0))
    of_one = jax.grad(lambda params, x, y: jnp.mean(optax.squared_error(x @ params["w"], y)))
    each = jax.jit(jax.vmap(of_one, (None, 0, 0)))(params, *batch[:2])
    dp = optax.contrib.differentially_private_aggregate(0.5, 0.0, key=0)
    update: Any = dp.update(each, dp.init(params))[0]
    for budget in (1 << 28, 200):
        monkeypatch.setattr(accumulate, "BUDGET", budget)
        private: Any = problems.per_sample(problem, problems.clipped(0.5))
        assert (private.gradient.at_once < 8) == (budget == 200)
        slope = jax.jit(private.gradient)
        np.testing.assert_allclose(slope(params, batch)["w"], update["w"], rtol=1e-5)
        few = slope(params, problem.take(batch, jnp.int32(3)))["w"]
        np.testing.assert_allclose(
            few, clipped_mean(batch.inputs[:3], batch.targets[:3], params["w"], 0.5), rtol=1e-5
        )


def test_noise_differs_by_worker_round_and_seed_and_has_its_size(mesh, key):
    flat = least_squares()._replace(loss=lambda params, batch: 0 * params["w"].sum())
    problem = problems.per_sample(flat, problems.clipped(1.0), noise=2.0)

    def ask(key, data):
        return oracle.gradients(problem, queries.Asked(problem.init(key)), key, data, 3)["w"]

    mapped = jax.jit(
        jax.shard_map(
            ask, mesh=mesh, in_specs=(P(), P("workers")), out_specs=P("workers"), check_vma=False
        )
    )
    rows = np.concatenate([mapped(jax.random.key(i), problem.data) for i in range(60)])
    assert len(np.unique(rows)) == rows.size
    assert np.std(rows) == pytest.approx(2 / 8, rel=0.1)
    with pytest.raises(ValueError, match="exact gradients have no noise"):
        dsgd.run(algorithms.gradient_descent(optax.sgd(0.1)), problem, steps=1, key=key, mesh=mesh)


def test_what_has_no_gradients_of_samples_is_refused():
    with pytest.raises(
        ValueError, match=r"quadratic.* has a custom gradient|draws batches of type"
    ):
        problems.per_sample(problems.random_quadratic(2, 2), problems.clipped(1.0))
    with pytest.raises(
        ValueError, match="has batch norm, whose losses are not those of single samples"
    ):
        problems.per_sample(classifier(CYCLE % 2, model=Linen()), problems.clipped(1.0))
    with pytest.raises(ValueError, match=r"clipped: norm = 0; expected a finite number > 0"):
        problems.clipped(0)


# Losses that are not finite


def test_a_loss_that_is_not_finite_from_finite_data_shows_ranges(mesh, key):
    """A user's own loss, of which no check knows that its targets are indices."""
    problem = classifier(CYCLE % 2)._replace(loss=Labels(), evaluate=None)
    shown = r"data.inputs from -2.\d+ to 1.\d+, data.targets from 0 to 1, .*start from 0 to 0, outputs from 0 to 0"
    with pytest.raises(
        dsgd.Diverged,
        match=f"before the first round, with finite data and a finite start .*{shown}",
    ):
        dsgd.run(SGD, problem, steps=1, key=key, mesh=mesh)


class Labels:
    def __call__(self, params, batch):
        return jnp.log(-1.0 - jnp.sum(batch.targets)) + jnp.sum(params)

    def outputs(self, params, batch):
        return batch.inputs @ params


def test_a_gradient_that_is_nan_where_the_loss_is_finite_is_named(mesh, key):
    def apply(params, x):
        return x @ params["w"] + jnp.sqrt(jnp.sum(params["v"] ** 2)) * x[:, 0]

    model = problems.Model(lambda key: {"w": jnp.ones(3), "v": jnp.zeros(2)}, apply)
    problem = classifier(Y, model=model, **FIXED)
    named = r"the gradient in \['v'\] of worker 0 is not finite at the start, although its loss is \(as for sqrt"
    with pytest.raises(dsgd.Diverged, match=named):
        dsgd.run(SGD, problem, steps=5, key=key, mesh=mesh, record_every=5)


def test_a_gradient_that_becomes_nan_later_is_named(mesh, key):
    problem = dsgd.Problem(
        init=lambda key: jnp.array(2.0),
        loss=lambda x, batch: x + jnp.where(x > 0.5, 0.0, jnp.sqrt(jnp.abs(x)) + batch),
        data=jnp.zeros(2),
        sample=lambda key, mine: mine,
    )
    with pytest.raises(
        dsgd.Diverged,
        match=r"the gradient is not finite after round 2, although the loss is 0 \(as for sqrt",
    ):
        dsgd.run(algorithms.minibatch_sgd(optax.sgd(1.0)), problem, steps=9, key=key, mesh=mesh)


def test_a_step_size_that_is_too_large_is_still_blamed(mesh, key):
    with pytest.raises(
        dsgd.Diverged,
        match=r"minibatch_sgd: the loss is .* after round \d+; try a smaller step size",
    ):
        dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(1e3)),
            classifier(Y, model=linear(1), loss=lambda o, y: (o[:, 0] - y) ** 2),
            steps=90,
            key=key,
            mesh=mesh,
        )


# Models that do not fit: the real cause is named


class Constants(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.number = nnx.Linear(3, 2, rngs=rngs), 2.0
        self.array, self.numpy, self.count = jnp.ones((1, 2)), np.ones((1, 2)), jnp.arange(1)
        self.variable, self.cache, self.key = (
            nnx.Variable(jnp.ones((1, 2))),
            nnx.Cache(jnp.zeros(2)),
            jax.random.key(3),
        )
        self.arrays = nnx.List([jnp.ones((1, 2))])

    def __call__(self, x):
        noise = 0 * jax.random.normal(self.key)
        return (
            self.layer(x) * self.array * self.numpy * self.variable[...] * self.arrays[0]
            + self.count[None]
            + noise
        )


def test_constants_of_an_nnx_module_stay_as_they_are(mesh, key):
    params = dsgd.run(
        SGD, classifier(CYCLE % 2, model=Constants), steps=2, key=key, mesh=mesh
    ).params
    np.testing.assert_array_equal(params["array"], np.ones((1, 2)))
    np.testing.assert_array_equal(params["variable"], np.ones((1, 2)))
    assert np.abs(params["layer"]["bias"]).min() > 0


class Broken(nn.Module):
    what: str

    @nn.compact
    def __call__(self, x, train: bool = False):
        if self.what == "attribute":
            return nn.Dense(self.width)(x)
        if self.what == "counter":
            counter = self.variable("counter", "n", lambda: jnp.zeros(()))
            if train:
                counter.value += 1
        if self.what == "spectral":
            return nn.SpectralNorm(nn.Dense(2))(x, update_stats=train)
        return nn.Dense(2)(x)


class Missing(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.drop = nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5)

    def __call__(self, x):
        return self.drop(self.layer(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Broken("attribute"),
            r'^model Broken: init: AttributeError: "Broken" object has no attribute "width".$',
        ),
        (
            Broken("counter"),
            r"^model Broken: \['counter'\]\['n'\] changes in training; expected only parameters, "
            r"constants and running averages",
        ),
        (
            Broken("spectral"),
            "^model Broken: its outputs in training depend on its running averages .batch_stats.; "
            "expected",
        ),
        (
            Missing,
            r"^model Missing in training: `deterministic` is False, but no `rngs` argument was "
            r"provided to Dropout\s+as either .*$",
        ),
        (
            lambda: Missing(nnx.Rngs(0)),
            r"^model = the function <lambda>, which takes \(\); expected a function of 1 argument "
            r"\(rngs\)$",
        ),
        (
            problems.Model(lambda key: 1.0, lambda params, x: len(params)),
            r"^finite_sum: model: TypeError: ",
        ),
    ],
)
def test_errors_of_models_name_the_cause_and_the_model(model, message):
    with pytest.raises(ValueError, match=message) as caught:
        classifier(CYCLE % 2, model=model)
    assert not getattr(caught.value, "__notes__", [])


def test_batches_of_another_structure_are_named(mesh, key):
    pairs = [(np.zeros((2, 2, 3), np.float32), np.zeros((2, 2), np.int32))]
    with pytest.raises(ValueError, match=r"batch is a tuple; expected problems.Examples"):
        dsgd.run(SGD, classifier(CYCLE % 2), steps=1, key=key, mesh=mesh, batches=pairs)


def test_layers_of_a_neural_network_can_be_frozen():
    def last(params):
        """Of flax's modules, whose layers' names end with their numbers."""
        return dict.fromkeys(params, False) | {max(params): True}

    problem = problems.neural_network("mlp", workers=2, batch_size=4, trainable=last)
    flags = leaves.flags(problem)
    assert sum(flags) == 2 < len(flags)


def test_per_sample_gradients_of_epochs_and_of_weighted_clients(mesh, key):
    options = {
        "replacement": "epoch",
        "partition": [[0], [1], list(range(2, len(CYCLE)))],
        "weights": "samples",
        "workers": 3,
    }
    problem = problems.per_sample(
        classifier(CYCLE % 2, **options), problems.clipped(0.1), noise=0.1
    )
    result = dsgd.run(SGD, problem, steps=2, key=key, mesh=mesh)
    assert np.isfinite(result.history["loss"]).all()
