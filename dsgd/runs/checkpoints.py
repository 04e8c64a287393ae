"""Checkpoints: one file per run, replaced atomically during the run, from which the same run
resumes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import PyTree
from dsgd.engine.plan import Carry
from dsgd.machines import agreement, arrays
from dsgd.records import replacing, user_path
from dsgd.runs import fingerprint
from dsgd.runs.starts import FROM_MODEL

_SECONDS = 30.0  # between two checkpoints: the most that a crash can lose
_FILE, _LOCK = "dsgd-run.npz", "dsgd-run.lock"
_RECORDS, _STORE = "records/", "store/"  # prefixes of names in the file
_DIGEST = hashlib.sha256().digest_size  # bytes at the end of the file, which .npz readers ignore


class Checkpoint:
    """The latest state and history of one run, in a folder. Other files in the folder are left
    alone.

    Use it as a context manager: within the `with` block no other process may write to the folder.

    Args:
        folder: created if it does not exist; each run needs its own.
        about: the fingerprint of the run, by name (`fingerprint.make`).
        several: whether the run has several processes. All of them then call all members, but only
            process 0 accesses the folder.

    Raises:
        ValueError: if the folder cannot be created or written to, is in use by another process, or
            contains another run or a damaged checkpoint.
    """

    def __init__(self, folder: str | Path, about: dict[str, str], several: bool = False) -> None:
        if not str(folder).strip():
            raise ValueError(f"checkpoint = {folder!r}; expected a folder; '.' is the current one")
        self._folder = user_path("checkpoint", folder).absolute()
        self._path = self._folder / _FILE
        self._about = about
        self._several = several
        self._lock = filelock.FileLock(self._folder / _LOCK, timeout=0)
        self._found: dict[str, np.ndarray] | None = None
        self._exists = bool(self._call_on_process_zero(self._begin))
        self._written = time.monotonic()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def restore(self, like: Carry) -> tuple[Carry, dict[str, np.ndarray]] | None:
        """Returns the state, on devices, and the records; None if there is no checkpoint yet.

        Args:
            like: shapes and shardings of the state (`loop.shapes`).

        Raises:
            ValueError: if the leaves of the stored state differ from those of this run.
        """
        if not self._exists:
            return None
        found, self._found = self._found or {}, None
        stored = json.loads(self._call_on_process_zero(lambda: json.dumps(list(found))))
        records = {
            name.removeprefix(_RECORDS): self._broadcast(found.get(name))
            for name in stored
            if name.startswith(_RECORDS)
        }
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        names = [_name(path) for path, _ in paths]
        if set(names) != {name for name in stored if not name.startswith(_RECORDS)}:
            raise ValueError(
                f"checkpoint {self._folder}: the state has other leaves than this run; expected "
                "the same run; pass another folder"
            )
        leaves = [
            self._place(name, self._broadcast(found.get(name)), leaf)
            for name, (_, leaf) in zip(names, paths, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves), records

    def pieces(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the contents of stores, as they were passed to `save`."""
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if member.filename.startswith(_STORE):
                    name = member.filename.removeprefix(_STORE).removesuffix(".npy")
                    yield name, _array(archive, member, self._path.stat().st_size)

    def due(self) -> bool:
        """Whether the last checkpoint was written more than 30 seconds ago."""
        return time.monotonic() - self._written > _SECONDS

    def save(
        self,
        carry: Carry,
        records: dict[str, np.ndarray],
        store: Iterable[tuple[str, np.ndarray]] = (),
    ) -> None:
        """Writes the state, the records and the contents of stores, named arrays that need not fit
        in memory, and replaces the previous checkpoint.

        Raises:
            OSError: if the file cannot be written, for example on a full disk. The previous
                checkpoint, if there is one, stays intact.
        """
        kept = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
            whole = arrays.fetch(leaf)
            if self._owns_folder:
                kept[_name(path)] = whole
        kept |= {f"{_RECORDS}{name}": values for name, values in records.items()}

        def write() -> str:
            try:
                with replacing(self._path) as temporary, temporary.open("r+b") as file:
                    more = ((f"{_STORE}{name}", array) for name, array in store)
                    _write(file, self._about, itertools.chain(kept.items(), more))
            except OSError as error:
                reason = error.strerror or error
                before = (
                    "the previous one is intact" if self._path.exists() else "there is none yet"
                )
                raise OSError(
                    f"checkpoint {self._folder} cannot be written ({reason}); {before}"
                ) from error
            return ""

        self._call_on_process_zero(write)
        self._written = time.monotonic()

    @property
    def _owns_folder(self) -> bool:
        """Whether this process accesses the folder."""
        return not self._several or agreement.process_index() == 0

    def _call_on_process_zero(self, act: Callable[[], str]) -> str:
        """Calls `act` in the process that accesses the folder, and returns its result, or raises
        its error, in every process.
        """
        return agreement.call_on_process_zero(act) if self._several else act()

    def _broadcast(self, array: np.ndarray | None) -> np.ndarray:
        if self._several:
            return arrays.from_first(array)
        assert array is not None
        return array

    def _begin(self) -> str:
        """Locks the folder and reads the checkpoint. Returns a non-empty text if there is one."""
        self._open()
        try:
            self._delete_partial_files()
            self._found = self._read()
        except BaseException:
            self._lock.release()
            raise
        return "" if self._found is None else "found"

    def _open(self) -> None:
        """Creates the folder if it does not exist, and locks it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"checkpoint {self._folder}: another run is using it; expected an unused folder; "
                "pass another one, or wait until that run ends"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(
                f"checkpoint {self._folder}: {reason}; expected a folder that can be written to"
            ) from error

    def _delete_partial_files(self) -> None:
        """Deletes temporary files of a process that was killed while it wrote a checkpoint."""
        for partial_file in self._folder.glob(f".{self._path.stem}-????????{self._path.suffix}"):
            partial_file.unlink()

    def _read(self) -> dict[str, np.ndarray] | None:
        """Returns the arrays of the checkpoint of this run; None if there is none."""
        if not self._path.exists():
            return None
        try:
            with self._path.open("rb") as file:
                about, found = _contents(file)
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"checkpoint {self._path} is damaged ({error}); expected the file as it was "
                "written; restore it, or delete it to start from the beginning"
            ) from error
        before, now = about.get("workers"), self._about.get("workers")
        if before != now:
            raise ValueError(
                f"checkpoint {self._folder} contains a run of {before} workers; expected {now}; "
                f"pass another folder, and {FROM_MODEL}"
            )
        if other := fingerprint.differences(about, self._about):
            raise ValueError(
                f"checkpoint {self._folder} contains another run ({other}); expected the same run; "
                "pass another folder"
            )
        return found

    def _place(self, name: str, array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
        """Places an array on devices according to `like`, with the same shape and type.

        Raises:
            ValueError: if its shape or type differs from that of `like`.
        """
        keys = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
        kept = jax.eval_shape(jax.random.key_data, like) if keys else like
        # Types that numpy does not have, such as bfloat16, are stored as bytes.
        if array.dtype.kind == "V":
            array = array.view(kept.dtype)
        if array.shape != kept.shape or array.dtype != kept.dtype:
            given, expected = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (array, kept))
            raise ValueError(
                f"checkpoint {self._folder}: {name} is {given}; expected {expected}, as in this "
                "run; pass another folder"
            )
        if keys:
            impl = jax.random.key_impl(jnp.zeros((), like.dtype))
            return arrays.put(
                jax.random.wrap_key_data(jnp.asarray(array), impl=impl), like.sharding
            )
        return arrays.put(array, like.sharding)  # a copy, because it will be donated


def _name(path: PyTree) -> str:
    return f"carry{jax.tree_util.keystr(path)}"


def _write(file: BinaryIO, about: dict[str, str], kept: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes named arrays as an .npz, followed by the SHA-256 digest of all its bytes."""
    first = ("about", np.array(json.dumps(about)))
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in itertools.chain([first], kept):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    digest = _digest(file, file.seek(0, os.SEEK_END))
    file.write(digest)
    file.flush()
    os.fsync(file.fileno())


