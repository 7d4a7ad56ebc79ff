// Tiles of shared memory, and copies to them that end late.
#pragma once

#include <cstddef>

#include "fibers.h"

namespace emu {

// The n-th call of every thread of a block yields the same memory, filled with poison.h. Each
// tile is an allocation of its own: the address sanitizer sees what leaves it. Their sum, with
// every tile at a multiple of 128 bytes, must fit what the launch gave.
void* TakeShared(size_t bytes, const Where& where);

// Aborts unless the bytes lie in one tile, aligned to their number.
void CheckShared(const void* p, int bytes, const char* what, const Where& where);

// cp.async of `total` (4, 8 or 16) bytes, of which the first `bytes` are read and the others are
// zero. `to` holds NaN from here until this thread waits for the copy's group.
void CopyAsync(void* to, const void* from, int bytes, int total, const Where& where);
// Called for each cp.async, with the place of its call; null: by none.
using CopyListener = void (*)(void* to, const void* from, int bytes, int total, const void* code);
inline CopyListener copy_listener = nullptr;
void CopyCommit();
// Until at most `pending` of this thread's groups are under way.
void CopyWait(int pending);

}  // namespace emu
