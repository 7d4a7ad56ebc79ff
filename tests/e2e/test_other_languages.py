"""The .proto alone gives usable stubs in other languages: each names its package there."""

import shutil
import subprocess

import pytest
from google.protobuf import descriptor_pb2

from server_process import REPOSITORY

PROTO = REPOSITORY / "proto"
FILES = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "attn/v1").glob("*.proto"))


def generate(folder, *flags):
    """The files that protoc writes into `folder`, by their paths."""
    for tool in ["protoc", *(f"protoc-gen-{f[2:].partition('_out')[0]}" for f in flags if "go" in f)]:
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here (deploy/install-deps --test)")
    command = ["protoc", f"-I{PROTO}", *(f"{flag}={folder}" for flag in flags), *FILES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_go(tmp_path):
    """Without go_package protoc-gen-go refuses the files."""
    made = generate(tmp_path, "--go_out", "--go-grpc_out")
    names = ["attention.pb.go", "attention_grpc.pb.go", "methods.pb.go", "tensor.pb.go"]
    assert sorted(made) == [f"attnd/proto/attn/v1/{name}" for name in names]
    assert all("\npackage attnv1\n" in text for text in made.values())
    stub = made["attnd/proto/attn/v1/attention_grpc.pb.go"]
    assert "Forward(ctx context.Context, in *ForwardRequest" in stub
    head = made["attnd/proto/attn/v1/attention.pb.go"]
    assert "func (x *ForwardReply) GetNotes() []string" in head


def test_java(tmp_path):
    made = generate(tmp_path, "--java_out")
    assert "package attn.v1;" in made["attn/v1/ForwardRequest.java"]
    assert all(path.startswith("attn/v1/") for path in made)


def test_csharp(tmp_path):
    made = generate(tmp_path, "--csharp_out")
    assert sorted(made) == ["Attention.cs", "Methods.cs", "Tensor.cs"]
    assert all("namespace Attn.V1 {" in text for text in made.values())


def test_php(tmp_path):
    made = generate(tmp_path, "--php_out")
    assert "namespace Attn\\V1;" in made["Attn/V1/ForwardRequest.php"]


def test_names_of_node(tmp_path):
    """@grpc/proto-loader, which no Debian package has, reads the .proto itself and names fields as
    protobuf's JSON does: these names must be apart, and no word of JavaScript's objects."""
    described = tmp_path / "set"
    command = ["protoc", f"-I{PROTO}", f"--descriptor_set_out={described}", *FILES]
    subprocess.run(command, check=True, timeout=120)
    files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file
    messages = [message for file in files for message in file.message_type]
    fields = 0
    while messages:
        message = messages.pop()
        messages += message.nested_type
        names = [field.json_name for field in message.field]
        fields += len(names)
        assert len({name.lower() for name in names}) == len(names), (message.name, names)
        assert not {"constructor", "toJSON", "prototype", "hasOwnProperty"} & set(names)
    assert fields > 200
