"""The command `attn`. Exit codes: 0 ok, 1 server or data error, 2 usage."""

import os
import sys
import warnings
from argparse import Namespace

import grpc

from attnd import Error, Note
from attnd.cli.arguments import parse
from attnd.cli.terminal import UsageError, say


def main(argv: list[str] | None = None) -> int:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # the commands show the notes of their replies
        return _run(arguments)


def _run(arguments: Namespace) -> int:
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        say(f"{error} (attn {arguments.name} --help tells more)")
        return 2
    except Error as error:
        say("; ".join(error.reasons) + _hint(error))
    except BrokenPipeError:
        # The reader of our output left (`attn methods | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError) as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted")
    return 1


def _hint(error: Error) -> str:
    if error.code == grpc.StatusCode.UNAUTHENTICATED:
        return " (give a token with --token or ATTND_TOKEN)"
    return ""
