"""A run that is interrupted and resumed equals an uninterrupted run."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters
from dsgd.runs import checkpoints
from tests.dsgd.by_hand import run

N = 4
METHOD = algorithms.decentralized_sgd(optax.sgd(0.1, momentum=0.5), topologies.ring(N))
FILE = "dsgd-run.npz"


def assert_equal(one: dsgd.Result, other: dsgd.Result) -> None:
    """Checks that trees are equal bit for bit, including keys and bfloat16."""

    def content(leaf):
        typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if typed else leaf).tobytes()

    assert jax.tree.map(content, one) == jax.tree.map(content, other)


def test_a_finished_run_continues_with_more_steps_as_if_it_had_not_stopped(problem, tmp_path):
    """Including its clock: the lead of workers over the last one, and the time of the bandwidth."""
    cluster = clusters.Cluster(
        clusters.exponential(1.0), up=clusters.square_wave(64.0, 8.0, 30.0), latency=0.25
    )
    options = {"seeds": 3, "mesh": 2, "record_every": 2, "cluster": cluster}
    straight = run(METHOD, problem, 30, **options)
    run(METHOD, problem, 20, checkpoint=tmp_path / "run", **options)
    for _ in range(2):
        assert_equal(run(METHOD, problem, 30, checkpoint=tmp_path / "run", **options), straight)


def test_states_with_keys_and_types_that_numpy_lacks_are_saved(tmp_path):
    """A method whose state has a key and a bfloat16."""
    sgd = algorithms.minibatch_sgd(optax.sgd(0.1))

    def init(params, N):
        state = sgd.init(params, N)
        more = jax.random.key(5, impl="rbg"), jnp.full(2, 0.5, jnp.bfloat16)
        return state._replace(server=(state.server, *more))

    def update(state, gradients, round):
        inner, own, half = state.server
        after = sgd.update(state._replace(server=inner), gradients, round)
        own = jax.random.split(own)[0]
        half += jax.random.normal(own, (2,), jnp.bfloat16)
        return after._replace(server=(after.server, own, half))

    def bare(member):
        return lambda state, *rest: member(state._replace(server=state.server[0]), *rest)

    method = sgd._replace(init=init, update=update, query=bare(sgd.query), model=bare(sgd.model))
    run(method, l2(0.1), 3, checkpoint=tmp_path)
    resumed = run(method, l2(0.1), 6, checkpoint=tmp_path)
    assert_equal(resumed, run(method, l2(0.1), 6))


def sevens(data: Any, stop: int | None) -> dsgd.Batches:
    """Yields batches that are interrupted before the given one."""

    def items():
        for t in itertools.count():
            if t == stop:
                raise KeyboardInterrupt
            yield data._replace(noise=np.full((N, 3), 0.1 * (t % 7), np.float32))

    return dsgd.Batches(items(), "sevens")


def test_a_run_interrupted_by_its_batches_is_saved_and_resumes(problem, tmp_path):
    """Used batches are skipped."""
    data = jax.tree.map(np.asarray, problem.data)
    straight = run(METHOD, problem, 100, batches=sevens(data, None))
    with pytest.raises(dsgd.Interrupted) as stopped:
        run(METHOD, problem, 100, batches=sevens(data, 60), checkpoint=tmp_path)
    done = stopped.value.history["step"][-1]
    assert 0 < done <= 60
    np.testing.assert_array_equal(
        stopped.value.history["loss"], straight.history["loss"][: done + 1]
    )
    batches = sevens(data, None)
    assert_equal(run(METHOD, problem, 100, batches=batches, checkpoint=tmp_path), straight)
    for other, message in (
        (dsgd.Batches(batches, "eights"), "batches = sevens in the checkpoint, eights in this run"),
        (None, "batches = sevens in the checkpoint, None in this run"),
        (iter(batches), r"dsgd\.Batches"),
        (dsgd.Batches(itertools.islice(batches, 1, None), "sevens"), "digest of the first batch"),
    ):
        with pytest.raises(ValueError, match=message):
            run(METHOD, problem, 100, batches=other, checkpoint=tmp_path)


def test_an_invalid_identity_is_refused():
    with pytest.raises(ValueError, match="expected a non-empty text"):
        dsgd.Batches([], "")


ANYTHING_ELSE = "the compiled programs differ: another hyperparameter"


def l2(strength: float, workers: int = N, shared: float = 0.0) -> dsgd.Problem:
    """Returns objectives with the same name and data set."""
    inputs = np.linspace(-1, 1, workers * 3, dtype=np.float32).reshape(workers, 3)

    def loss(params, batch):
        return jnp.sum((params - batch) ** 2) + strength * jnp.sum(params**2)

    def evaluate(params, data, shared):
        return {"loss": jnp.sum(params) + shared}, None

    return dsgd.Problem(
        init=lambda key: jnp.zeros(3),
        loss=loss,
        data=inputs,
        sample=lambda key, mine: mine,
        evaluate=dsgd.Evaluation(evaluate, np.float32(shared)),
    )


def momentum(decay: float) -> dsgd.Algorithm:
    return algorithms.minibatch_sgd(optax.sgd(0.1, momentum=decay))


ONE: dict[str, Any] = {"method": momentum(0.5), "problem": l2(0.1), "steps": 3}
OTHER_RUNS = {
    "method": (
        {"method": algorithms.parameter_server_sgd(optax.sgd(0.1, momentum=0.5))},
        "method = minibatch_sgd in the checkpoint, parameter_server_sgd in this run",
    ),
    "momentum": ({"method": momentum(0.9)}, ANYTHING_ELSE),
    "l2": ({"problem": l2(0.2)}, ANYTHING_ELSE),
    "data": ({"problem": l2(0.1)._replace(data=np.ones((N, 3), np.float32))}, "data = "),
    "shared values": ({"problem": l2(0.1, shared=1.0)}, "data = "),
    "key": ({"key": jax.random.key(7)}, "key = "),
    "seeds": ({"seeds": 2}, "seeds = None in the checkpoint, 2 in this run"),
    "evaluate_every": (
        {"evaluate_every": 2},
        "evaluate_every = 1 in the checkpoint, 2 in this run",
    ),
    "cluster": (
        {"cluster": clusters.Cluster(clusters.constant(1.0))},
        "cluster = None in the checkpoint",
    ),
    "workers": ({"problem": l2(0.1, 2)}, r"of 4 workers; expected 2; .*problem._replace\("),
    "fewer steps": ({"steps": 2}, "steps = 2, but the checkpoint has 3 rounds"),
}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory) -> Path:
    """Returns the checkpoint of a run."""
    folder = tmp_path_factory.mktemp("one")
    run(**ONE, checkpoint=folder)
    return folder


@pytest.mark.parametrize("other", OTHER_RUNS)
def test_a_folder_of_another_run_is_refused_by_what_differs(other, one_run):
    """Also if names, shapes and the first step are the same."""
    changed, message = OTHER_RUNS[other]
    with pytest.raises(ValueError, match=message):
        run(**ONE | changed, checkpoint=one_run)


def test_an_equal_run_built_again_has_the_same_fingerprint(one_run):
    run(momentum(0.5), l2(0.1), 3, checkpoint=one_run)


JOB = """
import os, signal, sys, jax, optax, algorithms, dsgd, topologies
from dsgd import problems
from dsgd.runs import checkpoints

