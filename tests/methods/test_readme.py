"""README's method table is the one that the library tells."""

import pathlib

from tests.methods import library, support_table

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def test_readme_holds_the_support_table():
    assert support_table.table(library.methods_info()) in README.read_text(), (
        "README.md: put the output of `python -m tests.methods.support_table` there")
