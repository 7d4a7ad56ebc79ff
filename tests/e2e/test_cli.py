"""The command `attn`: results in files, tables, texts of errors, exit codes.

Most cases call its main() in this process (attn_command.py); some run the process.
"""

import json
import pathlib
import socket
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnd
from attn_command import attn, ok  # noqa: F401
from attnd.cli import commands
from helpers import noise, same_bits
from server_process import DATA, clean_environment

GENESIS = str(DATA / "genesis_512.safetensors")
KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels"
METHODS = [path.stem for path in (KERNELS / "methods").glob("*.cc")]
VERSES = str(DATA / "verses_ragged.safetensors")


@pytest.fixture
def process(server, tmp_path):
    def run(*command):
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=clean_environment() | {"ATTND_TARGET": server.target},
        )

    return run


def test_health_and_info(attn):
    assert ok(attn("health")) == "SERVING\n"
    text = ok(attn("info"))
    assert text.startswith("attnd ") and "cpu: " in text and "message 1 GiB" in text
    assert json.loads(ok(attn("info", "--json")))["max_message_bytes"] == 2**30


def test_methods(attn):
    text = ok(attn("methods"))
    assert [line.split()[0] for line in text.splitlines()[1:]] == [
        method["id"] for method in json.loads(ok(attn("methods", "--json")))
    ]
    text = ok(attn("methods", "local"))
    for word in ("window_left", "required", "token | block", "kv_lengths", "[B,H,Nq,D]"):
        assert word in text
    table = text[text.index("\noption ") :].splitlines()
    assert max(map(len, table)) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())


def test_run_safetensors_with_gradients(attn, client, genesis, tmp_path):
    np.save(tmp_path / "grad.npy", genesis["v"])
    text = ok(
        attn("run", GENESIS, "-o", "out.safetensors", "--method",
             "local{window_left:64 causal:true}", "--grad-out", "grad.npy")
    )  # fmt: skip

    options = {"window_left": 64, "causal": True}
    q, k, v = (genesis[name] for name in "qkv")
    forward = client.forward(q, k, v, method="local", options=options)
    backward = client.backward(q, k, v, v, method="local", options=options)
    found = load_file(tmp_path / "out.safetensors")
    want = {"out": forward.out, "lse": forward.lse, "grad_q": backward.q, "grad_k": backward.k,
            "grad_v": backward.v}  # fmt: skip
    assert found.keys() == want.keys()
    assert all(same_bits(found[name], want[name]) for name in want)
    assert "local{window_left:64 causal:true} on cpu -> out.safetensors" in text
    assert "out [1, 12, 512, 32] float16" in text and "workspace" in text


def test_run_takes_every_name_of_the_file(attn, client, verses, tmp_path):
    np.savez(tmp_path / "in.npz", **verses)
    ok(attn("run", "in.npz", "-o", "out.npz", "--method", "local", "--set", "window_left=8",
            "--set", "causal=true"))  # fmt: skip

    lengths = {name: verses[name] for name in ("q_lengths", "kv_lengths")}
    want = client.forward(*(verses[n] for n in "qkv"), method="local", tensors=lengths,
                          options={"window_left": 8, "causal": True})  # fmt: skip
    with np.load(tmp_path / "out.npz") as found:
        assert same_bits(found["out"], want.out) and same_bits(found["lse"], want.lse)


def test_run_on_npy_files_with_conversion(attn, client, verses, tmp_path):
    for name, array in verses.items():
        np.save(tmp_path / f"{name}.npy", array.astype(float) if name in "qkv" else array)
    flags = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "-o", "out.npy",
             "--tensor", "kv_lengths=kv_lengths.npy"]  # fmt: skip
    refused = attn(*flags)
    assert refused.returncode == 1 and "--dtype float32 converts" in refused.stderr

    ok(attn(*flags, "--dtype", "float16"))

    want = client.forward(*(verses[n] for n in "qkv"), tensors={"kv_lengths": verses["kv_lengths"]})
    assert same_bits(np.load(tmp_path / "out.npy"), want.out)


