"""Compiles proto/ into the descriptors that attnd loads (attnd/_proto/attnd.desc).

Descriptors instead of *_pb2 modules: they work with any protobuf runtime, and they stay out of the
default pool, where a program may have its own stubs of the same files.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"
DESCRIPTORS = HERE / "attnd" / "_proto" / "attnd.desc"
FILES = ["attn/v1/attention.proto", "grpc/health/v1/health.proto"]


def compile_descriptors() -> None:
    if not PROTO.is_dir():
        # A source distribution has no proto/ above it, but carries the result.
        if DESCRIPTORS.is_file():
            return
        raise SystemExit(f"attnd: neither {PROTO} nor {DESCRIPTORS} exists")
    from grpc_tools import protoc

    arguments = ["protoc", f"-I{PROTO}", "--include_imports"]
    arguments += [f"--descriptor_set_out={DESCRIPTORS}", *FILES]
    if protoc.main(arguments) != 0:
        raise SystemExit("attnd: protoc failed")


class BuildPy(build_py):
    def run(self) -> None:
        compile_descriptors()
        super().run()


class Sdist(sdist):
    def run(self) -> None:
        compile_descriptors()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
