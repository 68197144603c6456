"""Functions that a stranger understands at first reading: their size, packed forms, and names.

A room is a folder of the code. Every function of it keeps the bounds, but for those in `EXCEPTED`.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
ROOTS = ("hapvr", "assets", "pipelines", "bench")
TESTS = "tests"

MAX_BRANCHES = 12
MAX_STATEMENTS = 40
MAX_PARAMETERS = 7
MAX_NESTING = 3
MAX_LINES = 350
"""Of a file, but for blank ones: paragraphs cost nothing."""
PARAGRAPH_LINES = 3
"""A block of so many lines ends a paragraph, so a blank line follows it."""

VAGUE_NAMES = {"one", "other", "found", "said", "some", "made", "known"}
"""Of nothing in particular, so they stand in short comprehensions alone."""

EXCEPTED: dict[str, str] = {}
"""Functions that may be larger, at most ten, each with the reason. `path:name`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BLOCKS = (*LOOPS, ast.If, ast.Try, ast.TryStar, ast.Match)
WITHS = (ast.With, ast.AsyncWith)
LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def inner_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function but for those of functions and classes within it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from inner_nodes(child)


def branches(function: Function) -> int:
    """Ways that part: statements, ternaries, `and` and `or`, and the clauses of comprehensions."""
    total = 0
    for node in inner_nodes(function):
        if isinstance(node, (*LOOPS, ast.If, ast.IfExp, ast.ExceptHandler, ast.match_case)):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)

    return total


def statements(function: Function) -> int:
    """Statements, those of functions within it included; a docstring is none."""
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return count - (ast.get_docstring(function, clean=False) is not None)


def num_parameters(function: Function) -> int:
    """Parameters but for `self` and `cls`."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def nesting(node: ast.AST, depth: int = 0) -> int:
    """How deep blocks stand within each other; `elif` is as deep as its `if`."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef):
                continue
            is_elif = isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If)
            deeper = isinstance(child, BLOCKS) and not (is_elif and len(node.orelse) == 1)
            deepest = max(deepest, nesting(child, depth + deeper))

    return deepest


def is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.Tuple | ast.List | ast.Set) and not node.elts


def assigns_several_values(node: ast.AST) -> bool:
    """`a, b = 1, 2`, or of a comprehension over several; to swap is another matter, and so is
    `(a,) = …`, which takes the only one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple | ast.List):
        return False
    if len(node.targets[0].elts) == 1:
        return False
    if isinstance(node.value, COMPREHENSIONS):
        return True
    if not isinstance(node.value, ast.Tuple | ast.List):
        return False
    taken = sorted(map(ast.unparse, node.targets[0].elts))
    given = sorted(map(ast.unparse, node.value.elts))
    return taken != given


def unpacks_a_display(node: ast.AST) -> bool:
    """`*(…)`, `*[…]` or `**{…}` within another display or a call."""
    within = (*DISPLAYS, *COMPREHENSIONS, ast.IfExp)
    if isinstance(node, ast.Starred):
        return isinstance(node.value, within)
    if isinstance(node, ast.Dict):
        merged = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
        return any(isinstance(value, within) for value in merged)

    return isinstance(node, ast.keyword) and node.arg is None and isinstance(node.value, within)


def merges_displays(node: ast.AST) -> bool:
    """`{…} | {…}` of two displays, which are one."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    return isinstance(node.left, ast.Dict) and isinstance(node.right, ast.Dict)


def multiplies_text_by_a_flag(node: ast.AST) -> bool:
    """`"text" * flag`; a line of dashes is `"-" * width`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    for side, factor in ((node.left, node.right), (node.right, node.left)):
        is_text = isinstance(side, ast.JoinedStr)
        if isinstance(side, ast.Constant) and isinstance(side.value, str):
            is_text = len(side.value) > 1
        if is_text and not isinstance(factor, ast.Constant):
            return True

    return False


def adds_one_or_nothing(node: ast.AST) -> bool:
    """`x += [a] if c else []`, also as a sum."""
    if isinstance(node, ast.AugAssign):
        parts = [node.value]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    else:
        return False

    chosen = [part for part in parts if isinstance(part, ast.IfExp)]
    return any(is_empty(part.body) or is_empty(part.orelse) for part in chosen)


def slices_by_a_condition(node: ast.AST) -> bool:
    """`x[:: -1 if back else 1]`."""
    if not isinstance(node, ast.Slice):
        return False
    return any(isinstance(part, ast.IfExp) for part in (node.lower, node.upper, node.step))


def names_within_a_comprehension(node: ast.AST) -> bool:
    """A walrus in a comprehension."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    return any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node))


