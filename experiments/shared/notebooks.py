"""Notebooks: makes the `.ipynb` from each `experiments/notebooks/*.md`, which is the file to edit.

    python -m experiments.shared.notebooks

This command also writes the beginning of each file, up to its title, which depends only on the name
of the file and on `REPOSITORY`. When the project has a public address, set `REPOSITORY` and run it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dsgd import records

FOLDER = Path(__file__).parents[1] / "notebooks"
# The public address of the project, "owner/name" on GitHub. With an address, each notebook begins
# with a badge that opens it in Colab, and its first cell installs from that address. With None it
# has no badge, and its first cell installs a wheel that the reader uploads.
REPOSITORY: str | None = None
_HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

{badge}```{{code-cell}} ipython3
:tags: [remove-cell]

import sys

SOURCE = "{source}"  # {advice}
if "google.colab" in sys.modules:
    %pip install -q {{SOURCE}}
```

"""
_BADGE = """\
[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})

"""


def address(name: str, repository: str) -> str:
    """Returns the address at which Colab opens the notebook."""
    return f"https://colab.research.google.com/github/{repository}/blob/main/experiments/notebooks/{name}.ipynb"


def with_header(text: str, name: str, repository: str | None = REPOSITORY) -> str:
    """Returns the notebook with the common beginning.

    Args:
        text: the notebook; everything before its title is replaced.
        name: its file name without a suffix.
        repository: see `REPOSITORY`.

    Raises:
        ValueError: if it has no title, a line that starts with "# ".
    """
    _, found, body = text.partition("\n# ")
    if not found:
        raise ValueError(f"{name}.md has no title; expected a line that starts with '# '")
    if repository is None:
        badge, source = "", "dsgd-*.whl"
        advice = "Colab: upload the wheel first; or put a path or URL here"
    else:
        badge = _BADGE.format(address=address(name, repository))
        source = f"git+https://github.com/{repository}"
        advice = "Colab: or a path, or another URL"
    return f"{_HEADER.format(badge=badge, source=source, advice=advice)}# {body}"


def convert(text: str) -> str:
    """Returns a MyST notebook as JSON, without outputs. Cell ids are hashes of the contents, so
    that only changed cells differ.
    """
    import jupytext  # noqa: PLC0415 (of the extra "notebooks")

    notebook = jupytext.reads(text, fmt="md:myst")
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: set[str] = set()
    for cell in notebook.cells:
        cell["id"] = next(
            name for again in range(len(notebook.cells)) if (name := _id(cell, again)) not in seen
        )
        seen.add(cell["id"])
        cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _id(cell: dict, again: int) -> str:
    return hashlib.sha256(f"{again} {cell['cell_type']} {cell['source']}".encode()).hexdigest()[:8]


def main() -> None:
    for path in sorted(FOLDER.glob("*.md")):
        text = with_header(path.read_text(), path.stem)
        for target, content in ((path, text), (path.with_suffix(".ipynb"), convert(text))):
            with records.replacing(target) as temporary:
                temporary.write_text(content)


if __name__ == "__main__":
    main()
