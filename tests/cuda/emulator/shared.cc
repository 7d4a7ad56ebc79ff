#include "shared.h"

#include <cstdint>
#include <cstring>

#include "block.h"
#include "poison.h"

namespace emu {
namespace {

constexpr size_t kTileAlign = 128;

bool IsAligned(const void* p, int bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

Tile NewTile(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, kTileAlign, bytes) != 0) std::abort();
  return {std::unique_ptr<char, Free>(static_cast<char*>(p)), bytes};
}

}  // namespace

void* TakeShared(size_t bytes, const Where& where) {
  const Quiet quiet;
  Block& b = *self->block;
  const auto index = static_cast<size_t>(Self().tiles_taken++);
  if (index == b.tiles_used) {
    b.shared_taken = (b.shared_taken + kTileAlign - 1) / kTileAlign * kTileAlign + bytes;
    if (b.shared_taken > b.shared_bytes) {
      Fail(where, "shared memory: tiles need %zu bytes, the launch gave %zu", b.shared_taken,
           b.shared_bytes);
    }
    if (index == b.tiles.size()) b.tiles.emplace_back();
    Tile& tile = b.tiles[index];
    if (tile.data == nullptr || tile.bytes != bytes) tile = NewTile(bytes);
    Poison(tile.data.get(), bytes);
    ++b.tiles_used;
  }
  if (b.tiles[index].bytes != bytes) {
    Fail(where, "shared memory: threads disagree on tile %zu", index);
  }
  return b.tiles[index].data.get();
}

void CheckShared(const void* p, int bytes, const char* what, const Where& where) {
  const Quiet quiet;
  if (!IsAligned(p, bytes)) Fail(where, "%s: address not aligned to %d bytes", what, bytes);
  const char* c = static_cast<const char*>(p);
  const Block& b = *self->block;
  for (size_t i = 0; i < b.tiles_used; ++i) {
    const Tile& tile = b.tiles[i];
    if (c >= tile.data.get() && c + bytes <= tile.data.get() + tile.bytes) return;
  }
  Fail(where, "%s: address outside every shared tile", what);
}

void CopyAsync(void* to, const void* from, int bytes, int total, const Where& where) {
  if (total != 4 && total != 8 && total != 16) Fail(where, "cp.async: of %d bytes", total);
  if (bytes < 0 || bytes > total) Fail(where, "cp.async: reads %d of %d bytes", bytes, total);
  CheckShared(to, total, "cp.async", where);
  if (!IsAligned(from, total)) Fail(where, "cp.async: source not aligned to %d bytes", total);
  NoteRead(from, static_cast<size_t>(bytes));
  NoteWrite(to, static_cast<size_t>(total));
  const Quiet quiet;
  if (copy_listener != nullptr) {
    copy_listener(to, from, bytes, total, __builtin_return_address(0));
  }
  Poison(to, static_cast<size_t>(total));
  Self().copies.push_back({to, from, bytes, total, Self().group});
  self->block->counters.async_bytes += bytes;
}

void CopyCommit() {
  const Quiet quiet;
  ++Self().group;
}

void CopyWait(int pending) {
  std::vector<Copy>& copies = Self().copies;
  size_t done = 0;
  for (; done < copies.size() && copies[done].group < Self().group - pending; ++done) {
    const Copy& c = copies[done];
    const auto bytes = static_cast<size_t>(c.bytes);
    NoteRead(c.from, bytes);
    NoteWrite(c.to, static_cast<size_t>(c.total));
    const Quiet quiet;
    std::memset(c.to, 0, static_cast<size_t>(c.total));
    std::memcpy(c.to, c.from, bytes);
  }
  const Quiet quiet;
  copies.erase(copies.begin(), copies.begin() + static_cast<int64_t>(done));
}

}  // namespace emu
