"""Makes `tests.torch` and `tests.methods` importable from anywhere."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

torch.set_num_threads(2)


def pytest_report_header():
    import importlib.metadata

    from tests.methods import library

    lines = [f"library: {library.Engine('', 2).description}"]
    for name in ("torch", "transformers", "local-attention", "axial-attention", "rela-transformer",
                 "xformers", "deepspeed", "mlx", "linformer", "linformer-pytorch",
                 "nystrom-attention", "performer-pytorch", "linear-attention-transformer",
                 "long-short-transformer", "g-mlp-pytorch", "mlp-mixer-pytorch", "timm", "fla-core",
                 "pytorch-fast-transformers"):
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed, its tests are skipped")
    return lines
