"""The README's table of methods, from what the library says about itself.

    python -m tests.methods.support_table
"""

from tests.methods import library

COLUMNS = [("causal", "causal"), ("lengths", "lengths"), ("cross", "Nq != Nk"), ("gqa", "GQA"),
           ("lse", "lse"), ("backward", "backward")]


def served(items):
    return " ".join(f"`{item['name']}`" for item in items if item.get("served", False))


def table(described):
    """Markdown; one row a method, in the order of their ids."""
    head = ["method", *(title for _, title in COLUMNS), "options", "other tensors", "cost"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for id, info in sorted(described.items()):
        marks = ["yes" if info["support"].get(key, False) else "no" for key, _ in COLUMNS]
        others = [x for x in info["inputs"] if x["name"] not in ("q", "k", "v")]
        cells = [f"`{id}`", *marks, served(info["options"]), served(others), info["cost"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(library.methods_info()))
