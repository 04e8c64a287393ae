"""A run that stops and goes on is the run that did not stop."""

from __future__ import annotations

import errno
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd.engine import loop
from dsgd.runs import checkpoints

N = 4


@pytest.fixture(scope="module")
def method():
    return algorithms.decentralized_sgd(optax.sgd(0.1, momentum=0.5), topologies.ring(N))


def assert_equal(one: dsgd.Result, other: dsgd.Result) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    assert one.history.keys() == other.history.keys()
    jax.tree.map(np.testing.assert_array_equal, one.history, other.history)
    np.testing.assert_array_equal(one.params, other.params)


def test_a_finished_run_goes_on_with_more_steps_as_if_it_had_not_stopped(
    method, problem, key, tmp_path
):
    options = {"key": key, "seeds": 3, "mesh": 2, "record_every": 2}
    straight = dsgd.run(method, problem, steps=30, **options)
    dsgd.run(method, problem, steps=20, checkpoint=tmp_path / "run", **options)
    assert_equal(
        dsgd.run(method, problem, steps=30, checkpoint=tmp_path / "run", **options), straight
    )
    assert_equal(
        dsgd.run(method, problem, steps=30, checkpoint=tmp_path / "run", **options), straight
    )


def test_a_run_that_its_batches_interrupt_saves_itself_and_goes_on(
    method, problem, mesh, key, tmp_path
):
    """Batches that were used are skipped."""
    everybody = jax.tree.map(np.asarray, problem.data._replace(noise=np.zeros((N, 3), np.float32)))

    def batches(stop):
        def items():
            for t in itertools.count():
                if t == stop:
                    raise KeyboardInterrupt
                yield everybody._replace(noise=np.full((N, 3), 0.1 * (t % 7), np.float32))

        return dsgd.Batches(items(), "sevens")

    options = {"steps": 100, "key": key, "mesh": mesh}
    straight = dsgd.run(method, problem, batches=batches(None), **options)
    with pytest.raises(dsgd.Interrupted) as stopped:
        dsgd.run(method, problem, batches=batches(60), checkpoint=tmp_path, **options)
    done = stopped.value.history["step"][-1]
    assert 0 < done <= 60
    np.testing.assert_array_equal(
        stopped.value.history["loss"], straight.history["loss"][: done + 1]
    )
    assert_equal(
        dsgd.run(method, problem, batches=batches(None), checkpoint=tmp_path, **options), straight
    )
    with pytest.raises(
        ValueError,
        match=r"contains another run .batches = sevens in the checkpoint, eights in this run",
    ):
        dsgd.run(
            method,
            problem,
            batches=dsgd.Batches(batches(None), "eights"),
            checkpoint=tmp_path,
            **options,
        )
    with pytest.raises(
        ValueError,
        match=r"contains another run .batches = sevens in the checkpoint, None in this run",
    ):
        dsgd.run(method, problem, checkpoint=tmp_path, **options)
    with pytest.raises(ValueError, match=r"batches have no identity.*dsgd\.Batches"):
        dsgd.run(method, problem, batches=iter(batches(None)), checkpoint=tmp_path, **options)


def test_an_identity_that_is_none_is_refused():
    with pytest.raises(ValueError, match="expected a non-empty text"):
        dsgd.Batches([], "")


ANYTHING_ELSE = "the compiled programs differ: another hyperparameter"


def l2(strength: float) -> dsgd.Problem:
    """One name, one data set, two objectives."""
    inputs = np.linspace(-1, 1, N * 3, dtype=np.float32).reshape(N, 3)

    def loss(params, batch):
        return jnp.sum((params - batch) ** 2) + strength * jnp.sum(params**2)

    return dsgd.Problem(
        init=lambda key: jnp.zeros(3), loss=loss, data=inputs, sample=lambda key, mine: mine
    )


def momentum(decay: float) -> dsgd.Algorithm:
    return algorithms.minibatch_sgd(optax.sgd(0.1, momentum=decay))


