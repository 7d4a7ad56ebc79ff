// A reply: its tensors, in the memory they were received in.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "attn/v1/attention.pb.h"

namespace attnd::client {

// One tensor of a reply, row-major, without padding. Valid for as long as its Reply, or a copy of
// that, lives.
struct ReplyTensor {
  std::string name;  // "out", "lse"; of gradients the input's name
  attn::v1::DType::Value dtype = attn::v1::DType::unspecified;
  std::vector<int64_t> shape;
  attn::v1::Layout::Value layout = attn::v1::Layout::BHND;
  // The elements in order, where gRPC received them: never empty pieces, cut at any byte, of any
  // alignment. Read them with memcpy or unaligned loads.
  std::vector<std::span<const std::byte>> pieces;

  int64_t bytes() const;
  // `to` has room for bytes().
  void CopyTo(void* to) const;
  // One flat array, the only copy on the way. REQUIRES: sizeof(T) is the size of an element.
  template <class T>
  std::vector<T> ToVector() const;
};

// Keeps the received memory: at least a receive block of 8 KB to 64 KB a piece; drop it when the
// tensors were read. Copies share it.
class Reply {
 public:
  Reply() = default;
  Reply(std::vector<ReplyTensor> tensors, attn::v1::Stats stats, std::vector<std::string> notes,
        std::shared_ptr<const void> memory)
      : tensors_(std::move(tensors)),
        stats_(std::move(stats)),
        notes_(std::move(notes)),
        memory_(std::move(memory)) {}

  const std::vector<ReplyTensor>& tensors() const { return tensors_; }
  // Null: the reply has no tensor of this name.
  const ReplyTensor* Find(absl::string_view name) const;
  const attn::v1::Stats& stats() const { return stats_; }
  // Sentences on what is legal and seldom meant in the request; mostly none.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<ReplyTensor> tensors_;
  attn::v1::Stats stats_;
  std::vector<std::string> notes_;
  std::shared_ptr<const void> memory_;
};

template <class T>
std::vector<T> ReplyTensor::ToVector() const {
  assert(bytes() % static_cast<int64_t>(sizeof(T)) == 0);
  std::vector<T> flat(bytes() / sizeof(T));
  CopyTo(flat.data());
  return flat;
}

}  // namespace attnd::client
