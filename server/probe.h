// A health check from another process, for containers: `attnd-server --probe`.
#pragma once

#include <string>

namespace attnd {

// Queries grpc.health.v1 of the server that listens on `address` (as given to --grpc; 0.0.0.0 and
// [::] stand for the loopback) for at most three seconds. Prints one line; returns the exit code: 0
// if the server answers SERVING, else 1.
int Probe(const std::string& address);

}  // namespace attnd
