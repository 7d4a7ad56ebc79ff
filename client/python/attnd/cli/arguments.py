"""The command line of `attn`."""

import argparse
import os
import sys
from typing import NoReturn

from attnd import __version__
from attnd.cli import commands, compare, doctor
from attnd.cli.terminal import say

DEFAULT_TARGET = "127.0.0.1:8001"

TOP = """\
examples:
  attn health                                    is the server ready?
  attn doctor                                    is every device right?
  attn methods                                   what it can do
  attn methods local                             options and tensors of one method
  attn compare genesis_512.safetensors           every method against exact attention
  attn run in.safetensors -o out.safetensors --method 'local{window_left:64 causal:true}'
  attn estimate --shape 1,8,65536,64 --method softmax   what would it take?

exit codes: 0 ok, 1 server or data error, 2 usage"""

RUN = """\
INPUT is a .safetensors or .npz file; the names in it (q, k, v, kv_lengths, bias, ...) become the
request's tensors. Arrays of single .npy files are given by name. q, k, v are [B,H,N,D]. A k of
INPUT is left out where q serves as the keys (reformer, routing).

OUTPUT (.safetensors or .npz) gets out, lse where the method has one, the method's other outputs,
and with --grad-out the gradients grad_q, grad_k, grad_v, grad_<tensor>. A .npy gets out alone.
NumPy's formats have no bfloat16: there it is two raw bytes (V2), read back as bfloat16.

examples:
  attn run in.safetensors -o out.safetensors --method softmax
  attn run in.npz -o out.npz --method local --set window_left=64 --set causal=true
  attn run --q q.npy --k k.npy --v v.npy -o out.npy --method linear_attention
  attn run in.safetensors -o grads.npz --method 'local{window_left:64}' --grad-out dout.npy
  attn run in.npz -o out.npz --tensor kv_lengths=lengths.npy --dtype float32"""

COMPARE = """\
One row a method: relative error (Frobenius norm) of the output and of the gradients of q, k, v, and
cosine similarity, against exact softmax attention with the same causal, scale and lengths, computed
by the server in float32; seconds of compute (median of --repeat) and peak workspace.
The incoming gradient is normal noise from seed 0. Where q serves as the keys (reformer, routing),
exact attention has k = q; where a method is always causal (transformer_xl, compressive), it is
causal. Lines under the table name these methods. "-": no gradient, as the method does not read that
tensor.

Without --method: every method of the server, local with window_left=64, and those that need a grid,
a layout or a number of keys with values that suit INPUT. --set applies to every method that has the
option. A tensor of INPUT that a method does not take is left out there.

--sweep runs one method with several values of an int or float option, one row a value:
  NAME=16..1024        doubles an int from 16 to 1024
  NAME=1e-6..1         multiplies a float by the root of 10
  NAME=FROM..TO:COUNT  COUNT values at equal ratios, FROM and TO among them
  NAME=16,64,256       these values

examples:
  attn compare genesis_512.safetensors
  attn compare in.npz --set causal=true --no-grad
  attn compare in.npz --method nystromformer --sweep num_landmarks=8..256
  attn compare in.npz --method linear_attention --sweep eps=1e-6..1 --set causal=true --json
  attn compare in.npz --method 'local{window_left:32}' --method 'local{window_left:128}' --json"""

ESTIMATE = """\
What a request would take, without sending its data: compute time alone on the idle device, workspace,
FLOPs. The request is that of `attn run` with INPUT, or one of the shapes that --shape gives.
Lengths, offsets and cu_seqlens count with their values.

examples:
  attn estimate genesis_512.safetensors --method 'local{window_left:64}' --backward
  attn estimate --shape 1,8,1048576,64 --method longformer --set causal=true
  attn estimate --shape 1,32,1,128 --kv-shape 1,8,65536,128 --dtype bfloat16
  attn estimate --shape 4,8,4096,64 --tensor kv_lengths=lengths.npy --json"""

DOCTOR = """\
Asks for health, sends each device one small request and compares its answer with float64. Prints
what CUDA devices have proven against the processor when the server started: a primitive that
disagrees is switched off, and others do its work.

exit codes: 0 all is well, 1 not all is well"""