checkpoints._SECONDS = 0.0
devices, folder, saves = int(sys.argv[1]), sys.argv[2], iter(range(int(sys.argv[3])))
sync = os.fsync

def sync_or_die(file):
    sync(file) if next(saves, None) is not None else os.kill(os.getpid(), signal.SIGKILL)

os.fsync = sync_or_die
problem = problems.random_quadratic(4, 3, noise=0.3, seed=0)
method = algorithms.decentralized_sgd(optax.sgd(0.1, momentum=0.5), topologies.ring(4))
options = {"key": jax.random.key(0), "record_every": 200, "mesh": devices, "checkpoint": folder}
dsgd.run(method, problem, steps=2_000_000_000, **options)
"""


def test_a_run_killed_during_a_save_resumes_also_on_another_number_of_devices(problem, tmp_path):
    """Remains of an incomplete save are removed; other files are kept."""
    (tmp_path / "12").mkdir()
    for own in (tmp_path / "12" / "own.txt", tmp_path / "notes.npz"):
        own.write_text("mine")
    command = [sys.executable, "-c", JOB, "4", str(tmp_path), "2"]
    job = subprocess.run(command, check=False, capture_output=True, text=True)
    assert job.returncode == -signal.SIGKILL, job.stderr
    assert len(list(tmp_path.glob(".dsgd-run-*.npz"))) == 1
    with np.load(tmp_path / FILE) as saved:
        steps = int(saved["records/step"][-1]) + 400
    resumed = run(METHOD, problem, steps, record_every=200, checkpoint=tmp_path)
    straight = run(METHOD, problem, steps, record_every=200)
    for name in ("step", "bits", "loss"):
        found, expected = resumed.history[name], straight.history[name]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(resumed.params, straight.params, rtol=1e-4, atol=1e-6)
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left - {"dsgd-run.lock"} == {"12", "notes.npz", FILE}
    assert (tmp_path / "12" / "own.txt").read_text() == "mine"


@pytest.fixture
def full_disk():
    """Returns a function after whose call the disk is full."""

    def half_written(file, array, **options):
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        yield lambda: patch.setattr(checkpoints.np.lib.format, "write_array", half_written)


def test_a_full_disk_keeps_the_previous_checkpoint(problem, tmp_path, full_disk):
    run(METHOD, problem, 20, checkpoint=tmp_path)
    before = (tmp_path / FILE).read_bytes()
    full_disk()
    with pytest.raises(OSError, match=r"No space left.*; the previous one is intact"):
        run(METHOD, problem, 30, checkpoint=tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"dsgd-run.lock", FILE}


def test_any_flipped_bit_is_detected(one_run, tmp_path):
    """Also if the file is truncated, or is not a checkpoint."""
    whole = (one_run / FILE).read_bytes()
    broken = [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for at in range(0, len(whole), len(whole) // 25)
    ]
    for contents in (*broken, whole[:-1], whole[: len(whole) // 2], b"", whole + b"0", b"a text"):
        (tmp_path / FILE).write_bytes(contents)
        with pytest.raises(ValueError, match=r"dsgd-run\.npz is damaged"):
            checkpoints.Checkpoint(tmp_path, {})
        assert (tmp_path / FILE).read_bytes() == contents
    (tmp_path / FILE).write_bytes(whole)
    run(**ONE, checkpoint=tmp_path)


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    """Returns the header of an array as numpy writes it."""
    file = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


TEXT = io.BytesIO()
np.save(TEXT, np.array(json.dumps({"method": "one"})))
FORGED: dict[str, dict[str, bytes]] = {
    "more zeros than the file has bytes": {
        "about.npy": TEXT.getvalue(),
        "x.npy": header((10**6, 1)) + 4_000_000 * b"\0",
    },
    "objects": {"about.npy": TEXT.getvalue(), "x.npy": header((2,), "|O") + 16 * b"1"},
    "no fingerprint": {"x.npy": header((2,)) + 8 * b"1"},
    **{
        f"{about}": {"about.npy": header((), f"<U{len(about)}") + about.encode("utf-32-le")}
        for about in ("[1]", '{"method": 3}', "3", "[" * 9999, "no JSON")
    },
}


@pytest.mark.parametrize("contents", FORGED.values(), ids=lambda each: f"{len(each)} arrays")
def test_contents_that_were_not_written_are_refused_whatever_their_checksum(contents, tmp_path):
    with zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, written in contents.items():
            archive.writestr(name, written)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + hashlib.sha256(whole).digest())
    with pytest.raises(ValueError, match=r"dsgd-run\.npz is damaged"):
        checkpoints.Checkpoint(tmp_path, ABOUT)


ABOUT = {"method": "one", "program": "a"}


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("", "checkpoint = ''; expected a folder"),
        ("file", "File exists; expected a folder"),
        ("file/inside", "Not a directory; expected a folder"),
        ("/proc/checkpoint", "No such file or directory; expected a folder"),
    ],
)
def test_an_invalid_folder_is_refused(folder, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        checkpoints.Checkpoint(str(tmp_path / folder) if folder else "", ABOUT)


def open_run(folder: Path, about: dict[str, str] = ABOUT, fails: bool = False) -> None:
    """Opens a run in the folder, for as long as opening takes."""
    with checkpoints.Checkpoint(folder, about):
        if fails:
            raise ZeroDivisionError


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        checkpoints.Checkpoint(tmp_path, ABOUT),
        pytest.raises(ValueError, match="another run is using it"),
    ):
        open_run(tmp_path)
    open_run(tmp_path)
