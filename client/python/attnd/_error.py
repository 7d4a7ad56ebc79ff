"""The one exception of this package."""

import grpc

# The error of grpc.aio when a stream ends while it writes: the server's status is lost.
_LOST_STATUS = "Internal error from Core"
_PERMANENT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)

_NOT_RUNNING = "Is it running? Start it with attnd-server or deploy/quickstart --serve"
_OTHER_NAME = "Is the certificate for another name? Connect by a name or address that is in it"
# By what gRPC's text of a failed connection says, in lower case: what to check then.
_ADVICE = {
    "certificate_verify_failed": "Is the certificate in date, and its authority trusted? tls=True "
    "trusts the system's authorities, tls=PATH (attn --ca PATH) those of a PEM file",
    "wrong_version_number": "Is this port plain text? Connect to the port with TLS, or without tls",
    "hostname verification": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
    "security handshaker": "Does the file of tls hold certificates in PEM?",
    "socket closed": "Does this port want TLS? Give tls (attn --tls or --ca PATH). Is it a gRPC "
    "server?",
}


class Error(Exception):
    """A refusal by the server or the client. `str(error)` holds every reason, one a line.

    code: grpc.StatusCode. RESOURCE_EXHAUSTED and UNAVAILABLE may pass later.
    permanent: sending it again cannot help. True for INVALID_ARGUMENT and UNIMPLEMENTED, and for
    other codes where the server states it, as for a request above its whole budget.
    """

    def __init__(self, code: grpc.StatusCode, message: str, permanent: bool = False):
        super().__init__(code, message, permanent)
        self.code = code
        self.message = message
        self.permanent = permanent or code in _PERMANENT

    @property
    def reasons(self) -> list[str]:
        return self.message.splitlines()

    def __str__(self) -> str:
        return self.message


def invalid(reasons: list[str]) -> Error:
    return Error(grpc.StatusCode.INVALID_ARGUMENT, "\n".join(reasons))


def malformed(reason: object) -> Error:
    """A reply that breaks the protocol."""
    return Error(grpc.StatusCode.INTERNAL, f"reply: {reason}")


def closed() -> Error:
    return Error(grpc.StatusCode.CANCELLED, "client is closed")


def from_rpc(error: grpc.RpcError, target: str) -> Error:
    """The error of a call, with advice where gRPC's own text gives none."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE and _is_connection_failure(details):
        reason = f"{details.rstrip('.')}. {_advice(details)}"
        return Error(code, f"cannot reach attnd server at {target}: {reason}")
    if code == grpc.StatusCode.INTERNAL and details == _LOST_STATUS:
        return Error(
            grpc.StatusCode.UNAVAILABLE, f"{target} ended the stream while a request was written"
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Error(code, f"deadline exceeded at {target}: {details}")
    return Error(code, details or code.name, _forbids_retries(error))


def _advice(details: str) -> str:
    text = details.lower()
    return next((advice for sign, advice in _ADVICE.items() if sign in text), _NOT_RUNNING)


def _is_connection_failure(details: str) -> bool:
    signs = ("failed to connect", "resolving", "resolution", "handshake", "empty address list")
    return any(sign in details.lower() for sign in signs)


def _forbids_retries(error: grpc.RpcError) -> bool:
    # A negative number, or no number.
    trailing = error.trailing_metadata() or ()
    return any(
        name == "grpc-retry-pushback-ms" and not str(value).isdigit() for name, value in trailing
    )