@pytest.mark.parametrize("method", ["reformer", "routing"])
def test_run_and_estimate_leave_out_a_k_that_the_method_does_not_take(
        attn, client, genesis, tmp_path, method):
    """Symptom: the file of the README was refused, its k being one tensor too many."""
    note = f"attn: note: k of {GENESIS} is left out: {method} takes q for the keys, too\n"
    done = attn("run", GENESIS, "-o", "out.npz", "--method", method)
    assert ok(done) and done.stderr == note
    want = client.forward(genesis["q"], None, genesis["v"], method=method).out
    with np.load(tmp_path / "out.npz") as found:
        assert same_bits(found["out"], want)

    done = attn("estimate", GENESIS, "--method", method, "--json")
    assert json.loads(ok(done))["input_bytes"] == genesis["q"].nbytes + genesis["v"].nbytes
    assert done.stderr == note

    # One that is named is meant.
    for named in (["--k", GENESIS], ["--tensor", f"k={GENESIS}"]):
        done = attn("run", GENESIS, *named, "--method", method)
        assert done.returncode == 1 and "note" not in done.stderr
        assert ("tensors must be among q, v" if method == "reformer" else
                "k must be absent with shared_qk") in done.stderr
    done = attn("run", GENESIS, "--method", "routing{shared_qk:false}")
    assert ok(done) and not done.stderr


def test_run_says_what_a_npy_leaves_out(attn):
    done = attn("run", GENESIS, "-o", "out.npy")
    ok(done)
    assert done.stderr == "attn: note: lse not in out.npy: a .npy holds one array\n"
    done = attn("run", GENESIS, "-o", "out.npz")
    assert ok(done) and not done.stderr


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_run_keeps_bfloat16(attn, client, genesis, tmp_path, suffix):
    tensors = {name: genesis[name].astype(ml_dtypes.bfloat16) for name in "qkv"}
    save_file(tensors, tmp_path / "in.safetensors")
    ok(attn("run", "in.safetensors", "-o", f"mid.{suffix}", "--set", "scale=0.5"))
    # What was written is read back as bfloat16: here as k, beside q and v of the first file.
    ok(attn("run", "in.safetensors", "--k", f"mid.{suffix}:out", "-o", "out.safetensors"))

    out = client.forward(*tensors.values(), options={"scale": 0.5}).out
    want = client.forward(tensors["q"], out, tensors["v"])
    found = load_file(tmp_path / "out.safetensors")["out"]
    assert found.dtype == ml_dtypes.bfloat16
    assert same_bits(found, want.out)


def test_estimate(attn, client, verses, tmp_path):
    """Estimates of a file's tensors, lengths with their values, and of shapes alone."""
    lengths = dict(verses)
    q, k, v = (lengths.pop(name) for name in "qkv")
    expected = client.estimate(q.shape, k.shape, v.shape, dtype=q.dtype, tensors=lengths)
    printed = json.loads(attn("estimate", VERSES, "--json").stdout)
    figures = {name: value for name, value in vars(expected).items() if value != ()}
    assert {name: printed.pop(name) for name in figures} == pytest.approx(figures)
    assert printed == {"notes": [], "refusals": []}
    assert expected.visible_pairs < client.estimate(q.shape, k.shape, v.shape).visible_pairs

    shapes = ["--shape", "1,8,1,64", "--kv-shape", "1,2,4096,64", "--dtype", "bfloat16"]
    done = attn("estimate", *shapes, "--method", "local{window_left:99}", "--backward")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("local{window_left:99} on cpu\n  backward: compute ")
    assert done.stdout.splitlines()[-1] == "  sends 2 MiB, gets 2 MiB"

    # q serves as the keys, too: no k is sent.
    done = attn("estimate", "--shape", "1,8,64,16", "--method", "reformer", "--json")
    assert json.loads(ok(done))["input_bytes"] == 2 * 8 * 64 * 16 * 4
    assert done.stderr == ("attn: note: k of --shape is left out: reformer takes q for the keys, "
                           "too\n")

    # out has a row for each seed.
    done = attn("estimate", GENESIS, "--method", "set_transformer{mode:pma}", "--backward")
    assert ok(done).startswith("set_transformer{mode:pma} on cpu\n  backward: compute ")

    bounds = tmp_path / "bounds.npy"
    np.save(bounds, np.array([0, 10, 40]))
    packed = [f"--tensor={name}={bounds}" for name in ("cu_seqlens_q", "cu_seqlens_k")]
    done = attn("estimate", "--shape", "1,1,40,8", *packed, "--json")
    assert json.loads(done.stdout)["visible_pairs"] == 10 * 10 + 30 * 30


