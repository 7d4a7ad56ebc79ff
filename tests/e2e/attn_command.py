"""The command `attn`, run as main() in this process: that is the command without the half second
of its imports.
"""

import subprocess

import pytest

from attnd import cli


@pytest.fixture
def attn(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, target=server.target):
        monkeypatch.setenv("ATTND_TARGET", target)
        capsys.readouterr()
        try:
            code = cli.main(list(arguments))
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return run


def ok(done):
    assert done.returncode == 0, done.stderr
    return done.stdout
