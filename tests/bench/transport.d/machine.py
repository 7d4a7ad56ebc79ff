"""The machine that the figures come from."""

import os
import platform
import socket

import table

TCP_CONGESTION = 13
TCP_CONGESTION_BYTES = 16


def congestion_control():
    """TCP congestion control of a connection over the loopback, as the kernel reports it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as connection:
            name = connection.getsockopt(
                socket.IPPROTO_TCP, TCP_CONGESTION, TCP_CONGESTION_BYTES)
    return name.rstrip(b"\0").decode()


def describe():
    return {"cpu": table.cpu(), "cores": os.cpu_count(), "kernel": platform.release(),
            "congestion_control": congestion_control()}