METHOD = "method and options, as 'local{window_left:64 causal:true}' or just local"
SET = "an option of the method; may be repeated"
ANY_ORDER = "gradients need not be deterministic: cuDNN may compute them sooner"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        say(f"{message} ({self.prog} --help tells more)")
        sys.exit(2)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="attn",
        description="Attention as a service, from the shell.",
        epilog=TOP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"attn {__version__}")
    _add_connection(parser, has_defaults=True)
    names = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")

    def add(name: str, summary: str, epilog: str | None = None) -> _Parser:
        child: _Parser = names.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_connection(child, has_defaults=False)
        return child

    child = add("methods", "list the methods of the server, or explain one")
    child.add_argument("id", nargs="?", metavar="ID", help="a method, as local")
    child.add_argument("--json", action="store_true", help="for programs")
    child.set_defaults(command=commands.methods)

    child = add("run", "run one method on tensors from files", RUN)
    _add_input(child)
    child.add_argument("--method", default="softmax", metavar="SPEC", help=METHOD)
    child.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET)
    child.add_argument("-o", "--output", metavar="OUTPUT", help="where results go")
    child.add_argument("--grad-out", metavar="FILE", help="gradient of out; requests gradients")
    child.add_argument("--any-order", action="store_true", help=ANY_ORDER)
    child.add_argument("--device", help="cpu or cuda:0 (default: the server's choice)")
    child.set_defaults(command=commands.run)

    child = add("estimate", "show time and memory of a request before it is sent", ESTIMATE)
    _add_input(child)
    child.add_argument("--shape", type=_shape, metavar="B,H,N,D", help="of q, k and v, without files")
    child.add_argument("--kv-shape", type=_shape, metavar="B,H,N,D", help="of k and v, if another")
    child.add_argument("--method", default="softmax", metavar="SPEC", help=METHOD)
    child.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET)
    child.add_argument("--backward", action="store_true", help="of the gradients")
    child.add_argument("--any-order", action="store_true", help=ANY_ORDER)
    child.add_argument("--device", help="cpu or cuda:0 (default: the server's choice)")
    child.add_argument("--json", action="store_true", help="for programs")
    child.set_defaults(command=commands.estimate)

    child = add("compare", "compare methods against exact attention", COMPARE)
    _add_input(child)
    child.add_argument("--method", action="append", default=[], metavar="SPEC", help=METHOD)
    child.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET)
    child.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="values of an option of the only --method, as 16..1024 or 16,64,256",
    )
    child.add_argument("--no-grad", action="store_true", help="leave out the gradients")
    child.add_argument("--repeat", type=_count, default=3, help="calls per time (default 3)")
    child.add_argument("--json", action="store_true", help="for programs")
    child.set_defaults(command=compare.compare)

    child = add("info", "show version, devices and limits of the server")
    child.add_argument("--json", action="store_true", help="for programs")
    child.set_defaults(command=commands.info)

    child = add("health", "ask whether the server is serving; exit code 1 if not")
    child.set_defaults(command=commands.health)

    child = add("doctor", "examine the server and each of its devices", DOCTOR)
    child.set_defaults(command=doctor.doctor)
    return parser.parse_args(argv)


def _add_connection(parser: argparse.ArgumentParser, has_defaults: bool) -> None:
    """Before or after the command's name; what stands after it wins."""

    def default(value: str | None) -> str | None:
        return value if has_defaults else argparse.SUPPRESS

    group = parser.add_argument_group("connection")
    group.add_argument(
        "--server",
        default=default(os.environ.get("ATTND_TARGET", DEFAULT_TARGET)),
        metavar="HOST:PORT",
        help=f"or unix:/path (default: $ATTND_TARGET, else {DEFAULT_TARGET})",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=default(None),
        metavar="SECONDS",
        help="of each call; inf is no limit (default: 5 for health, info, estimate; else 600)",
    )
    group.add_argument(
        "--token", default=default(os.environ.get("ATTND_TOKEN")), help="default: $ATTND_TOKEN"
    )
    group.add_argument(
        "--tls", action="store_true", default=default(None), help="encrypt the connection"
    )
    group.add_argument(
        "--ca",
        default=default(None),
        metavar="FILE",
        help="PEM file of the authority to trust (default: the system's); means --tls",
    )


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="?", metavar="INPUT", help=".safetensors or .npz")
    for name in ("q", "k", "v"):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"{name} from this file; FILE:NAME names the array"
        )
    parser.add_argument(
        "--tensor",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="any other tensor; may be repeated",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="convert floating tensors to this first",
    )
    parser.add_argument(
        "--layout", choices=("BHND", "BNHD"), help="of q, k, v (default BHND)"
    )


def _shape(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"must be four ints as B,H,N,D, got {text}")
    return [int(part) for part in parts]


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an int >= 1, got {text}")
    return int(text)