def chains_ternaries(node: ast.AST) -> bool:
    """`a if b else c if d else e`."""
    if not isinstance(node, ast.IfExp):
        return False
    return isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp)


PACKED: tuple[Callable[[ast.AST], bool], ...] = (
    assigns_several_values,
    unpacks_a_display,
    merges_displays,
    multiplies_text_by_a_flag,
    adds_one_or_nothing,
    slices_by_a_condition,
    names_within_a_comprehension,
    chains_ternaries,
)


def is_guard(statement: ast.stmt) -> bool:
    """An `if` that leaves, and does little before it."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    return len(statement.body) <= 2 and isinstance(statement.body[-1], LEAVES)


def ends_a_paragraph(statement: ast.stmt, following: ast.stmt, block: list[ast.stmt]) -> bool:
    """Whether a blank line is due between a statement of a block and the next one.

    Guards stand together, and so does a short block with the `return` of what it made.
    """
    if not isinstance(statement, (*BLOCKS, *WITHS)):
        return False
    num_lines = (statement.end_lineno or 0) - statement.lineno + 1
    if num_lines < PARAGRAPH_LINES or (is_guard(statement) and is_guard(following)):
        return False
    is_small = len(block) <= 3 and num_lines <= PARAGRAPH_LINES + 1
    return not (is_small and isinstance(following, ast.Return) and following is block[-1])


def crowded_lines(function: Function, lines: list[str]) -> Iterator[int]:
    """The numbers of lines that a blank line should follow."""
    for node in (function, *inner_nodes(function)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):  # a ternary's part
                continue
            for statement, following in pairwise(block):
                last = statement.end_lineno or 0
                if ends_a_paragraph(statement, following, block) and lines[last].strip():
                    yield last


def is_called_by_its_options(path: str, function: Function) -> bool:
    """Whether parameters are the options of a verb, or what an endpoint is asked with."""
    if path.startswith("hapvr/commands/"):
        return True
    return path.startswith("hapvr/serving/") and bool(function.decorator_list)


def excess(path: str, function: Function) -> Iterator[tuple[str, str]]:
    """Each rule whose bound a function exceeds, with what it has."""
    measures = {
        "branches": (branches(function), MAX_BRANCHES),
        "statements": (statements(function), MAX_STATEMENTS),
        "parameters": (num_parameters(function), MAX_PARAMETERS),
        "nesting": (nesting(function), MAX_NESTING),
    }
    if is_called_by_its_options(path, function):
        del measures["parameters"]
    for rule, (value, bound) in measures.items():
        if value > bound:
            yield rule, f"{function.name} has {value}, at most {bound}"


def bound_names(function: Function) -> Iterator[ast.Name]:
    """The names that statements of a function bind, those of comprehensions left out."""
    of_comprehensions = {
        id(name)
        for node in inner_nodes(function)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    for node in inner_nodes(function):
        if not isinstance(node, ast.Name) or id(node) in of_comprehensions:
            continue
        if isinstance(node.ctx, ast.Store):
            yield node


def findings(path: str, text: str) -> Iterator[tuple[str, str]]:
    """What of a file is beyond the rules: the rule, and where and what."""
    tree = ast.parse(text)
    lines = text.splitlines()
    num_lines = sum(bool(line.strip()) for line in lines)
    if num_lines > MAX_LINES:
        yield "lines", f"{path} has {num_lines} lines, at most {MAX_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, Function) and f"{path}:{node.name}" not in EXCEPTED:
            for rule, what in excess(path, node):
                yield rule, f"{path}:{node.lineno} {what}"
            for number in crowded_lines(node, lines):
                yield "paragraphs", f"{path}:{number} is the last line of a block"
            for name in bound_names(node):
                if name.id in VAGUE_NAMES:
                    yield "names", f"{path}:{name.lineno} {name.id} says little"

        for form in PACKED:
            if form(node):
                line = getattr(node, "lineno", 0)
                yield "packed", f"{path}:{line} {form.__name__.replace('_', ' ')}"


def room_of(path: Path) -> str:
    """`hapvr/losses`, `hapvr/chain`, `assets`."""
    parts = path.parts
    return parts[0] if parts[0] != "hapvr" else "/".join(parts[:2])


def files_of_rooms() -> dict[str, list[Path]]:
    """The files of each room, relative to the checkout."""
    of_rooms: dict[str, list[Path]] = defaultdict(list)
    for root in ROOTS:
        for file in sorted((CHECKOUT / root).rglob("*.py")):
            path = file.relative_to(CHECKOUT)
            of_rooms[room_of(path)].append(path)

    return of_rooms


ROOMS = files_of_rooms()


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_keeps_the_rules(room: str) -> None:
    beyond = []
    for path in ROOMS[room]:
        text = (CHECKOUT / path).read_text(encoding="utf-8")
        beyond += [finding for _, finding in findings(path.as_posix(), text)]

    assert beyond == []


def test_tests_have_no_packed_forms() -> None:
    """But for displays that are unpacked into calls and cases."""
    packed = []
    for file in sorted((CHECKOUT / TESTS).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            packed += [
                f"{file.name}:{getattr(node, 'lineno', 0)} {form.__name__}"
                for form in PACKED
                if form is not unpacks_a_display and form(node)
            ]

    assert packed == []


def test_names_of_tests_say_what_they_hold() -> None:
    vague = []
    for file in sorted((CHECKOUT / TESTS).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                vague += [
                    f"{file.name}:{name.lineno} {name.id}"
                    for name in bound_names(node)
                    if name.id in VAGUE_NAMES
                ]

    assert vague == []


def test_exceptions_are_few_and_name_functions_that_exist() -> None:
    assert len(EXCEPTED) <= 10
    for place, reason in EXCEPTED.items():
        path, _, name = place.partition(":")
        tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, Function)}
        assert reason


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a, b = 1, 2", assigns_several_values),
        ("a, b = (f(x) for x in (1, 2))", assigns_several_values),
        ("a = [1, *(x for x in b)]", unpacks_a_display),
        ("a = {**{'b': 1}, 'c': 2}", unpacks_a_display),
        ("f(**{'b': 1})", unpacks_a_display),
        ("a = [*([b] if c else []), d]", unpacks_a_display),
        ("a = {'b': 1} | {'c': 2}", merges_displays),
        ("a = ', untrained' * flag", multiplies_text_by_a_flag),
        ("a = f', {b}' * bool(b)", multiplies_text_by_a_flag),
        ("a += [b] if c else []", adds_one_or_nothing),
        ("a = b + ([] if c else [d])", adds_one_or_nothing),
        ("a = b[:: -1 if c else 1]", slices_by_a_condition),
        ("a = [c for b in d if (c := f(b))]", names_within_a_comprehension),
        ("a = 1 if b else 2 if c else 3", chains_ternaries),
    ],
)
def test_a_packed_form_is_found(text: str, form: Callable[[ast.AST], bool]) -> None:
    rule_names = [
        rule.__name__ for node in ast.walk(ast.parse(text)) for rule in PACKED if rule(node)
    ]
    assert form.__name__ in rule_names


@pytest.mark.parametrize(
    "text",
    [
        "a, b = b, a",
        "a, b = f()",
        "(a,) = [b for b in c if b]",
        "a = [*b, c]",
        "a = {**b, 'c': 1}",
        "a = '-' * width",
        "a += b",
    ],
)
def test_a_plain_form_is_let_through(text: str) -> None:
    assert not any(form(node) for node in ast.walk(ast.parse(text)) for form in PACKED)


def function_of(text: str) -> Function:
    """The function of a text."""
    (function,) = ast.parse(text).body
    assert isinstance(function, Function)
    return function


GUARDS = "def f(a):\n    if a:\n        b = 1\n        return b\n"


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        ("def f(a):\n    for b in a:\n        g(b)\n        h(b)\n    c = 1\n    return c\n", [4]),
        ("def f(a):\n    for b in a:\n        g(b)\n        h(b)\n\n    c = 1\n    return c\n", []),
        ("def f(a):\n    for b in a:\n        g(b)\n    c = 1\n    return c\n", []),
        (f"{GUARDS}    if not a:\n        return 2\n    return 3\n", []),
        (f"{GUARDS}    c = 2\n    d = c\n    return d\n", [4]),
        (
            "def f(a):\n    c = []\n    for b in a:\n        g(b)\n        c += b\n    return c\n",
            [],
        ),
    ],
    ids=["a long block", "a blank line", "a short block", "guards", "a guard", "a short function"],
)
def test_a_block_ends_a_paragraph(text: str, crowded: list[int]) -> None:
    assert list(crowded_lines(function_of(text), text.splitlines())) == crowded


def test_branches_count_where_the_linter_does_not_look() -> None:
    """Two loops and two conditions of comprehensions, a ternary, `and`, an `if` and its `elif`."""
    text = (
        "def f(a):\n"
        "    b = [x for y in a if y for x in y if x]\n"
        "    c = 1 if b and a else 2\n"
        "    if b:\n        pass\n    elif c:\n        pass\n"
    )
    assert branches(function_of(text)) == 8
    assert nesting(function_of(text)) == 1


def test_nesting_counts_blocks() -> None:
    text = "def f(a):\n    for b in a:\n        if b:\n            while b:\n                pass\n"
    assert nesting(function_of(text)) == 3