def _contents(file: BinaryIO) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Reads what `_write` wrote.

    Raises:
        ValueError: if the digest does not match, or `_write` did not write the contents.
        KeyError, EOFError, RuntimeError, zipfile.BadZipFile: if they are no such archive.
    """
    size = file.seek(0, os.SEEK_END)
    if _digest(file, size - _DIGEST) != file.read():
        raise ValueError("checksum mismatch")
    with zipfile.ZipFile(file) as archive:
        kept = {
            member.filename.removesuffix(".npy"): _array(archive, member, size)
            for member in archive.infolist()
            if not member.filename.startswith(_STORE)
        }
    about = json.loads(str(kept.pop("about")))
    if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
        raise ValueError("its fingerprint is not a text for each name")
    return about, kept


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> np.ndarray:
    """Reads an array, for which no more memory is allocated than the `size` bytes of the file."""
    with archive.open(member) as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        expected = file.tell() + math.prod(shape) * dtype.itemsize
    if member.file_size != expected or expected > size:
        raise ValueError(f"{member.filename} has {member.file_size} bytes instead of {expected}")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _digest(file: BinaryIO, size: int) -> bytes:
    """Returns the SHA-256 digest of the first `size` bytes, and leaves the file positioned after
    them.
    """
    sha = hashlib.sha256()
    file.seek(0)
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        sha.update(piece)
        size -= len(piece)
    return sha.digest()
