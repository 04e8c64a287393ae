"""Pages of single objects are linked from the tables of their modules, and are not in the sidebar,
which would repeat all of them on every page.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.ext.autosummary import autosummary_toc


def _remove_sidebar(app: Any, doctree: nodes.document) -> None:
    for contents in list(doctree.findall(autosummary_toc)):
        contents.parent.remove(contents)


def setup(app: Any) -> dict[str, bool]:
    # before Sphinx collects the contents of the page
    app.connect("doctree-read", _remove_sidebar, priority=400)
    return {"parallel_read_safe": True}
