"""Trees with every construct of the parser's language, and what two graphs must share to be equal."""

from __future__ import annotations

from collections import Counter

from doppel.lispress import Graph
from doppel.lispress.graph import is_type_label
from doppel.parsing import Actions, ActionVocabulary, ParserMachine
from doppel.parsing.build_order import build_steps
from doppel.text.words import pieces_of

TREES = [
    '(Yield (Event.start (^(Event) singleton (QueryEventResponse.results x "lunch with"))))',
    '^Unit (^(DateTime Time) Yield :output ^DateTime (PersonName.apply :name ^String "Joey" :age ^Number 2L))',
    "(let (x0 (Now) x1 ^Date (DateTime.date x0)) (f x0 x1 (g x1 2L) x0))",
    "(let (x0 (a)) (f (g (h) x0) (h) x0 :k x0))",
    '(plan (revise (^(Unit) Path.apply "Create") (lambda (^Unit x0) (f true x0 x0))))',
    "(lambda (^(Option (Constraint ConfirmStatus)) x0 x1 ^Unit x2) (Some (?= x1 (g x2))))",
    "(lambda (x0) x0)",
    "(let (x0 (a)) (f (lambda (x1) (g x1 x0)) (lambda (x1 x2) x0) (lambda (x1 ^Unit x2) x1)))",
    "(let (x0 (a)) (lambda (x1) (let (x2 (g x1)) (f x2 (lambda (x3) (f x3 x2 x0)) x2))))",
    "(do (f 2L) (let (x0 (h)) (f x0 x0)) true)",
    r'(f "say \"hi\" \\ (twice)\n" "" 2L 1.50 -3 1e-3 ^(List (Pair A B)) true)',
    r"(a\ b \( - (:start (g)))",
    "(f :typeConstraint (^(A) g) :type-arguments (g) :root (h) :argument (^((List A)) g))",
    "(g x)",
    '"only a string"',
]

UTTERANCE = 'Lunch with Joey, twice: say "hi" \\ é'


def vocabulary() -> ActionVocabulary:
    """The vocabulary of `TREES`, in which every edge may also be re-entrant."""
    built = ActionVocabulary.build(TREES, min_piece_count=1)
    fields = built.to_dict()
    fields["left_arcs"] = [label for label in built.right_arcs[1:] if not is_type_label(label)]
    return ActionVocabulary.from_dict(fields)


def decode(actions: Actions, utterance: str, v: ActionVocabulary) -> Graph:
    """The graph that a finished action sequence builds: the inverse of ``encode``."""
    source = pieces_of(utterance)
    machine = ParserMachine(v, len(source), max_actions=len(actions.ids) + 1)
    for action, pointer, copy in list(zip(*actions, strict=True))[1:]:
        machine.apply(action, pointer, copy)
    return machine.graph(source)


def describe(action: int, v: ActionVocabulary) -> str:
    """An action in words, such as ``-RA-:arg0``."""
    kinds = {"": v.nodes, "-RA-": v.right_arcs, "-LA-": v.left_arcs}
    names = ["<pad>", "<s>", "</s>", "<str>", "</str>", "<copy>"]
    names += [prefix + label for prefix, labels in kinds.items() for label in labels]
    names += [*map(repr, v.string_pieces), *(f"<0x{byte:02x}>" for byte in range(256))]
    return names[action]


def labels_and_triples(graph: Graph) -> tuple[Counter[str], Counter[tuple[str, str, str]]]:
    """What makes two graphs equal in the sense of the parser's metrics."""
    triples = Counter((graph.nodes[source], label, graph.nodes[target]) for source, label, target in graph.edges)
    return Counter(graph.nodes), triples


def canonical(graph: Graph) -> object:
    """A form that two graphs share exactly if they are isomorphic with their roots in the same order."""
    edges = tuple(sorted(graph.edges, key=lambda edge: edge[1]))
    steps = build_steps(Graph(graph.nodes, edges))
    assert steps is not None
    return [(step.label, sorted(step.right), sorted(step.left)) for step in steps]
