"""A fault of tests/cuda/faults."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str    # of fault, of which other kernels may have one, too
    what: str    # is wrong
    file: str    # below the root
    old: str     # occurs once
    new: str
    test: str    # notices it
    build: str   # plain, address or thread: in which it does
    source: str  # what is compiled: a .cu or .cc that includes the file, or is it


def faults_of(folder, faults):
    """Faults from (kind, what, file, old, new, test, build, source), files below kernels/cuda/FOLDER."""
    result = []
    for kind, what, file, old, new, test, build, source in faults:
        result.append(Fault(kind, what, f"kernels/cuda/{folder}{file}", old, new, test, build,
                            f"kernels/cuda/{folder}{source or file}"))
    return result
