"""The defaults that the comments of methods.proto name are those of the server."""

import re

import pytest

from server_process import REPOSITORY

PROTO = (REPOSITORY / "proto/attn/v1/methods.proto").read_text()
BODIES = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", PROTO, re.M | re.S))
# Method ids by message.
MESSAGES = {i: name for name, i in re.findall(r"^    (\w+) (\w+) = \d+;", BODIES["MethodSpec"], re.M)}
# A field on one line, the comment above it.
FIELD = re.compile(r"((?:^  //.*\n)*)  (?:optional|repeated) [\w.]+ (\w+) = \d+;", re.M)
AS_SOFTMAX = "The options of Softmax, with the same meaning."


def default_of(comment):
    """"64" of "Default 64.", "required when x is y" of "Required when x is y, else unused."."""
    found = re.search(r"Default (.+?)\.(?: |$)", comment)
    if found:
        return found[1]
    found = re.search(r"(Required.*?)[,.]", comment)
    return found and found[1].lower()


def defaults(message):
    """{field: default} as the comments state it; a field without a comment shares the one above."""
    said = {}
    comment = ""
    for lines, field in FIELD.findall(BODIES[message]):
        if lines:
            comment = " ".join(line.strip(" /") for line in lines.splitlines())
        if comment == AS_SOFTMAX:
            said[field] = defaults("Softmax")[field]
        else:
            said[field] = default_of(comment)
    return said


@pytest.fixture(scope="module")
def served(client):
    return {method.id: {option.name: option.default_value for option in method.options}
            for method in client.methods()}


@pytest.mark.parametrize("method", MESSAGES)
def test_the_comments_name_the_defaults(served, method):
    assert defaults(MESSAGES[method]) == served[method]


def test_every_method_is_compared(served):
    assert sorted(MESSAGES) == sorted(served)
