"""Programs of either language, ThingTalk or Lispress, as what the samplers look at."""

from __future__ import annotations

from doppel.lispress import Expression, List, Symbol, TypeAnnotation, read, write
from doppel.selection import templates
from doppel.selection.templates import ProgramError
from studies.structural_sampling import thingtalk_rules
from studies.structural_sampling.thingtalk import ThingTalkError, to_lispress

#: A label and the parts below it; a leaf has none.
Tree = tuple[str, tuple["Tree", ...]]


def abstract_query(program: str) -> str:
    """A program without its entities: what CMaxEnt chooses among (Oren et al., 2021, section 3.3).

    ThingTalk: see :func:`~studies.structural_sampling.thingtalk_rules.abstract_entities`. Lispress (what begins with a
    bracket): see :func:`doppel.selection.template`.

    Raises:
        ProgramError: The program is empty or broken; the message never quotes it.
    """
    text = program.strip()
    return templates.template(text) if not text or _is_lispress(text) else thingtalk_rules.abstract_entities(text)


def template(query: str) -> str:
    """The abstract template of an :func:`abstract_query`, by which UAT counts and splits are made.

    ThingTalk: :func:`~studies.structural_sampling.thingtalk_rules.template`, which hides tables, properties and
    operators too. Lispress, whose function names are its structure: the query itself.
    """
    return query if _is_lispress(query) else thingtalk_rules.template(query)


def tree(query: str) -> Tree:
    """The tree of an :func:`abstract_query`.

    ThingTalk becomes Lispress first. A call is a node with the function's name and, if it has them, type arguments; an
    argument with a name is a node ``:name`` above its value. The document shows one tree (Figure 3) and no grammar.

    Raises:
        ProgramError: The program is not in the grammar.
    """
    try:
        return _tree(read(query if _is_lispress(query) else to_lispress(query)))
    except ThingTalkError as error:
        raise ProgramError(str(error)) from None


def names(program: str) -> set[str]:
    """Everything that a program names: tables, properties, enums and operators, or functions and types.

    Raises:
        ProgramError: A Lispress program is broken.
    """
    if not _is_lispress(program.strip()):
        return thingtalk_rules.names(program)
    labels: set[str] = set()
    todo = [tree(abstract_query(program))]
    while todo:
        label, parts = todo.pop()
        labels.add(label)
        todo += parts
    return labels


def _is_lispress(text: str) -> bool:
    return text[:1] in ("(", "^", "#")


def _tree(node: Expression) -> Tree:
    if isinstance(node, TypeAnnotation):
        return (f"^{write(node.type)}", (_tree(node.body),))
    if not isinstance(node, List) or not node.items:
        return (write(node), ())
    head, *rest = node.items
    if not isinstance(head, Symbol | TypeAnnotation):
        return ("()", tuple(map(_tree, node.items)))
    parts: list[Tree] = []
    keyword = ""
    for item in rest:
        if isinstance(item, Symbol) and item.is_keyword:
            keyword = item.name
            continue
        part = _tree(item)
        parts.append((keyword, (part,)) if keyword else part)
        keyword = ""
    return (write(head), tuple(parts))