OTHER_RUNS = {
    "method": (
        {"method": algorithms.parameter_server_sgd(optax.sgd(0.1, momentum=0.5))},
        "method = minibatch_sgd in the checkpoint, parameter_server_sgd in this run",
    ),
    "momentum": ({"method": momentum(0.9)}, ANYTHING_ELSE),
    "l2": ({"problem": l2(0.2)}, ANYTHING_ELSE),
    "data": ({"problem": l2(0.1)._replace(data=np.ones((N, 3), np.float32))}, "data = "),
    "key": ({"key": jax.random.key(7)}, "key = "),
    "seeds": ({"seeds": 2}, "seeds = None in the checkpoint, 2 in this run"),
    "evaluate_every": (
        {"evaluate_every": 2},
        "evaluate_every = 1 in the checkpoint, 2 in this run",
    ),
    "cluster": (
        {"cluster": dsgd.clusters.Cluster(dsgd.clusters.constant(1.0))},
        "cluster = None in the checkpoint",
    ),
}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory) -> Path:
    """Its checkpoint."""
    folder = tmp_path_factory.mktemp("one")
    dsgd.run(momentum(0.5), l2(0.1), steps=3, key=jax.random.key(0), mesh=1, checkpoint=folder)
    return folder


@pytest.mark.parametrize("other", OTHER_RUNS)
def test_a_folder_of_another_run_is_refused_by_what_differs(other, one_run, key):
    """Also where names, shapes and the first step are the same."""
    options, message = OTHER_RUNS[other]
    options = {"method": momentum(0.5), "problem": l2(0.1), "key": key, **options}
    with pytest.raises(
        ValueError,
        match=rf"contains another run \({message}.*\); expected the same run; pass another folder",
    ):
        dsgd.run(
            options.pop("method"),
            options.pop("problem"),
            steps=3,
            mesh=1,
            checkpoint=one_run,
            **options,
        )


def test_the_same_run_made_anew_is_the_same_and_never_goes_back(one_run, key):
    dsgd.run(momentum(0.5), l2(0.1), steps=3, key=key, mesh=1, checkpoint=one_run)
    with pytest.raises(ValueError, match="steps = 2, but the checkpoint has 3 rounds"):
        dsgd.run(momentum(0.5), l2(0.1), steps=2, key=key, mesh=1, checkpoint=one_run)


