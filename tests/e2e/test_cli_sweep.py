"""`attn compare --sweep`: tables, values, texts of errors."""

import json
import sys

import pytest

from attn_command import attn, ok  # noqa: F401
from server_process import DATA

GENESIS = str(DATA / "genesis_512.safetensors")
VERSES = str(DATA / "verses_ragged.safetensors")


def test_sweep_table_and_json(attn):
    command = ["compare", GENESIS, "--method", "random", "--sweep", "num_random=128..512",
               "--set", "causal=true", "--repeat", "1"]  # fmt: skip
    lines = ok(attn(*command)).splitlines()
    assert lines[1] == "random{causal:true}"
    assert lines[2].split()[:3] == ["num_random", "error", "out"] and "workspace" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == ["128", "256", "512"]

    found = json.loads(ok(attn(*command, "--json")))
    assert found["sweep"] == "num_random"
    rows = found["methods"]
    assert [row["options"] for row in rows] == [
        {"num_random": count, "causal": True} for count in (128, 256, 512)
    ]
    for name in ("out", "grad_q", "grad_k", "grad_v"):
        errors = [row["relative_error"][name] for row in rows]
        # With every key drawn it is exact attention.
        assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3
    assert all(row["forward_seconds"] > 0 and row["backward_seconds"] > 0 for row in rows)
    assert all(row["peak_workspace_bytes"] > 0 for row in rows)


@pytest.mark.parametrize("swept", [False, True])
def test_tables_keep_every_digit_in_a_narrow_terminal(attn, monkeypatch, swept):
    """At 80 columns the names of the methods were missing, and digits of a sweep."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    more = ["--sweep", "num_random=128"] if swept else []
    text = ok(attn("compare", GENESIS, "--method", "random", *more))
    assert "error dv" in text and "workspace" in text and "\u2026" not in text
    assert text.splitlines()[-1].startswith("       128" if swept else "random")


def test_help_teaches_the_sweep(attn):
    text = ok(attn("compare", "--help"))
    assert "--sweep num_landmarks=8..256" in text and "FROM..TO:COUNT" in text


def test_sweep_of_an_option_that_the_reference_shares(attn):
    # Six references, each for its own scale.
    done = attn("compare", VERSES, "--method", "local{window_left:-1}", "--no-grad", "--json",
                "--sweep", "scale=0.01..3:6")  # fmt: skip
    rows = json.loads(ok(done))["methods"]
    assert len(rows) == 6 and all(row["relative_error"]["out"] < 1e-3 for row in rows)


@pytest.mark.parametrize(
    "option, listed, values",
    [
        ("window_left", "1..8", [1, 2, 4, 8]),
        ("window_left", "3..20", [3, 6, 12, 20]),
        ("window_left", "5..5", [5]),
        ("window_left", "1..1000:4", [1, 10, 100, 1000]),
        ("window_left", "1..3:9", [1, 2, 3]),
        ("window_left", "16,-1, 0,16", [16, -1, 0]),
        ("scale", "1e-1..1", [0.1, 0.3162, 1.0]),
        ("scale", "0.5..4", [0.5, 1.581, 4.0]),
        ("scale", "0.123456..8:2", [0.123456, 8.0]),
        ("scale", "2,-.5", [2.0, -0.5]),
    ],
)
def test_values_of_a_sweep(attn, option, listed, values):
    done = attn("compare", VERSES, "--method", "local", "--sweep", f"{option}={listed}",
                "--no-grad", "--repeat", "1", "--json")  # fmt: skip
    found = [row["options"][option] for row in json.loads(ok(done))["methods"]]
    assert found == values and list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    "method, given, reason",
    [
        ("random", "num_randm=1..8", "random: --sweep must name an int or float option of this "
         "method (num_random, seed, scale, logit_softcap), got num_randm; "
         "did you mean num_random?"),
        ("random", "causal=0..1", "got causal of type bool"),
        ("axial", "axes=0,1", "got axes of type ints"),
        ("random", "num_random", "--sweep must be NAME=FROM..TO[:COUNT] or NAME=A,B,C, "
         "got num_random"),
        ("random", "num_random=8..1",
         "random: --sweep num_random must rise, as FROM..TO, got 8..1"),
        ("random", "num_random=0..8", "must start above 0 where it is a range; a list may hold any "
         "value, got 0..8"),
        ("random", "num_random=1.5..8", "must be ints, as 16..1024 or 16,64,256, got 1.5..8"),
        ("random", "num_random=1,x", "must be ints, as 16..1024 or 16,64,256, got 1,x"),
        ("random", "scale=1..inf", "random: --sweep scale must be finite numbers, as 1e-6..1 or "
         "0.1,0.5,1, got 1..inf"),
        ("random", "num_random=1..8:1", "must have a COUNT >= 2 in FROM..TO:COUNT, got 1..8:1"),
        ("random", "num_random=1..8:65", "must have at most 64 values, has 65, got 1..8:65"),
        ("random", "scale=1e-300..1", "must have at most 64 values, has 601, got 1e-300..1"),
        ("random{num_random:3}", "num_random=1..8",
         "random: num_random must be given once, got 3 beside --sweep num_random=1..8"),
        ("", "num_random=1..8",
         "--sweep needs exactly one --method, got none; num_random is an option of random"),
    ],
)  # fmt: skip
def test_refused_sweeps(attn, method, given, reason):
    methods = ["--method", method] if method else []
    done = attn("compare", GENESIS, *methods, "--sweep", given)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("attn: ") and done.stderr.count("\n") == 1
    assert f"{reason} (attn compare --help tells more)" in done.stderr


def test_sweep_and_what_excludes_it(attn):
    once = ["compare", GENESIS, "--method", "random", "--sweep", "num_random=1..8"]
    for more, reason in {
        ("--method", "local"): "--sweep needs exactly one --method, got 2",
        ("--sweep", "seed=1,2"): "--sweep must be given once, got 2",
        ("--set", "num_random=3"): "random: num_random must be given once, got 3 beside --sweep",
    }.items():
        done = attn(*once, *more)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1


def test_sweep_says_which_values_failed(attn):
    done = attn("compare", GENESIS, "--method", "random", "--sweep", "num_random=0,512",
                "--no-grad")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "attn: random: num_random must be >= 1, got 0\n"
    rows = [line.split() for line in done.stdout.splitlines()[3:]]
    assert rows[0] == ["0", "failed"] and rows[1][0] == "512" and len(rows[1]) > 2
    # One reason of all values is said once.
    done = attn("compare", GENESIS, "--method", "etc{num_global:9999}", "--sweep", "scale=1,2")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
