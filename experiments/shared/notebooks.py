"""Notebooks: makes the `.ipynb` from each `experiments/notebooks/*.md`, which is the file to edit.

    python -m experiments.shared.notebooks

The beginning of each file, up to its title, is the same except for its name, and is also written by
this command.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dsgd import records

FOLDER = Path(__file__).parents[1] / "notebooks"
# "owner/name" on GitHub. The project has no public address yet. No account can have this name, so
# that no foreign code is installed.
REPOSITORY = "_owner_/dsgd"
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

[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})

```{{code-cell}} ipython3
:tags: [remove-cell]

import sys

if "google.colab" in sys.modules:
    %pip install -q "dsgd @ git+https://github.com/{repository}"
```

"""


def address(name: str) -> str:
    """Returns the address at which Colab opens the notebook."""
    return f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/experiments/notebooks/{name}.ipynb"


def with_header(text: str, name: str) -> str:
    """Returns the notebook with the common beginning.

    Raises:
        ValueError: if it has no title, a line that starts with "# ".
    """
    _, found, body = text.partition("\n# ")
    if not found:
        raise ValueError(f"{name}.md has no title; expected a line that starts with '# '")
    return f"{_HEADER.format(address=address(name), repository=REPOSITORY)}# {body}"


def converted(text: str) -> str:
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
        for target, content in ((path, text), (path.with_suffix(".ipynb"), converted(text))):
            with records.replacing(target) as temporary:
                temporary.write_text(content)


if __name__ == "__main__":
    main()
