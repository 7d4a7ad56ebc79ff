// A health check from the outside, for containers: `attnd-server --probe`.
#pragma once

#include <string>

namespace attnd {

// Asks the server that listens on `address` (as given to --grpc; 0.0.0.0 and [::] are asked on the
// loopback) through grpc.health.v1, for at most three seconds. Prints one line; returns the exit
// code: 0 if it answers SERVING, else 1.
int Probe(const std::string& address);

}  // namespace attnd
