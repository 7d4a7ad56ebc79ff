"""READMEs and client describe the methods as the library and the oracles do."""

import pytest

from tests.methods import support_table


@pytest.mark.parametrize("file, name", support_table.PARTS)
def test_derived_part_is_current(file, name):
    assert support_table.current(file, name) == support_table.PARTS[file, name](), (
        f"{file}: run `python -m tests.methods.support_table --write`")