# The gradients of methods that do not read all of q, k and v.
GRADIENTS = {"fnet": "v", "linear_mixing": "v", "random_mixing": "v", "mlp_mixer": "v",
             "gmlp_sgu": "qv", "reformer": "qv", "routing": "qv"}


def test_compare_table_and_json(attn):
    text = ok(attn("compare", GENESIS))
    rows, notes = text.splitlines()[2:], []
    while len(rows) > len(METHODS):
        notes.insert(0, rows.pop())
    rows = [line.split()[0] for line in rows]
    assert [row.split("{")[0] for row in rows] == [
        "softmax", *sorted(set(METHODS) - {"softmax"})]
    assert "local{window_left:64}" in rows
    # Symptom: nothing said that some rows have another reference, nor what "-" is.
    assert notes == [
        "against exact attention with k = q, as q serves as the keys: reformer, routing",
        "against causal attention, as the method is always causal: compressive, transformer_xl",
        "-: no gradient, as the method does not read that tensor",
    ]

    found = json.loads(ok(attn("compare", GENESIS, "--json")))
    assert found["input"]["q"] == {"shape": [1, 12, 512, 32], "dtype": "float16"}
    methods = {row["method"]: row for row in found["methods"]}
    assert methods.keys() == set(METHODS)
    for row in methods.values():
        read = GRADIENTS.get(row["method"], "qkv")
        assert row["relative_error"].keys() == {"out", *(f"grad_{name}" for name in read)}
        assert row["forward_seconds"] > 0 and row["backward_seconds"] > 0
        assert row["peak_workspace_bytes"] > 0
    # Exact attention in float16 differs from float32 by its rounding only.
    assert all(1e-5 < error < 1e-3 for error in methods["softmax"]["relative_error"].values())
    assert methods["softmax"]["cosine_similarity"] > 0.999999
    assert 0.05 < methods["local"]["relative_error"]["out"] < 1
    assert 0.05 < methods["linear_attention"]["relative_error"]["out"] < 1


def test_compare_shares_options_and_lengths_with_the_reference(attn):
    # A window as wide as the sequence is exact attention, also with padding and causal.
    done = attn("compare", VERSES, "--method", "local{window_left:-1}", "--method", "softmax",
                "--set", "causal=true", "--no-grad", "--json")  # fmt: skip
    methods = json.loads(ok(done))["methods"]
    assert [row["options"] for row in methods] == [
        {"window_left": -1, "causal": True},
        {"causal": True},
    ]
    assert all(row["relative_error"]["out"] < 1e-3 for row in methods)
    assert all(row["relative_error"].keys() == {"out"} for row in methods)


