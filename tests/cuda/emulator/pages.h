// Pages that come and go as a whole.
#pragma once

#include <cstdint>

namespace emu {

constexpr int64_t kPage = 4096;

// A stretch of addresses with memory behind it, which cannot be touched while it is hidden. To hide
// memory or to show it takes microseconds whatever its size: page tables move between two
// stretches of addresses. (mprotect writes every entry: 1 ms for 64 MB.) Where the system cannot
// move them, it is mprotect. Hidden at first. Not thread safe.
class Pages {
 public:
  // `bytes`: of addresses. None of them is in use yet.
  explicit Pages(int64_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* begin() const { return begin_; }
  int64_t used() const { return used_; }

  // The first `bytes` are in use from here on.
  void Use(int64_t bytes);
  void Show();
  void Hide();
  // While shown: closes or opens a part. REQUIRES: all is open when it is hidden.
  void Close(int64_t offset, int64_t bytes);
  void Open(int64_t offset, int64_t bytes);
  // Gives the contents back to the system.
  void Drop(int64_t offset, int64_t bytes);

 private:
  void MoveAll(char* from, char* to, int64_t offset, int64_t bytes);

  const int64_t bytes_;
  char* begin_ = nullptr;
  char* hidden_ = nullptr;  // where the pages are meanwhile; null: they cannot move
  int64_t used_ = 0;
  bool is_shown_ = false;
};

}  // namespace emu
