"""Faults of a C++ text: where a small change of meaning can be planted, and how it reads then.

Found in the syntax tree, so that nearly all of them compile. What no test could notice is skipped:
comments, texts, log lines, assertions, room that is reserved; and what only the compiler sees.
"""

import dataclasses
import difflib
import random
import re

import tree_sitter
import tree_sitter_cpp

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
         "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|",
         "|": "&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "&=": "|=", "|=": "&="}
SKIPPED = {"comment", "preproc_include", "preproc_def", "preproc_function_def", "preproc_call",
           "static_assert_declaration", "template_argument_list", "template_parameter_list",
           "string_literal", "raw_string_literal", "char_literal", "array_declarator", "enumerator",
           "bitfield_clause", "attribute_declaration", "alias_declaration", "type_definition",
           "operator_name", "requires_clause", "sizeof_expression", "decltype", "ERROR"}
# Assertions, log lines, and calls that only reserve room.
SKIPPED_CALLS = {"assert", "Log", "reserve", "shrink_to_fit"}
INTEGER = re.compile(r"(-?(?:0[xX][0-9a-fA-F']+|0|[1-9][0-9']*))([uUlLzZ]*)$")


@dataclasses.dataclass(frozen=True, order=True)
class Fault:
    path: str
    line: int
    start: int  # bytes of the text that `new` takes the place of
    end: int
    new: bytes
    what: str

    def planted(self, text):
        return text[:self.start] + self.new + text[self.end:]

    def diff(self, text):
        before, after = (t.decode().splitlines(keepends=True) for t in (text, self.planted(text)))
        return "".join(difflib.unified_diff(before, after, "a/" + self.path, "b/" + self.path))


def faults_of(path, text, lines=None):
    """Every fault of a C++ text (bytes), in the order of their places; `lines` limits them."""
    found = {Fault(path, place.start_point[0] + 1, start, end, new.encode(), what)
             for place, start, end, new, what in changes(parse(text))}
    return sorted(fault for fault in found if lines is None or fault.line in lines)


def parse(text):
    """The root of the syntax tree of a text (bytes)."""
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language())).parse(text).root_node


def changes(node):
    """(node, first byte, byte after the last, new text, what that does) for all below a node."""
    if node.type in SKIPPED or node.type == "call_expression" and called(node) in SKIPPED_CALLS:
        return
    for place, new, what in replacements(node):
        yield place, place.start_byte, place.end_byte, new, what
    if node.type == "binary_expression":
        yield from operators(node)
    if node.type == "initializer_list":
        yield from fields_left_out(node)
    for i, child in enumerate(node.children):
        if not (node.type.startswith("preproc_") and node.field_name_for_child(i) == "condition"):
            yield from changes(child)


def replacements(node):
    """(node that is replaced, new text, what that does)"""
    field, kind, old = node.child_by_field_name, node.type, node.text.decode()
    if kind == "assignment_expression" and (operator := field("operator")).type in SWAPS:
        yield operator, SWAPS[operator.type], f"'{operator.type}' becomes '{SWAPS[operator.type]}'"
    elif kind == "unary_expression" and field("operator").type in "-!":
        yield field("operator"), "", f"'{field('operator').type}' goes"
    elif kind in ("true", "false"):
        new = "false" if kind == "true" else "true"
        yield node, new, f"{kind} becomes {new}"
    elif kind == "number_literal" and (match := INTEGER.match(old)):
        value = int(match[1].replace("'", ""), 0)
        for new in (value + 1, value - 1):
            if new >= 0 or value < 0:
                yield node, f"{new}{match[2]}", f"{old} becomes {new}{match[2]}"
    elif kind in ("if_statement", "while_statement"):
        if all(child.type != "constexpr" for child in node.children):
            yield from conditions(field("condition").child_by_field_name("value"),
                                  never_ends=kind == "while_statement")
    elif kind in ("conditional_expression", "for_statement"):
        yield from conditions(field("condition"), never_ends=kind == "for_statement")
    if is_removable(node):
        yield node, "while (false) " + old, "the statement never runs"


def operators(node):
    left, operator, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    new = SWAPS.get(operator.type)
    what = f"'{operator.type}' becomes '{new}'"
    if new in ("&&", "||", "&", "|"):  # the compiler requires parentheses where these are mixed
        text = f"(({left.text.decode()}) {new} ({right.text.decode()}))"
        yield operator, node.start_byte, node.end_byte, text, what
    elif new:
        yield operator, operator.start_byte, operator.end_byte, new, what


def conditions(node, never_ends):
    if node is None or node.type == "declaration":
        return
    yield node, f"false && ({node.text.decode()})", "the condition never holds"
    if not never_ends:
        yield node, f"true || ({node.text.decode()})", "the condition always holds"


def fields_left_out(initializers):
    inner = initializers.children[1:-1]  # with commas, without braces
    for i, pair in enumerate(inner):
        if pair.type != "initializer_pair":
            continue
        is_last = i + 2 >= len(inner)
        start = inner[i - 1].start_byte if is_last and i > 0 else pair.start_byte
        end = pair.end_byte if is_last else inner[i + 2].start_byte
        name = pair.child_by_field_name("designator").text.decode()
        yield pair, start, end, "", f"{name} is left out"


def called(call):
    """The last name of what a call expression calls: `reserve` of `a->b.reserve(1)`."""
    return re.split(r"\W+", call.child_by_field_name("function").text.decode())[-1]


def is_removable(node):
    if node.type in ("break_statement", "continue_statement"):
        return True
    if node.type == "return_statement":
        return node.named_child_count == 0
    if node.type != "expression_statement" or not node.named_children:
        return False
    inner = node.named_children[0]
    return (inner.type in ("assignment_expression", "update_expression") or
            inner.type == "call_expression" and called(inner) not in SKIPPED_CALLS)


def sample(faults, count, seed):
    """`count` of them in an order that only `seed` decides; one a line while there are lines."""
    faults = sorted(faults)
    random.Random(seed).shuffle(faults)
    lines, first, rest = set(), [], []
    for fault in faults:
        (rest if (fault.path, fault.line) in lines else first).append(fault)
        lines.add((fault.path, fault.line))
    return (first + rest)[:count]


def changed_lines(diff):
    """{path: lines of the new side} of a `git diff -U0`."""
    changed, path = {}, None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") else None
        elif path and (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.setdefault(path, set()).update(range(first, first + count))
    return changed
