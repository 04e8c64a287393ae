"""A run on disk: one file, written atomically while the run goes on, from which the same run is
taken up where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import PyTree
from dsgd.engine.loop import Carry
from dsgd.machines import agreement, arrays
from dsgd.records import expanded, replacing
from dsgd.runs import identity
from dsgd.runs.starts import FROM_MODEL

_SECONDS = 30.0  # between two checkpoints: what an interruption costs at most
_FILE, _LOCK = "dsgd-run.npz", "dsgd-run.lock"
_RECORDS = "records/"  # before their names in the file
_DIGEST = hashlib.sha256().digest_size  # bytes at the file's end, which a reader of .npz ignores


class Checkpoint:
    """The newest state and history of one run, in a folder, whose other contents are left alone.

    Use it in a `with` block: until its end no other process may write there.

    Args:
        folder: made where it is not there; one run each.
        about: what the run is, by name (`identity.of`).
        several: whether it is a run of several processes, all of which call all members: process 0
            has the folder, and only it.

    Raises:
        ValueError: a folder that cannot be made or written to, that another process is using, or
            that holds another run or a damaged one.
    """

    def __init__(self, folder: str | Path, about: dict[str, str], several: bool = False) -> None:
        if not str(folder).strip():
            raise ValueError(f"checkpoint = {folder!r}: need a folder; '.' is the current one")
        self._folder = expanded("checkpoint", folder).absolute()
        self._path = self._folder / _FILE
        self._about = about
        self._several = several
        self._lock = filelock.FileLock(self._folder / _LOCK, timeout=0)
        self._found: dict[str, np.ndarray] | None = None
        self._there = bool(self._in_first(self._begin))
        self._written = time.monotonic()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def restore(self, like: Carry) -> tuple[Carry, dict[str, np.ndarray]] | None:
        """The state, placed on devices like `like` (`loop.shapes`), and the records; None where
        nothing is written yet.

        Raises:
            ValueError: its leaves are not this run's.
        """
        if not self._there:
            return None
        found, self._found = self._found or {}, None
        there = json.loads(self._in_first(lambda: json.dumps(list(found))))
        records = {
            name.removeprefix(_RECORDS): self._from_first(found.get(name))
            for name in there
            if name.startswith(_RECORDS)
        }
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        names = [_name(path) for path, _ in paths]
        if set(names) != {name for name in there if not name.startswith(_RECORDS)}:
            raise ValueError(
                f"checkpoint {self._folder}: the state has other leaves than this run's; need "
                "another folder"
            )
        leaves = [
            self._placed(name, self._from_first(found.get(name)), leaf)
            for name, (_, leaf) in zip(names, paths, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves), records

    def due(self) -> bool:
        """Whether the last one is long ago."""
        return time.monotonic() - self._written > _SECONDS

    def save(self, carry: Carry, records: dict[str, np.ndarray]) -> None:
        """Writes what there is, in the place of the one before.

        Raises:
            OSError: it cannot be written, on a full disk say; the one before is as it was.
        """
        kept = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
            whole = arrays.on_host(leaf)
            if self._mine:
                kept[_name(path)] = whole
        kept |= {f"{_RECORDS}{name}": values for name, values in records.items()}

        def write() -> str:
            try:
                with replacing(self._path) as temporary, temporary.open("r+b") as file:
                    _write(file, self._about, kept)
            except OSError as error:
                reason = error.strerror or error
                raise OSError(
                    f"checkpoint {self._folder} cannot be written ({reason}); the one before is "
                    "as it was"
                ) from error
            return ""

        self._in_first(write)
        self._written = time.monotonic()

    @property
    def _mine(self) -> bool:
        """Whether the folder is this process's."""
        return not self._several or agreement.index() == 0

    def _in_first(self, act: Callable[[], str]) -> str:
        """What it gives in the process that has the folder, and what it raises, in all."""
        return agreement.first(act) if self._several else act()

    def _from_first(self, array: np.ndarray | None) -> np.ndarray:
        if self._several:
            return arrays.from_first(array)
        assert array is not None
        return array

    def _begin(self) -> str:
        """Takes the folder, and reads what is there; gives a text where there is something."""
        self._open()
        try:
            self._leave_no_halves()
            self._found = self._read()
        except BaseException:
            self._lock.release()
            raise
        return "" if self._found is None else "there"

    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"checkpoint {self._folder}: another run is using it; need another folder, or its "
                "end"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(
                f"checkpoint {self._folder}: {reason}; need a folder that can be written to"
            ) from error

    def _leave_no_halves(self) -> None:
        """What a process that was killed while it wrote has left."""
        for half in self._folder.glob(f".{self._path.stem}-????????{self._path.suffix}"):
            half.unlink()

    def _read(self) -> dict[str, np.ndarray] | None:
        if not self._path.exists():
            return None
        try:
            with self._path.open("rb") as file:
                there, found = _contents(file)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"checkpoint {self._path} is damaged ({error}); need it as it was written, or "
                "without it a run from the beginning"
            ) from error
        before, now = there.get("workers"), self._about.get("workers")
        if before != now:
            raise ValueError(
                f"checkpoint {self._folder} holds a run of {before} workers, this one has {now}; "
                f"need another folder, and {FROM_MODEL}"
            )
        if other := identity.differences(there, self._about):
            raise ValueError(
                f"checkpoint {self._folder} holds another run ({other}); need another folder"
            )
        return found

    def _placed(self, name: str, array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
        """On devices like `like`, of which it needs shape and type."""
        keys = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
        kept = jax.eval_shape(jax.random.key_data, like) if keys else like
        # types that numpy does not have, bfloat16 say, are kept as their bytes
        if array.dtype.kind == "V":
            array = array.view(kept.dtype)
        if array.shape != kept.shape or array.dtype != kept.dtype:
            there, here = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (array, kept))
            raise ValueError(
                f"checkpoint {self._folder}: {name} is {there}, this run's {here}; need another "
                "folder"
            )
        if keys:
            impl = jax.random.key_impl(jnp.zeros((), like.dtype))
            return arrays.put(
                jax.random.wrap_key_data(jnp.asarray(array), impl=impl), like.sharding
            )
        return arrays.put(array, like.sharding)  # a copy: it will be donated


def _name(path: PyTree) -> str:
    return f"carry{jax.tree_util.keystr(path)}"


def _write(file: BinaryIO, about: dict[str, str], kept: dict[str, np.ndarray]) -> None:
    """Arrays by name as an .npz, then the SHA-256 of all that."""
    np.savez(file, about=np.array(json.dumps(about)), allow_pickle=False, **kept)
    digest = _digest(file, file.seek(0, os.SEEK_END))
    file.write(digest)
    file.flush()
    os.fsync(file.fileno())


def _contents(file: BinaryIO) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """What `_write` wrote.

    Raises:
        ValueError: it is not that.
    """
    if _digest(file, file.seek(0, os.SEEK_END) - _DIGEST) != file.read():
        raise ValueError("its checksum is another")
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        kept = dict(saved)
    return json.loads(str(kept.pop("about"))), kept


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the first `size` bytes, after which the file then stands."""
    sha = hashlib.sha256()
    file.seek(0)
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        sha.update(piece)
        size -= len(piece)
    return sha.digest()
