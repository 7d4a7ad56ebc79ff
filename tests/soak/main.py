"""The checks of this folder, one after the other; ends with `N passed, N failed`."""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import growth  # noqa: E402
import overload  # noqa: E402

CHECKS = {"growth": growth.check, "overload": overload.check}


def main():
    parser = argparse.ArgumentParser(prog="tests/soak/run")
    parser.add_argument("checks", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}")
    parser.add_argument(
        "--minutes", type=float, default=2.5, help="of mixed load in growth (default 2.5)"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.checks if name not in CHECKS]:
        parser.error(f"no check {unknown[0]!r}, there are: {', '.join(CHECKS)}")
    if not 1.5 <= arguments.minutes <= 10_000:
        parser.error(f"--minutes must be 1.5..10000, got {arguments.minutes}")

    results = []
    for name in arguments.checks or CHECKS:
        print(f"\n== {name}", flush=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"attnd-{name}-"))
        for passed, text in CHECKS[name](folder, arguments.minutes):
            results.append(passed)
            print(f"{'ok    ' if passed else 'FAILED'} {text}", flush=True)
    print(f"\n{sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