def test_compare_takes_q_for_the_keys(attn, client, verses):
    """A method that has no k gets none, and its reference is exact attention with k = q."""
    done = attn("compare", VERSES, "--method", "reformer{chunk_len:8 n_hashes:8}", "--json")
    row = json.loads(ok(done))["methods"][0]
    assert row["relative_error"].keys() == {"out", "grad_q", "grad_v"}
    sent = {n: x for n, x in verses.items() if n.endswith("_lengths")}
    q, v = verses["q"].astype(np.float32), verses["v"].astype(np.float32)
    exact = client.forward(q, q, np.repeat(v, q.shape[1] // v.shape[1], 1), tensors=sent).out
    ours = client.forward(verses["q"], None, verses["v"], method="reformer", tensors=sent,
                          options={"chunk_len": 8, "n_hashes": 8}).out
    error = np.linalg.norm(ours - exact) / np.linalg.norm(exact)
    assert row["relative_error"]["out"] == pytest.approx(error, rel=1e-6)


def test_compare_names_the_rows_that_have_another_reference(attn):
    def notes(*arguments):
        text = ok(attn("compare", VERSES, "--repeat", "1", *arguments))
        return [line for line in text.splitlines() if line.startswith(("against", "-:"))]

    of_keys = "against exact attention with k = q, as q serves as the keys: "
    assert not notes("--method", "softmax", "--method", "local", "--set", "window_left=9")
    assert notes("--no-grad", "--method", "routing", "--method", "routing{shared_qk:false}",
                 "--method", "routing{window:9}") == [of_keys + "routing, routing{window:9}"]
    assert notes("--method", "routing", "--sweep", "window=9,12") == [
        of_keys + "routing", "-: no gradient, as the method does not read that tensor"]
    assert notes("--no-grad", "--method", "fnet") == []
    text = " ".join(ok(attn("compare", "--help")).split())
    for part in ("exact attention has k = q", "is always causal (transformer_xl, compressive)",
                 '"-": no gradient, as the method does not read that tensor'):
        assert part in text


def test_compare_says_which_method_failed(attn):
    done = attn("compare", GENESIS, "--method", "local{window_left:-9}", "--method", "softmax")
    assert done.returncode == 1
    assert "local: window_left must be >= -1, got -9" in done.stderr
    assert "softmax" in done.stdout


def test_compare_needs_a_row_of_out_for_each_query(attn):
    done = attn("compare", GENESIS, "--method", "set_transformer{mode:pma}")
    assert done.returncode == 1
    assert ("set_transformer: out is [1, 12, 1, 32], that of exact attention [1, 12, 512, 32]"
            in done.stderr)


@pytest.mark.parametrize(
    "arguments, code, fragment",
    [
        (["frobnicate"], 2, "invalid choice: 'frobnicate'"),
        ([], 2, "COMMAND"),
        (["run", GENESIS, "--bogus"], 2, "--bogus"),
        (["run", GENESIS, "--method", "lokal"], 2, "must be one of softmax, relu_attention, local"),
        (["run", GENESIS, "--method", "local{windw_left:3}"], 2, "did you mean window_left?"),
        (["run", GENESIS, "--set", "casual=true"], 2, "did you mean causal?"),
        (["run", GENESIS, "--set", "causal"], 2, "--set must be NAME=VALUE, got 'causal'"),
        (["run", GENESIS, "--method", "local{granularity:tokn}"], 2, "token, block, got tokn"),
        (["run", GENESIS, "-o", "out.txt"], 2, "must end with .npy, .npz, .safetensors"),
        (["run"], 2, "no input"),
        (["estimate"], 2, "no input"),
        (["estimate", "--shape", "1,2,3"], 2, "must be four ints as B,H,N,D, got 1,2,3"),
        (["estimate", GENESIS, "--shape", "1,2,3,4"], 2, "give --shape, or INPUT"),
        (["estimate", GENESIS, "--kv-shape", "1,2,3,4"], 2, "--kv-shape needs --shape"),
        (["compare", GENESIS, "--set", "widow=1"], 2, "no method compared here has this option"),
        (["compare", GENESIS, "--repeat", "0"], 2, "must be an int >= 1, got 0"),
        (["methods", "lokal"], 2, f"must be one of {', '.join(sorted(METHODS))}, got lokal"),
        (["run", "missing.npz"], 1, "missing.npz: no such file"),
        (["run", __file__ + ".npz"], 1, "no such file"),
        (["run", GENESIS, "-o", "no/such/folder/out.npz"], 1, "does not exist"),
        (["run", GENESIS, "--method", "local"], 1, "window_left"),
        (["run", GENESIS, "--method", "local{window_left:-5}"], 1, "must be >= -1, got -5"),
        (["run", GENESIS, "--tensor", f"bias={GENESIS}"], 1, "none of them is bias"),
    ],
)
def test_errors_are_one_clear_line(attn, arguments, code, fragment):
    done = attn(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("attn: ") and fragment in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize("command", ["run", "compare", "estimate"])
def test_float64_files_name_the_flag_that_converts(attn, rng, command):
    """They named q.astype(np.float32), and `compare` named nothing else."""
    arrays = {"q": noise(rng, (1, 2, 20, 8)).astype("f8"), "k": noise(rng, (1, 2, 20, 8)),
              "v": noise(rng, (1, 2, 20, 8)).astype(">f4")}  # fmt: skip
    np.savez("in.npz", **arrays)
    done = attn(command, "in.npz")
    assert done.returncode == 1
    assert done.stderr == ("attn: q must be float32, float16, bfloat16, got float64 "
                           "(--dtype float32 converts; integers: save int32)\n")
    ok(attn(command, "in.npz", "--dtype", "float32"))
    np.save("grad.npy", arrays["q"])
    if command == "run":
        done = attn(command, GENESIS, "--grad-out", "grad.npy")
        assert "grad_out must be float32, float16, bfloat16, got float64 (--dtype" in done.stderr


@pytest.mark.parametrize("command", ["run", "compare", "estimate"])
def test_a_file_that_looks_like_bnhd_is_noted(attn, rng, command):
    """H 200 and N 4 were served without a word."""
    def notes(shapes, *flags):
        np.savez("in.npz", **{n: noise(rng, shape) for n, shape in zip("qkv", shapes)})
        done = attn(command, "in.npz", "--method", "softmax", *flags)
        ok(done)
        return done.stderr

    swapped = [(1, 200, 4, 8)] * 3
    assert notes(swapped) == ("attn: note: served as H 200, N 4; for [B,N,H,D] give --layout BNHD, "
                              "else --layout BHND\n")
    for flag in ("BNHD", "BHND"):
        assert notes(swapped, "--layout", flag) == ""
    assert notes([(1, 20, 16, 8)] * 3) == ""
    if command != "compare":
        decode = [(1, 20, 1, 8), (1, 20, 40, 8), (1, 20, 40, 8)]
        assert notes(decode) == ""


def test_damaged_files(attn, tmp_path):
    for name in ("bad.npz", "bad.npy", "bad.safetensors"):
        (tmp_path / name).write_bytes(b"\x93NUMPY but not really")
        done = attn("run", name)
        assert done.returncode == 1, done.stderr
        assert f"{name}: not a readable" in done.stderr and done.stderr.count("\n") == 1


def test_server_that_is_not_there(attn):
    for command in (["health"], ["run", GENESIS], ["compare", GENESIS], ["methods"]):
        done = attn(*command, target="127.0.0.1:1")
        assert done.returncode == 1
        assert "cannot reach attnd server at 127.0.0.1:1: failed to connect" in done.stderr
        assert "Connection refused. Is it running?" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_server_that_never_answers(attn, monkeypatch):
    assert commands.QUICK_SECONDS == 5
    monkeypatch.setattr(commands, "QUICK_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        target = f"127.0.0.1:{stuck.getsockname()[1]}"
        for command in (["health"], ["info"], ["estimate", "--shape", "1,1,1,8"]):
            done = attn(*command, target=target)
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            assert f"deadline exceeded at {target}" in done.stderr
            help_text = " ".join(ok(attn(command[0], "--help")).split())
            assert "5 for health, info, estimate" in help_text


def test_help_teaches_with_examples(attn):
    for command, example in {
        "": "attn compare genesis_512.safetensors",
        "run": "attn run in.npz -o out.npz --method local --set window_left=64",
        "compare": "--method 'local{window_left:32}'",
    }.items():
        text = ok(attn(*command.split(), "--help"))
        assert "examples:" in text and example in text


def test_the_installed_command(process):
    attn = str(pathlib.Path(sys.executable).parent / "attn")
    assert ok(process(attn, "--version")) == f"attn {attnd.__version__}\n"
    assert ok(process(attn, "health")) == "SERVING\n"
    text = ok(process(attn, "compare", GENESIS, "--no-grad", "--method", "softmax"))
    lines = text.splitlines()
    assert lines and lines[-1].startswith("softmax"), text
    done = process(attn, "run", GENESIS, "--bogus")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    done = process(sys.executable, "-m", "attnd", "run", "missing.npz")
    assert (done.returncode, done.stderr) == (1, "attn: missing.npz: no such file\n")


def test_reader_that_leaves_early(process):
    done = process("bash", "-c", f"{sys.executable} -m attnd methods --json | head -1")
    assert done.returncode == 0 and not done.stderr
