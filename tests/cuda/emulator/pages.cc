#include "pages.h"

#include <sys/mman.h>

#include <algorithm>

#include "devices.h"

namespace emu {
namespace {

// What one entry of a page table's upper levels spans: tables move whole between stretches that lie
// alike.
constexpr int64_t kTable = int64_t{1} << 30;
// In use grows by as much.
constexpr int64_t kStep = int64_t{16} << 20;

char* Reserve(int64_t bytes, int access) {
  void* map = mmap(nullptr, static_cast<size_t>(bytes + kTable), access,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (map == MAP_FAILED) Misuse("no addresses for the memory of devices");
  // Of arrays of 16 GiB that are touched here and there, huge pages would take most of the memory.
  madvise(map, static_cast<size_t>(bytes + kTable), MADV_NOHUGEPAGE);
  const auto address = reinterpret_cast<uintptr_t>(map);
  return static_cast<char*>(map) + (kTable - address % kTable) % kTable;
}

void Protect(char* begin, int64_t bytes, int access) {
  if (bytes > 0 && mprotect(begin, static_cast<size_t>(bytes), access) != 0) {
    Misuse("mprotect failed");
  }
}

// The addresses `from` stay mapped, to nothing.
bool Move(char* from, char* to, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  return mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) !=
         MAP_FAILED;
}

}  // namespace

Pages::Pages(int64_t bytes) : bytes_(bytes), begin_(Reserve(bytes, PROT_NONE)) {
  char* const hidden = Reserve(bytes, PROT_READ | PROT_WRITE);
  // With a page in use, all that is split off this mapping later can be joined to it again.
  *hidden = 0;
  if (Move(hidden, begin_, kPage) && Move(begin_, hidden, kPage)) hidden_ = hidden;
  Protect(begin_, kPage, PROT_NONE);
}

void Pages::MoveAll(char* from, char* to, int64_t offset, int64_t bytes) {
  if (Move(from + offset, to + offset, bytes)) return;
  // It consists of several mappings, each of which moves by itself.
  if (bytes <= kPage) Misuse("pages of device memory do not move");
  const int64_t half = bytes / 2 / kPage * kPage;
  MoveAll(from, to, offset, half);
  MoveAll(from, to, offset + half, bytes - half);
}

void Pages::Use(int64_t bytes) {
  if (bytes <= used_) return;
  const int64_t before = used_;
  used_ = std::min((bytes + kStep - 1) / kStep * kStep, bytes_);
  if (!is_shown_) return;
  if (hidden_ != nullptr) {
    MoveAll(hidden_, begin_, before, used_ - before);
  } else {
    Open(before, used_ - before);
  }
}

void Pages::Show() {
  is_shown_ = true;
  if (used_ == 0) return;
  if (hidden_ != nullptr) {
    MoveAll(hidden_, begin_, 0, used_);
  } else {
    Open(0, used_);
  }
}

void Pages::Hide() {
  is_shown_ = false;
  if (used_ == 0) return;
  if (hidden_ != nullptr) MoveAll(begin_, hidden_, 0, used_);
  Close(0, used_);
}

void Pages::Close(int64_t offset, int64_t bytes) { Protect(begin_ + offset, bytes, PROT_NONE); }

void Pages::Open(int64_t offset, int64_t bytes) {
  Protect(begin_ + offset, bytes, PROT_READ | PROT_WRITE);
}

void Pages::Drop(int64_t offset, int64_t bytes) {
  char* const place = hidden_ == nullptr || is_shown_ ? begin_ : hidden_;
  madvise(place + offset, static_cast<size_t>(bytes), MADV_DONTNEED);
}

}  // namespace emu