def test_a_run_that_ended_between_records_goes_on_with_the_records_of_a_straight_one(
    method, problem, mesh, key, tmp_path
):
    """Its own last record stays."""
    options = {"key": key, "mesh": mesh, "record_every": 10}
    straight = dsgd.run(method, problem, steps=50, **options)
    dsgd.run(method, problem, steps=25, checkpoint=tmp_path, **options)
    resumed = dsgd.run(method, problem, steps=50, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(resumed.history["step"], [0, 10, 20, 25, 30, 40, 50])
    for name in ("loss", "bits", "consensus"):
        np.testing.assert_array_equal(np.delete(resumed.history[name], 3), straight.history[name])
    np.testing.assert_array_equal(resumed.params, straight.params)


JOB = """
import os, signal, sys, jax, optax, algorithms, dsgd, topologies
from dsgd import problems
from dsgd.runs import checkpoints

checkpoints._SECONDS = 0.0
devices, folder, saves = int(sys.argv[1]), sys.argv[2], iter(range(int(sys.argv[3])))
sync = os.fsync
os.fsync = lambda file: sync(file) if next(saves, None) is not None else os.kill(os.getpid(), signal.SIGKILL)
problem = problems.random_quadratic(4, 3, noise=0.3, seed=0)
method = algorithms.decentralized_sgd(optax.sgd(0.1, momentum=0.5), topologies.ring(4))
dsgd.run(method, problem, steps=2_000_000_000, key=jax.random.key(0), record_every=200, mesh=devices, checkpoint=folder)
"""


def test_killed_within_a_save_it_goes_on_also_on_another_number_of_devices(
    method, problem, key, tmp_path
):
    """What is left of half a save is taken away; what is not ours stays."""
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "own.txt").write_text("mine")
    (tmp_path / "notes.npz").write_text("mine")
    job = subprocess.run(
        [sys.executable, "-c", JOB, "4", str(tmp_path), "2"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert job.returncode == -signal.SIGKILL, job.stderr
    assert len(list(tmp_path.glob(".dsgd-run-*.npz"))) == 1
    with np.load(tmp_path / "dsgd-run.npz") as saved:
        done = int(saved["records/step"][-1])
    options = {"steps": done + 400, "key": key, "record_every": 200}
    resumed = dsgd.run(method, problem, mesh=1, checkpoint=tmp_path, **options)
    straight = dsgd.run(method, problem, mesh=1, **options)
    np.testing.assert_array_equal(resumed.history["step"], straight.history["step"])
    np.testing.assert_array_equal(resumed.history["bits"], straight.history["bits"])
    np.testing.assert_allclose(
        resumed.history["loss"], straight.history["loss"], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(resumed.params, straight.params, rtol=1e-4, atol=1e-6)
    assert {entry.name for entry in tmp_path.iterdir()} - {"dsgd-run.lock"} == {
        "12",
        "notes.npz",
        "dsgd-run.npz",
    }
    assert (
        (tmp_path / "12" / "own.txt").read_text() == (tmp_path / "notes.npz").read_text() == "mine"
    )


def half_written(file, **arrays):
    file.write(b"PK half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_takes_no_more_leaves_the_checkpoint_before(
    method, problem, mesh, key, tmp_path, monkeypatch
):
    options = {"key": key, "mesh": mesh, "checkpoint": tmp_path}
    dsgd.run(method, problem, steps=20, **options)
    before = (tmp_path / "dsgd-run.npz").read_bytes()
    with monkeypatch.context() as full:
        full.setattr(checkpoints.np, "savez", half_written)
        with pytest.raises(OSError, match="No space left"):
            dsgd.run(method, problem, steps=30, **options)
    assert (tmp_path / "dsgd-run.npz").read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"dsgd-run.lock", "dsgd-run.npz"}


def test_a_full_disk_does_not_take_the_history_of_an_interrupted_run(
    problem, method, mesh, key, tmp_path, monkeypatch
):
    def batches():
        yield from itertools.repeat(jax.tree.map(np.asarray, problem.data), 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.np, "savez", half_written)
    with pytest.raises(
        dsgd.Interrupted, match=r"its checkpoint could not be written: .*No space left"
    ) as stopped:
        dsgd.run(
            method,
            problem,
            steps=99,
            key=key,
            mesh=mesh,
            checkpoint=tmp_path,
            batches=dsgd.Batches(batches(), "five"),
        )
    assert stopped.value.history["step"][-1] > 0
    assert not (tmp_path / "dsgd-run.npz").exists()


def test_one_flipped_bit_anywhere_is_noticed(one_run, key, tmp_path):
    """Also where the file is cut, or is none of ours."""
    whole = (one_run / "dsgd-run.npz").read_bytes()
    broken = [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for at in range(0, len(whole), len(whole) // 25)
    ]
    for contents in (*broken, whole[:-1], whole[: len(whole) // 2], b"", whole + b"0", b"a text"):
        (tmp_path / "dsgd-run.npz").write_bytes(contents)
        with pytest.raises(
            ValueError,
            match=r"checkpoint .*dsgd-run.npz is damaged \(.*\); expected the file as it was written; restore it, or delete it",
        ):
            checkpoints.Checkpoint(tmp_path, {})
        assert (tmp_path / "dsgd-run.npz").read_bytes() == contents
    (tmp_path / "dsgd-run.npz").write_bytes(whole)
    dsgd.run(momentum(0.5), l2(0.1), steps=3, key=key, mesh=1, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("", "checkpoint = ''; expected a folder; '.' is the current one"),
        ("file", "File exists; expected a folder that can be written to"),
        ("file/inside", "Not a directory; expected a folder"),
        ("/proc/checkpoint", "No such file or directory; expected a folder"),
    ],
)
def test_a_folder_that_cannot_be_one_is_refused(folder, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        checkpoints.Checkpoint(str(tmp_path / folder) if folder else "", ABOUT)


def test_a_folder_without_the_right_to_write_is_refused(tmp_path, monkeypatch):
    """Root may write everywhere: the system's refusal is made."""

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoints.filelock.FileLock, "acquire", refuse)
    with pytest.raises(
        ValueError, match="Permission denied; expected a folder that can be written to"
    ):
        checkpoints.Checkpoint(tmp_path, {})


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        checkpoints.Checkpoint(tmp_path, ABOUT),
        pytest.raises(ValueError, match="another run is using it; expected an unused folder"),
    ):
        checkpoints.Checkpoint(tmp_path, ABOUT)
    opened(tmp_path)


def test_states_of_keys_and_of_types_that_numpy_lacks_are_kept(mesh, key, tmp_path):
    """A method that carries a key and a bfloat16."""
    sgd = algorithms.minibatch_sgd(optax.sgd(0.1))

    def init(params, N):
        state = sgd.init(params, N)
        return state._replace(
            server=(state.server, jax.random.key(5, impl="rbg"), jnp.full(2, 0.5, jnp.bfloat16))
        )

    def update(state, gradients, round):
        inner, own, half = state.server
        after = sgd.update(state._replace(server=inner), gradients, round)
        own = jax.random.split(own)[0]
        return after._replace(
            server=(after.server, own, half + jax.random.normal(own, (2,), jnp.bfloat16))
        )

    def bare(member):
        return lambda state, *rest: member(state._replace(server=state.server[0]), *rest)

    method = sgd._replace(init=init, update=update, query=bare(sgd.query), model=bare(sgd.model))
    straight = dsgd.run(method, l2(0.1), steps=6, key=key, mesh=mesh)
    dsgd.run(method, l2(0.1), steps=3, key=key, mesh=mesh, checkpoint=tmp_path)
    resumed = dsgd.run(method, l2(0.1), steps=6, key=key, mesh=mesh, checkpoint=tmp_path)
    np.testing.assert_array_equal(
        resumed.state.server[2].view(jnp.uint16), straight.state.server[2].view(jnp.uint16)
    )
    np.testing.assert_array_equal(
        jax.random.key_data(resumed.state.server[1]), jax.random.key_data(straight.state.server[1])
    )


ABOUT = {"method": "one", "program": "a"}


def carried(**server: jax.Array) -> loop.Carry:
    return loop.Carry(dsgd.State(server, step=jnp.int32(3)), ())


def opened(folder: Path) -> None:
    """A run that has the folder, for as long as it takes to open it."""
    with checkpoints.Checkpoint(folder, ABOUT):
        pass


def test_after_an_error_the_folder_is_free_while_the_error_is_still_looked_at(tmp_path):
    """Damaged files, another run's, what cannot be taken away, and errors of a run: each keeps what
    it was raised in.
    """
    path, kept = tmp_path / "dsgd-run.npz", []
    with checkpoints.Checkpoint(tmp_path, ABOUT) as mine:
        mine.save(carried(x=jnp.zeros(2)), {"step": np.zeros(1)})
    path.with_name("whole").write_bytes(path.read_bytes())
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged") as error:
        opened(tmp_path)
    kept.append(error)
    path.write_bytes(path.with_name("whole").read_bytes())
    with pytest.raises(ValueError, match="contains another run") as error:
        checkpoints.Checkpoint(tmp_path, {"method": "other", "program": "b"})
    kept.append(error)
    half = tmp_path / ".dsgd-run-abcdefgh.npz"
    half.mkdir()
    with pytest.raises(OSError, match="abcdefgh") as error:
        opened(tmp_path)
    kept.append(error)
    half.rmdir()
    with pytest.raises(ZeroDivisionError) as error, checkpoints.Checkpoint(tmp_path, ABOUT):
        raise ZeroDivisionError
    kept.append(error)
    opened(tmp_path)
    assert len(kept) == 4


def test_what_is_restored_is_what_was_saved_and_once(tmp_path):
    """And a state with other leaves, shapes or types is refused by name."""
    carry = carried(x=jnp.arange(3.0), n=jnp.int32(7))
    records = {"step": np.arange(2), "loss": np.array([2.0, 1.0])}
    with checkpoints.Checkpoint(tmp_path, ABOUT) as first:
        assert first.restore(jax.eval_shape(lambda: carry)) is None
        first.save(carry, records)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), carry
    )
    with checkpoints.Checkpoint(tmp_path, ABOUT) as second:
        found = second.restore(like)
    assert found is not None
    jax.tree.map(np.testing.assert_array_equal, found, (carry, records))
    x, n = like.state.server["x"], like.state.server["n"]
    for wrong, words in (
        ({"x": x}, "the state has other leaves"),
        ({"x": x, "n": n, "y": n}, "the state has other leaves"),
        ({"x": n, "n": n}, r"x.* is float32\[3\]; expected int32\[\]"),
        ({"x": x, "n": n.update(dtype=jnp.float32)}, r"n.* is int32\[\]; expected float32\[\]"),
    ):
        with (
            checkpoints.Checkpoint(tmp_path, ABOUT) as again,
            pytest.raises(ValueError, match=words),
        ):
            again.restore(like._replace(state=like.state._replace(server=wrong)))


def test_a_checkpoint_is_due_after_as_long_as_an_interruption_may_cost(tmp_path, monkeypatch):
    """Since the last one, or since the run began."""
    now = [100.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    with checkpoints.Checkpoint(tmp_path, ABOUT) as mine:
        for after, due in ((0.0, False), (30.0, False), (30.5, True)):
            now[0] = 100.0 + after
            assert mine.due() is due
        mine.save(carried(x=jnp.zeros(2)), {})
        assert not mine.due()
        now[0] += 31.0
        assert mine.due()
