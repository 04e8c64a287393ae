"""Pythons for the versions of `benchmark peers` that cannot share ours: where they are, and how
they are made.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import platformdirs

LIMIT = 1200  # seconds for one step of making an environment


class Peer(NamedTuple):
    """What a version needs.

    Args:
        module: that it imports.
        requirements: what pip installs.
        python: the oldest Python that will do.
    """

    module: str
    requirements: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


PEERS = {
    "torch": Peer("torch", ("torch", "numpy")),
    "decent-bench": Peer("decent_bench", ("decent-bench>=0.3,<0.4",), (3, 13)),
    # it calls what newer JAX has not
    "fedjax": Peer(
        "fedjax", ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12")
    ),
}


class Unavailable(Exception):
    """A peer cannot be had here; in words, why."""


def default_folder() -> Path:
    """Where environments are, unless told otherwise."""
    return platformdirs.user_cache_path("dsgd") / "peers"


def found(name: str, folder: Path) -> Path | None:
    """The Python that has the peer: this one, or that of the environment in the folder; None:
    neither.
    """
    if importlib.util.find_spec(PEERS[name].module):
        return Path(sys.executable)
    there = folder / name / "bin" / "python"
    return there if (folder / name / "complete").exists() and there.exists() else None


def made(name: str, folder: Path) -> Path:
    """The Python that has the peer; where there is none, it is made in the folder, with pip, which
    follows its usual settings.

    Raises:
        Unavailable: no such Python, or pip could not install it.
    """
    if there := found(name, folder):
        return there
    peer, place = PEERS[name], folder / name
    python = place / "bin" / "python"
    if uv := shutil.which("uv"):
        wanted = ".".join(map(str, max(peer.python, sys.version_info[:2])))
        steps = [[uv, "venv", "--quiet", "--clear", "--seed", "--python", wanted, str(place)]]
    else:
        steps = [[_python(name), "-m", "venv", "--clear", str(place)]]
    steps.append(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *peer.requirements,
        ]
    )
    for step in steps:
        _do(name, step)
    (place / "complete").touch()
    return python


def _python(name: str) -> str:
    """One that is new enough: ours, or one on the path."""
    oldest = PEERS[name].python
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + 5):
        there = shutil.which(f"python{oldest[0]}.{minor}")
        # pyenv has a name on the path for each of its Pythons, also for those that are not to be
        # used
        if (
            there
            and subprocess.run([there, "--version"], capture_output=True, check=False).returncode
            == 0
        ):
            return there
    wanted = ".".join(map(str, oldest))
    raise Unavailable(
        f"{name} needs Python {wanted}, which is not on the path (python{wanted}; or uv, which "
        "fetches one)"
    )


def _do(name: str, step: list[str]) -> None:
    """One step; its last line says why it failed."""
    with tempfile.TemporaryFile("w+") as said:
        try:
            status = subprocess.run(
                step, stdout=said, stderr=said, timeout=LIMIT, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{name}: {' '.join(step)}: {error}") from error
        said.seek(0)
        lines = said.read().split("\n")
    if status:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        raise Unavailable(f"{name}: {' '.join(step)} failed: {last}")


def path_for(folder: Path) -> Path:
    """A folder for another Python's path, in which it finds this package's versions, and nothing
    else of our Python's.

    Args:
        folder: an empty one.
    """
    (folder / "experiments").symlink_to(Path(__file__).parents[1], target_is_directory=True)
    return folder
