"""Attention as a service, from Python: NumPy in, NumPy out.

    import attnd
    with attnd.Client("127.0.0.1:8001") as c:
        r = c.forward(q, k, v, method="local", options={"window_left": 64})
        r.out, r.lse, r.stats.compute_seconds
        g = c.backward(q, k, v, grad_out, method="local", options={"window_left": 64})
        g.q, g.k, g.v

Arrays are [B, H, N, D]; see Client. attnd.aio.Client is the same for asyncio, Client.pipeline sends
many requests on one stream.
"""

from attnd import aio
from attnd._error import Error
from attnd._notes import Note
from attnd._results import (
    BackwardResult,
    DeviceInfo,
    Estimate,
    ForwardResult,
    MethodInfo,
    OptionInfo,
    SelfTest,
    ServerInfo,
    Stats,
    Support,
    TensorInfo,
)
from attnd.client import Client
from attnd.pipeline import Pipeline

__version__ = "0.1.0"

__all__ = [
    "BackwardResult",
    "Client",
    "DeviceInfo",
    "Error",
    "Estimate",
    "ForwardResult",
    "MethodInfo",
    "Note",
    "OptionInfo",
    "Pipeline",
    "SelfTest",
    "ServerInfo",
    "Stats",
    "Support",
    "TensorInfo",
    "aio",
]
