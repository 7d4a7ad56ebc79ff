// Attention over patterns of tiles on the CPU.
#pragma once

#include "kernels/device/device.h"

namespace attnd {

class CpuDevice;

// Forward. A work item is up to eight tiles of 64 query slots of one head; each walks the visible
// key tiles of its row with a running maximum and sum (online softmax, Milakov & Gimelshein 2018),
// and they take turns on the same keys. Queries lie in vector lanes, so that nothing is ever
// reduced across lanes, keys are read as they lie and a mask word is a set of lanes. Where few
// queries see many keys a row of key tiles is split into items, whose states the last of them
// merges in order. Scratch is a fixed size a thread, and at most 128 states of a tile for each
// sequence.
DeviceStatus CpuAttend(CpuDevice& device, Stream& stream, const AttendArgs& args);

// Backward, P recomputed from lse (Dao et al. 2022, algorithm 4). A work item is a share of the key
// tiles of one kv head: it owns the dk and dv of its keys, and float32 partial sums of all that is
// summed over keys (dq, gradients of the terms; where rows gather, of dk and dv as well). The share
// that finishes last adds them up in fixed order. dbias has items of its own. Scratch: at most four
// such sums a gradient, and a fixed size a thread.
DeviceStatus CpuAttendGrad(CpuDevice& device, Stream& stream, const AttendGradArgs& args);

}  // namespace attnd
