"""The benchmark of the loop itself, and what `rounds` needs where the device is no CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts

from dsgd import problems
from experiments.benchmark import by_hand, loop


@pytest.mark.parametrize("name", ["mb-sgd", "dsgd"])
def test_the_loop_whose_turns_are_an_argument_does_what_the_scan_does(name):
    problem = problems.random_quadratic(4, 6, diagonal=True, seed=0)
    states, history = by_hand.scan(name, problem)(20)
    state, record = by_hand.counted(name, problem)(20)
    np.testing.assert_allclose(state, states, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(record, [series[-1] for series in jax.device_get(history)], rtol=1e-4, atol=1e-6)


def test_it_times_turns_of_nothing_and_of_methods(tmp_path, capsys):
    loop.main(loop.Args(methods=("mb-sgd",), workers=2, dimension=3, seconds=1e-4, repeats=1, out=tmp_path))
    rows = scripts.rows(tmp_path / "loop.csv")
    assert [row["method"] for row in rows] == ["nothing"] * 2 + ["mb-sgd"] * 4
    assert all(float(row["seconds"]) > 0 for row in rows)
    lines = capsys.readouterr().out.splitlines()
    assert sum("dsgd.run, every 100" in line for line in lines) == 1
    assert max(map(len, lines)) <= 80


def test_methods_without_a_scan_by_hand_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--methods asgd: need some of mb-sgd, dsgd, "):
        loop.main(loop.Args(methods=("asgd",), out=tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_where_the_device_is_no_cpu_copies_are_its_own(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_array_equal(by_hand.copies(4, 2, 3)(3), -np.ones(12))
    assert isinstance(by_hand.copies(4, 2, 3)(2), jnp.ndarray)
