"""Configuration of the site: `sphinx-build -W --keep-going -n -b html docs <folder>`, with the
extra `docs` installed.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "extensions")]
# of the notebooks' kernels, whose outputs have no progress bars or remarks on the cache
os.environ |= {"PYTHONPATH": str(DOCS.parent), "TQDM_DISABLE": "1", "DSGD_CACHE": "off"}

project = "dsgd"
author = "the authors of dsgd"
html_title = "dsgd"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "myst_nb",
    "docstrings",
    "links",
    "objects",
]
exclude_patterns = ["_build", "extensions", "templates"]

# autosummary writes one page for each object of these tables; pages of removed objects are deleted
templates_path = ["templates"]
GENERATED = DOCS / "reference/api/generated"
TABLES = "".join(
    page.read_text()
    for page in DOCS.glob("reference/api/**/*.rst")
    if page.parent != GENERATED
)
for page in GENERATED.glob("*.rst"):
    if page.stem.removesuffix("-function") not in TABLES.split():
        page.unlink()
modules = re.findall(r"py:module:: (\S+)", TABLES)
# innermost first
autosummary_context = {"modules": sorted(modules, key=len, reverse=True)}
# a class and a function whose names differ in case only would be the same file on some systems
autosummary_filename_map = {
    name: f"{name}-function"
    for name in (
        "algorithms.cannikin.learner",
        "algorithms.kimad.budget",
        "dsgd.forecast",
        "dsgd.plan",
        "dsgd.sweep",
        "dsgd.workers.cohort",
        "dsgd.workers.participation",
    )
}
# the tables have full names; the language of cells is known only after they have run
suppress_warnings = ["autosummary.import_cycle", "myst-nb.lexer"]

# Text next to two columns that fold away; formulas and tables scroll by themselves; light
# and dark
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["enlarge.js"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_search_scorer = str(DOCS / "search.js")
pygments_style = "tango"
pygments_dark_style = "github-dark"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "cache"  # notebooks that have not changed are not run again
nb_merge_streams = True  # what a cell prints is one block
nb_output_stderr = "remove"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300  # seconds, of each notebook

autodoc_member_order = "bysource"
autodoc_typehints = "description"  # in each argument's entry, not in the signature
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

OTHERS = (
    "jax jaxlib jaxtyping numpy np pd scipy optax flax networkx nx matplotlib "
    "collections concurrent fractions pathlib"
)
# names of other libraries, whose documentation is not read; names that only type checkers import;
# letters of shapes
nitpick_ignore_regex = [
    ("py:.*", rf"({OTHERS.replace(' ', '|')})\..*"),
    ("py:class", "History|Runs|Weights|Axes|Figure|Path|Seeds|'d'|'bytes'"),
    ("py:class", r"(dsgd\.runs\.results\.)?Settings"),
]


NOTEBOOKS = sorted((DOCS.parent / "experiments" / "notebooks").glob("[0-9]*.md"))


def copy_notebooks() -> None:
    """Copies the notebooks into docs/ before each build, because Sphinx reads only files below its
    own folder.
    """
    there = DOCS / "notebooks"
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir()
    for notebook in NOTEBOOKS:
        (there / notebook.name).write_text(
            notebook.read_text().replace("](../../docs/", "](../")
        )


def link_notebooks(app: Any, page: str, source: list[str]) -> None:
    """Makes links to notebooks lead to their copies, and lists the copies below the page about
    them.
    """
    source[0] = source[0].replace("](../../experiments/notebooks/", "](../notebooks/")
    if page == "tutorial/notebooks" and NOTEBOOKS:
        source[0] += contents(f"/notebooks/{notebook.stem}" for notebook in NOTEBOOKS)


def add_second_pages(app: Any, page: str, source: list[str]) -> None:
    """In the contents, pages in the folder `x/` come below the page `x.md`, in the order of its
    links to them.
    """
    links = re.findall(rf"\]\(({Path(page).name}/[^)#]+)\.md[)#]", source[0])
    if links:
        source[0] += contents(dict.fromkeys(links))


def contents(pages: Iterable[str]) -> str:
    """A hidden toctree of these pages."""
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Any) -> None:
    copy_notebooks()
    app.connect("source-read", link_notebooks)
    app.connect("source-read", add_second_pages)
