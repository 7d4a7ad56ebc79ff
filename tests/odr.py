#!/usr/bin/env python3
"""One definition for one name: fails if two files define a class, or an inline function or template,
of the same name and parameters in the same namespace. Such files compile and link, and the linker
keeps either definition for both.

    tests/odr.py [FOLDER...]    # all that hold C++, if none is named

It reads sources: object files do not show it, since what the compiler inlined leaves no symbol.
Names in an unnamed namespace, or static, belong to their file and do not count.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / folder for folder in ("kernels", "server", "proto", "client", "tests")]
# Comments, raw strings, strings, characters, preprocessor lines with their continuations.
NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
                   r"""|^[ \t]*\#(?:[^\n\\]|\\.)*""", re.S | re.M)
NAMESPACE = re.compile(r"^(?:inline )?namespace ?([\w:]*)$")
CLASS = re.compile(r"\b(?:class|struct|union) (?:\w+\(.*?\) )?((?:\w+::)*\w+)(?: final)?(?: ?:[^:].*)?$")
ENUM = re.compile(r"\benum (?:class |struct )?(\w+)(?: ?:[^:].*)?$")
FUNCTION = re.compile(r"([\w:~]+|operator ?\S+?) ?\((.*)\)[^()]*$")
# Words by which a function may be defined in many files.
SHARED = re.compile(r"\b(?:template|inline|constexpr|HWY_INLINE|HWY_API|HWY_MAYBE_UNUSED)\b")


def parameter_types(text):
    """`const V v, Row& row = {}` -> `const V,Row&`: without names and defaults."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    types = (re.sub(r"\s*=.*", "", part).strip() for part in parts)
    return ",".join(re.sub(r"(?<=[\s&*>])\w+(\[\])?$", "", t).replace(" ", "") for t in types)


def name_of(head):
    """What a head before `{` at namespace scope defines; None if that is the file's own."""
    head = re.sub(r"\btemplate ?<[^<>]*(?:<[^<>]*>[^<>]*)*>", "template", head)
    if found := CLASS.search(head) or ENUM.search(head):
        return None if "(" in head.replace("__attribute__", "") else found[1]
    found = FUNCTION.search(re.sub(r"\) ?(?:const|noexcept|: .*|-> .*)*$", ")", head))
    if not found or not SHARED.search(head) or re.search(r"\bstatic\b", head):
        return None
    return f"{found[1]}({parameter_types(found[2])})"


def definitions(text):
    """Yields the names that a source defines, with their namespaces, and their lines."""
    text = NOISE.sub(lambda found: " " + "\n" * found[0].count("\n"), text)
    scopes = []  # of open braces: a namespace's name, "" if unnamed, None for any other
    start, depth = 0, 0
    for found in re.finditer(r"[{};()]", text):
        if found[0] in "()":
            depth += 1 if found[0] == "(" else -1
            continue
        head = " ".join(text[start:found.start()].split())
        if found[0] == "{":
            named = NAMESPACE.match(head)
            if depth == 0 and None not in scopes and not named and "" not in scopes:
                if name := name_of(head):
                    yield "::".join([*scopes, name]), text.count("\n", 0, found.start()) + 1
            scopes.append(named[1] if named and depth == 0 else None)
        elif found[0] == "}" and scopes:
            scopes.pop()
        if None not in scopes:
            start = found.end()


def problems(folders):
    """What is defined more than once in the sources of `folders`, a line for each."""
    places = collections.defaultdict(dict)
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                for name, line in definitions(path.read_text()):
                    places[name][path] = line
    return [f"{name} is defined in " + " and in ".join(f"{p}:{n}" for p, n in files.items())
            for name, files in sorted(places.items()) if len(files) > 1]


def main():
    found = problems(sys.argv[1:] or FOLDERS)
    print("\n".join([*found, f"{len(found)} names are defined more than once"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
