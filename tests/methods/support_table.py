"""The README's table of methods, from what the library says about itself.

    python -m tests.methods.support_table
"""

from tests.methods import library

COLUMNS = [("causal", "causal"), ("lengths", "lengths"), ("cross", "Nq != Nk"), ("gqa", "GQA"),
           ("lse", "lse"), ("backward", "backward")]


def served(items, common):
    """Own names, then what is common: everything of softmax's, or all but some."""
    names = [item["name"] for item in items if item.get("served", False)]
    own = [f"`{name}`" for name in names if name not in common]
    missing = [f"`{name}`" for name in common if name not in names]
    if len(missing) > len(common) / 2:
        own += [f"`{name}`" for name in names if name in common]
    else:
        own += ["common" + (" but " + " ".join(missing) if missing else "")]
    return " ".join(own)


def table(described):
    """Markdown; one row a method, in the order of their ids. Common is what softmax has."""
    options = [x["name"] for x in described["softmax"]["options"]]
    tensors = [x["name"] for x in others(described["softmax"])]
    head = ["method", *(title for _, title in COLUMNS), "options", "other tensors", "cost"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for id, info in sorted(described.items()):
        marks = ["yes" if info["support"].get(key, False) else "no" for key, _ in COLUMNS]
        cells = [f"`{id}`", *marks, served(info["options"], options),
                 served(others(info), tensors), info["cost"]]
        lines.append("| " + " | ".join(cells) + " |")
    names = [" ".join(f"`{name}`" for name in listed) for listed in (options, tensors)]
    return "\n".join([*lines, "", f"Common options: {names[0]}. Common tensors: {names[1]}."])


def others(info):
    """Inputs besides q, k and v."""
    return [x for x in info["inputs"] if x["name"] not in ("q", "k", "v")]


if __name__ == "__main__":
    print(table(library.methods_info()))
