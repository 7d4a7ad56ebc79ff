// operator new of this test program, which fails on request of a test.
#pragma once

#include <cstdint>

namespace attnd {

// From then on the n-th allocation (from 1) that the server's code makes fails, once: those of
// threads that called ExemptThread and those inside gRPC, protobuf and the C library do not count.
// 0: none fails.
void FailAllocation(int64_t n);

// How many allocations have counted since, up to the one that failed.
int64_t CountedAllocations();
bool HasFailed();

// The calling thread is a client.
void ExemptThread();

}  // namespace attnd
