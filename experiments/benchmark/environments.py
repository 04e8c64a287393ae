"""Python environments for versions of `benchmark peers` and `benchmark clients` that cannot share
ours: their location and creation.
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

LIMIT = 1200  # seconds for one step of creating an environment


class Peer(NamedTuple):
    """Requirements of a version.

    Args:
        module: module that it imports.
        requirements: arguments of pip install.
        python: oldest Python version that it supports.
    """

    module: str
    requirements: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


PEERS = {
    "torch": Peer("torch", ("torch", "numpy")),
    "decent-bench": Peer("decent_bench", ("decent-bench>=0.3,<0.4",), (3, 13)),
    # it calls functions that newer versions of JAX have removed
    "fedjax": Peer(
        "fedjax", ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12")
    ),
    "pfl": Peer("pfl", ("pfl[pytorch]>=0.6,<0.7", "numpy")),
    "flower": Peer("flwr", ("flwr[simulation]>=1.42,<2", "torch", "numpy")),
}


class Unavailable(Exception):
    """A library is not available here; the message states the reason."""


def default_folder() -> Path:
    """Returns the default folder of environments."""
    return platformdirs.user_cache_path("dsgd") / "peers"


def find(name: str, folder: Path) -> Path | None:
    """Returns the Python that has the library: this one, or that of the environment in the folder;
    None if there is none.
    """
    if importlib.util.find_spec(PEERS[name].module):
        return Path(sys.executable)
    there = folder / name / "bin" / "python"
    return there if (folder / name / "complete").exists() and there.exists() else None


def make(name: str, folder: Path) -> Path:
    """Returns the Python that has the library; if there is none, creates an environment in the
    folder with pip, which uses its usual settings.

    Raises:
        Unavailable: if there is no suitable Python, or pip fails.
    """
    if there := find(name, folder):
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
    """Returns a Python that is new enough: ours, or one on the path."""
    oldest = PEERS[name].python
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + 5):
        there = shutil.which(f"python{oldest[0]}.{minor}")
        # pyenv has a name on the path for each of its Pythons, including those that are not active
        if (
            there
            and subprocess.run([there, "--version"], capture_output=True, check=False).returncode
            == 0
        ):
            return there
    wanted = ".".join(map(str, oldest))
    raise Unavailable(
        f"{name} needs Python {wanted}, which is not on the path (python{wanted}; or uv, which "
        "downloads one)"
    )


def _do(name: str, step: list[str]) -> None:
    """Runs one step; its last line of output explains a failure."""
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
    """Returns a folder for another Python's path, in which it finds this package's versions and
    nothing else of our Python.

    Args:
        folder: an empty folder.
    """
    (folder / "experiments").symlink_to(Path(__file__).parents[1], target_is_directory=True)
    return folder
