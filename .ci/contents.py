"""Compares the sdist and the wheel in a folder with the files in git; missing and additional files
are errors.

    python .ci/contents.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGES = ("algorithms", "dsgd", "experiments", "theory_checks", "topologies")
NOT_INSTALLED = ("experiments/README.md", "experiments/notebooks/")
MADE = ("PKG-INFO", "setup.cfg", "dsgd.egg-info/")  # files that setuptools adds to an sdist


def main(folder: Path) -> None:
    tracked = set(
        subprocess.run(
            ["git", "ls-files", "-z"], capture_output=True, text=True, check=True
        ).stdout.split("\0")
    ) - {""}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        inside = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    require_same("sdist", {name for name in inside if not name.startswith(MADE)}, tracked)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    installed = {
        name
        for name in tracked
        if name.split("/")[0] in PACKAGES and not name.startswith(NOT_INSTALLED)
    }
    require_same("wheel", inside, installed)


def require_same(which: str, inside: set[str], wanted: set[str]) -> None:
    """Raises SystemExit with the names that differ."""
    if inside != wanted:
        sys.exit(f"{which}: missing {sorted(wanted - inside)}, extra {sorted(inside - wanted)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
