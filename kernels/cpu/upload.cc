#include "kernels/cpu/upload.h"

#include <algorithm>
#include <vector>

#include "kernels/core/copy.h"

namespace attnd {

DeviceStatus UploadToCpu(const Cpu& cpu, Stream& stream, void* destination,
                         std::span<const std::span<const std::byte>> spans) {
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  std::byte* to = static_cast<std::byte*>(destination);
  size_t whole = 0;
  for (std::span<const std::byte> span : spans) {
    whole += span.size();
    if (stream.is_dry()) continue;
    while (!span.empty()) {
      const size_t part = std::min<size_t>(span.size(), 1 << 20);
      pieces.push_back({span.data(), to, part});
      to += part;
      span = span.subspan(part);
    }
  }
  // A copy reads and writes.
  const auto bytes = static_cast<double>(whole);
  const double serial = 2 * bytes / (cpu.bytes_per_second / cpu.threads);
  // An echo over the loopback took 14 % and 9 % longer with a second thread for tensors of 256 KB
  // and 1 MB, 8 % and 4 % less for 8 and 32 MB.
  const bool parallel = whole >= kStreamedBytes;
  const auto items = static_cast<int64_t>(bytes / (1 << 20));
  if (Predicted(stream, parallel ? cpu.ParallelSeconds(serial, items) : serial)) {
    return DeviceStatus();
  }
  const auto copy = [&](int64_t item, int) {
    const Piece& piece = pieces[static_cast<size_t>(item)];
    CopyPart(piece.to, piece.from, piece.bytes, whole);
  };
  cpu.pool->ParallelFor(static_cast<int64_t>(pieces.size()), parallel, copy, stream.control());
  return DeviceStatus();
}

}  // namespace attnd
