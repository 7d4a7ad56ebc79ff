"""attnd_build_info names the version and the instruction set that the server runs."""

from server_process import samples


def test_the_instruction_set_and_the_version_are_labels(server):
    found = [labels for name, labels, value in samples(server.metrics())
             if name == "attnd_build_info" and value == 1]
    assert len(found) == 1
    assert found[0]["isa"]
    assert found[0]["version"]
