"""Links to the reference: from types that are named by their defining module, and from code in
backticks that names a public object.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from docutils import nodes
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?", re.DOTALL)


def _thing(name: str) -> Any:
    """Returns the object with this dotted name, or None."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
            for part in parts[cut:]:
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        return found
    return None


def _documented_name(objects: dict[str, Any], name: str) -> str | None:
    """Returns the documented name that ends with `name`, or that of the class with this member.
    Returns None if no name or several names match.
    """
    if name in objects:
        return name
    if "." in name or name[0].isupper():
        # a class also has an entry, an alias, with the name of the module that defines it
        ends = [
            each
            for each, entry in objects.items()
            if each.endswith(f".{name}") and not entry.aliased
        ]
        if len(ends) == 1:
            return ends[0]
    owner, _, member = name.rpartition(".")
    return (
        _documented_name(objects, owner)
        if member and owner.rpartition(".")[2][:1].isupper()
        else None
    )


def _type(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Links a type to its public name, for example `dsgd.base.Algorithm` to `dsgd.Algorithm`."""
    if node.get("refdomain") != "py":
        return None
    objects, target = env.domaindata["py"]["objects"], node["reftarget"]
    wanted = _thing(target)
    same = [
        each
        for each in objects
        if each.rpartition(".")[2] == target.rpartition(".")[2]
        and _thing(each) is wanted
    ]
    if wanted is None or not same:
        return None
    entry = objects[same[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, same[0]
    )


def _literals(app: Any, doctree: nodes.document, docname: str) -> None:
    objects = app.env.domaindata["py"]["objects"]
    for literal in list(doctree.findall(nodes.literal)):
        match = NAME.fullmatch(literal.astext())
        if match is None or isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        name = _documented_name(objects, match[1])
        if name is not None:
            entry = objects[name]
            link = make_refnode(
                app.builder,
                docname,
                entry.docname,
                entry.node_id,
                literal.deepcopy(),
                name,
            )
            literal.parent.replace(literal, link)


def setup(app: Any) -> dict[str, bool]:
    app.connect("missing-reference", _type)
    app.connect("doctree-resolved", _literals)
    return {"parallel_read_safe": True}
