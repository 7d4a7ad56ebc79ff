"""The parts of README.md, kernels/README.md and the command `attn compare` that describe methods,
derived from the library's description and from tests/methods/<id>.py.

    python -m tests.methods.support_table           prints it
    python -m tests.methods.support_table --write   puts it into the files

A derived part stands in its file between two lines, `derived: NAME` and `end of NAME`.
"""

import argparse
import re

from tests.methods import harness, library

ROOT = library.ROOT
COLUMNS = [("causal", "causal"), ("lengths", "lengths"), ("cross", "Nq != Nk"), ("gqa", "GQA"),
           ("lse", "lse"), ("backward", "backward")]
PAIR_COST = "2 (D + Dv) FLOPs per visible pair, "


def served(items, common):
    """The method's own names, then the common ones: all of softmax's, or all but some."""
    names = [item["name"] for item in items if item.get("served", False)]
    own = [f"`{name}`" for name in names if name not in common]
    missing = [f"`{name}`" for name in common if name not in names]
    if len(missing) > len(common) / 2:
        own += [f"`{name}`" for name in names if name in common]
    else:
        own += ["common" + (" but " + " ".join(missing) if missing else "")]
    return " ".join(own)


def others(info):
    """Inputs besides q, k and v."""
    return [x for x in info["inputs"] if x["name"] not in ("q", "k", "v")]


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def common_names(described):
    """(options, tensors) that are called common: those of softmax."""
    softmax = described["softmax"]
    return [x["name"] for x in softmax["options"]], [x["name"] for x in others(softmax)]


def follows_padding(info):
    """The options and tensors whose help names the padded sizes (test_promises.py)."""
    names = [x["name"] for x in info["options"] + info["inputs"] if "padded" in x["help"]]
    return " ".join(f"`{name}`" for name in names) or "-"


def table(described):
    """One row a method in the order of their ids, with everything that it takes."""
    options, tensors = common_names(described)
    head = ["method", *(title for _, title in COLUMNS), "follows padding", "options",
            "other tensors", "cost"]
    rows = []
    for id, info in sorted(described.items()):
        marks = ["yes" if info["support"].get(key, False) else "no" for key, _ in COLUMNS]
        rows.append([f"`{id}`", *marks, follows_padding(info), served(info["options"], options),
                     served(others(info), tensors), info["cost"]])
    names = [" ".join(f"`{name}`" for name in listed) for listed in (options, tensors)]
    return f"{markdown(head, rows)}\n\nCommon options: {names[0]}. Common tensors: {names[1]}."


def overview(described):
    """One row a method: its computation, what it does not take, its cost."""
    rows = []
    for id, info in sorted(described.items()):
        lacking = [title for key, title in COLUMNS if not info["support"].get(key, False)]
        rows.append([f"`{id}`", info["summary"], ", ".join(lacking) or "-",
                     info["cost"].removeprefix(PAIR_COST)])
    return markdown(["method", "computes", "does not support", "cost"], rows)


def presets(methods):
    """The branches of `preset` in the client: one for each method whose defaults do not suffice."""
    lines = []
    for id, method in sorted(methods.items()):
        options, tensors = [], []
        for name, value in method.preset.items():
            (options if name in method.options else tensors).append(f'"{name}": {value}')
        arguments = ["{" + ", ".join(options) + "}"] if options else []
        arguments += ["tensors={" + ", ".join(tensors) + "}"] if tensors else []
        if arguments:
            lines += [f'case "{id}":', f"    return Preset({', '.join(arguments)})"]
    return "\n".join(" " * 8 + line for line in lines)


# What is derived: (file, name of the part) -> its text.
PARTS = {
    ("README.md", "methods"): lambda: overview(library.methods_info()),
    ("kernels/README.md", "support table"): lambda: table(library.methods_info()),
    ("client/python/attnd/cli/presets.py", "presets"): lambda: presets(harness.methods()),
}


def part(name):
    """Matches a derived part: the line that opens it, its text, the head of the line that ends it."""
    return re.compile(rf"(^[^\n]*derived: {name}\b[^\n]*\n)(.*?)(^[^\n]*end of {name}\b)", re.M | re.S)


def current(file, name):
    """The text that stands in the file, None if the file has no such part."""
    found = part(name).search((ROOT / file).read_text())
    return found and found[2].strip("\n")


def write():
    for (file, name), text in PARTS.items():
        path = ROOT / file
        old = path.read_text()
        new, count = part(name).subn(lambda found: f"{found[1]}{text()}\n{found[3]}", old)
        if count != 1:
            raise SystemExit(f"{file}: must have one part `derived: {name}`, got {count}")
        if new != old:
            path.write_text(new)
            print(f"{file}: wrote {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.methods.support_table")
    parser.add_argument("--write", action="store_true", help="put it into the files")
    if parser.parse_args().write:
        write()
    else:
        print("\n\n".join(text() for text in PARTS.values()))
