"""Both forms of each operation, the choice between them, and that no other package depends on XLA
for CPUs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
from dsgd import xla
from dsgd.xla import forms, steps

ROOT = Path(dsgd.__file__).parents[1]


def whole(*shape: int) -> jax.Array:
    """Returns integers, for which all sums and products here are exact, in any order."""
    return jnp.asarray(np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(np.float32))


def momentum(params, overwritten):
    memory, gradients = overwritten
    memory = 2 * memory + gradients
    return memory, params - memory


def convolve(x, kernel):
    """Returns the convolution and its derivatives, weighted by positions."""
    stride = 1 if kernel.shape[0] == 1 else 2
    y, back = jax.vjp(lambda x, kernel: xla.convolve(x, kernel, stride), x, kernel)
    return y, back(jnp.arange(y.size, dtype=y.dtype).reshape(y.shape) % 7)


def derivatives(function, x):
    """Returns the function's derivatives in forward and reverse mode."""
    value, back = jax.vjp(function, x)
    return value, jax.jvp(function, (x,), (jnp.roll(x, 1),)), back(value)


OPERATIONS = {
    "sum_rows": (xla.sum_rows, whole(17, 512)),
    "sum_rows, derivatives": (lambda x: derivatives(xla.sum_rows, x), whole(17, 512)),
    "moments": (xla.moments, whole(17, 512)),
    "moments, derivatives": (lambda x: derivatives(xla.moments, x), whole(17, 512)),
    "sum_elements": (jax.vmap(xla.sum_elements), whole(16, 700)),
    "sum_elements, derivatives": (
        lambda x: derivatives(jax.vmap(xla.sum_elements), x),
        whole(16, 300),
    ),
    "inner": (xla.inner, whole(65, 64), whole(65, 64)),
    "sqnorm": (lambda x: xla.sqnorm([x, x[:3]]), whole(65, 64)),
    "among_largest": (
        jax.vmap(lambda x: xla.among_largest(x, 3)),
        whole(110, 150).at[:, :9].set(20),
    ),
    "largest": (lambda x: xla.largest(x, 30), whole(1 << 14) % 1001),
    "materialize": (lambda x: jnp.roll(xla.materialize(2 * x), 1) + x, whole(40)),
    "in_place": (
        lambda *given: xla.apply_in_place(momentum, given[0], given[1:]),
        whole(3, 40),
        whole(3, 40),
        whole(3, 40),
    ),
    "convolve": (convolve, whole(2, 7, 8, 3), whole(3, 3, 3, 5)),
    "convolve, 1 x 1": (convolve, whole(2, 7, 8, 3), whole(1, 1, 3, 5)),
    "convolve, each worker": (jax.vmap(convolve), whole(2, 1, 7, 7, 3), whole(2, 3, 3, 3, 5)),
}


