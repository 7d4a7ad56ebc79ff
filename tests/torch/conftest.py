"""Makes `tests.torch` and `tests.methods` importable from anywhere."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def attention_service(tmp_path_factory):
    """A client of the built server, which ends with the session."""
    from tests.torch import service

    server = service.server(tmp_path_factory.mktemp("server"))
    import attnd

    with attnd.Client(server.target, timeout=60) as client:
        yield client
    assert server.stop() == 0


def pytest_report_header():
    import importlib.metadata

    from tests.methods import library

    lines = [f"library: {library.Engine('', 2).description}"]
    for name in ("torch", "transformers", "local-attention", "axial-attention", "rela-transformer",
                 "xformers", "deepspeed", "mlx", "linformer", "linformer-pytorch",
                 "nystrom-attention", "performer-pytorch", "linear-attention-transformer",
                 "long-short-transformer", "g-mlp-pytorch", "mlp-mixer-pytorch", "timm", "fla-core",
                 "pytorch-fast-transformers", "compressive-transformer-pytorch"):
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed, its tests are skipped")
    return lines