def count_operations(lowered) -> Counter[str]:
    """Returns the number of each of StableHLO's operations in the program, without the choice of a
    form and zeros that replace the other form's residuals.
    """
    return Counter(
        re.findall(r"hlo\.(?!case|constant|return|broadcast_in_dim)(\w+)", lowered.as_text())
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_forms_are_bit_identical_and_only_cpus_use_theirs(name, monkeypatch):
    """For integers, whose sums are exact; otherwise sums differ by the order of additions."""
    monkeypatch.setattr(steps, "LARGE", 0)
    function, *args = OPERATIONS[name]

    def lower(platform: str):
        """The function is traced each time: `jax.jit` caches traces by the function, and from JAX
        0.11 on also the programs of the functions that it calls.
        """
        jax.clear_caches()
        return jax.jit(partial(function)).trace(*args).lower(lowering_platforms=(platform,))

    elsewhere, on_cpus = (lower(platform) for platform in ("cuda", "cpu"))
    monkeypatch.setattr(forms, "ENABLED", False)
    plain = lower("cpu")
    assert count_operations(elsewhere) == count_operations(lower("cuda"))
    assert count_operations(on_cpus) != count_operations(plain)
    for one, other in zip(
        jax.tree.leaves(on_cpus.compile()(*args)),
        jax.tree.leaves(plain.compile()(*args)),
        strict=True,
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("enabled", [True, False])
def test_convolutions_in_sweeps(enabled, monkeypatch):
    """Mapped over workers and seeds, which have their own images and kernels, and over a grid of
    kernels; the gradients are those of each run and worker.
    """
    monkeypatch.setattr(forms, "ENABLED", enabled)
    x, kernels = whole(3, 2, 2, 6, 5, 3), whole(4, 3, 2, 3, 3, 3, 5)
    one = jax.grad(lambda kernel, x: jnp.sum(xla.convolve(x, kernel, 2) ** 2) / 2, (0, 1))
    mapped = jax.vmap(jax.vmap(jax.vmap(one)), (0, None))
    in_run = jax.shard_map(
        mapped,
        mesh=dsgd.workers.mesh(1),
        in_specs=(P(None, None, "workers"), P(None, "workers")),
        out_specs=P(None, None, "workers"),
        check_vma=False,
    )
    found = jax.jit(in_run)(kernels, x)
    for at in np.ndindex(4, 3, 2):
        expected = one(kernels[at], x[at[1:]])
        for each, by_run in zip(expected, found, strict=True):
            np.testing.assert_array_equal(by_run[at], each)


def test_few_elements_use_the_plain_form():
    def text():
        operations = (
            lambda x: xla.sum_elements(x[0]),
            xla.sum_rows,
            xla.moments,
            lambda x: xla.among_largest(x[0], 3),
        )
        step = lambda x: xla.apply_in_place(momentum, x, (x, x))  # noqa: E731
        return (
            jax.jit(lambda x: [operation(x) for operation in (*operations, step)])
            .lower(whole(4, 1000))
            .as_text()
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "ENABLED", False)
        plain = text()
    assert text() == plain


def test_a_wrong_value_of_the_variable_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^DSGD_XLA_WORKAROUNDS = 'no'; expected 'on' or 'off': unset it for 'on'$",
    ):
        forms._is_enabled("no")
    assert forms._is_enabled("on")
    assert not forms._is_enabled("off")


IMPORTING = """
import flax.linen, jax, optax, sys
from jax._src import compiler, dispatch, mesh, sharding_impls
from jax._src.interpreters import mlir, pxla

def seen():
    modules = compiler, dispatch, pxla, mlir
    functions = {(m.__name__, name): value for m in modules for name, value in vars(m).items()}
    tables = mlir._lowerings, *mlir._platform_specific_lowerings.values()
    rules = [dict(table) for table in tables]
    return functions, rules, dict(jax.config.values), dict(__import__("os").environ)

before = seen()
import dsgd, algorithms, topologies
after = seen()
same = [all(after[0].get(name) is value for name, value in before[0].items())]
for old, new in zip(before[1], after[1]):
    same += [all(new.get(name) is value for name, value in old.items())]
print(all(same), before[2:] == after[2:], dsgd.xla.forms.ENABLED)
"""


def test_importing_dsgd_changes_nothing_in_jax_and_reads_the_variable():
    """Functions of its compiler, rules that lower its operations, its settings, and the
    environment.
    """
    code = [sys.executable, "-c", IMPORTING]
    done = subprocess.run(
        code, capture_output=True, text=True, env=os.environ | {forms.VARIABLE: "off"}, check=False
    )
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def sources(*packages: str) -> dict[Path, str]:
    return {
        path.relative_to(ROOT): path.read_text()
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    }


def test_only_this_package_knows_about_xla_on_cpus():
    """Other packages do not read the platform of a program, set XLA's options for CPUs, or use
    private names of JAX, except for real processes, whose store is not public in JAX.
    """
    known = re.compile(
        r"platform_dependent|lowering_platforms|xla_cpu|_private_parameters|[!=]= "
        r"?[\"']cpu[\"']|XLA on CPUs|on CPUs,? XLA"
    )
    private = re.compile(r"jax\._src|(?:from|import) jaxlib")
    for path, text in sources("dsgd", "algorithms", "topologies").items():
        if not path.is_relative_to("dsgd/xla"):
            assert not known.findall(text), path
        if not path.is_relative_to("dsgd/machines"):
            assert not private.findall(text), path
