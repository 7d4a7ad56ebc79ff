// Attention over a pattern whose masks are computed and counted, on a CUDA device of a test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/device.h"
#include "kernels/pattern/builder.h"

namespace attnd::testing {

inline std::unique_ptr<Device> NewDevice(int64_t memory_bytes) {
  CudaDevices found = NewCudaDevices({.memory_bytes = memory_bytes});
  EXPECT_EQ(found.why_not, "");
  return std::move(found.devices.at(0));
}

// Hides a pair of each tile, another one in each; counts the tiles and stops the run at one.
class CountedMasks : public Predicate {
 public:
  void Spans(int64_t, int64_t first, int64_t last, std::vector<TileSpan>* spans) const override {
    spans->push_back({first, last, false});
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    (*mask)[q_tile % kTile] &= ~(uint64_t{1} << key_tile % kTile);
    if (++tiles == stops_at) control->Cancel();
  }
  std::string key() const override { return "counted"; }

  mutable std::atomic<int64_t> tiles = 0;
  int64_t stops_at = -1;
  RunControl* control = nullptr;
};

struct PatternSizes {
  int64_t Nq = 2048, Nk = 2048, nq = 64, nk = 200;
  int64_t B = 1;  // each with a key less than the one before
};

// One head and one feature.
class PatternRun {
 public:
  explicit PatternRun(const PatternSizes& sizes) : sizes_(sizes) {
    PatternBuilder builder(sizes.Nq, sizes.Nk,
                           {.runs = 64, .masks = 0, .looks = 0, .terms = 0, .shapes = 0});
    builder.Add(masks);
    pattern_ = std::make_shared<const Pattern>(std::move(builder).Build());
    masks->tiles = 0;
  }

  // The forward; nothing of the device's memory stays used.
  DeviceStatus On(Device& device, RunControl* control = nullptr) const {
    Stream stream(device, &device.memory(), control);
    const Arrays arrays(sizes_, pattern_, stream);
    const int64_t before = device.memory().stats().used_bytes;
    DeviceStatus status = device.Run(stream, arrays.Forward(nullptr));
    EXPECT_EQ(device.memory().stats().used_bytes, before);
    return status.ok() ? stream.Wait() : status;
  }

  // The forward and its gradient, launches of which share `kept`: dq, dk and dv.
  std::vector<float> WithGradient(Device& device, std::shared_ptr<AttendKept> kept) const {
    Stream stream(device, &device.memory());
    const Arrays arrays(sizes_, pattern_, stream);
    const int64_t before = device.memory().stats().used_bytes;
    EXPECT_TRUE(device.Run(stream, arrays.Forward(kept)).ok());
    EXPECT_TRUE(device.Run(stream, arrays.Backward(kept)).ok());
    if (kept != nullptr) kept->of_device.reset();
    kept.reset();
    EXPECT_EQ(device.memory().stats().used_bytes, before);
    EXPECT_TRUE(stream.Wait().ok());
    return arrays.Gradients(stream);
  }

  // What a plan of both takes.
  int64_t PlannedBytes(Device& device, const std::shared_ptr<AttendKept>& kept) const {
    Stream stream(device, nullptr);
    const Arrays arrays(sizes_, pattern_, stream);
    EXPECT_TRUE(device.Run(stream, arrays.Forward(kept)).ok());
    // What the forward keeps, the gradient does not take once more.
    const int64_t held = stream.workspace().current_bytes();
    EXPECT_EQ(held > 0, kept != nullptr);
    EXPECT_TRUE(device.Run(stream, arrays.Backward(kept)).ok());
    EXPECT_EQ(stream.workspace().current_bytes(), held);
    return stream.workspace().peak_bytes();
  }

  const std::shared_ptr<CountedMasks> masks = std::make_shared<CountedMasks>();

 private:
  // Of small numbers, in device memory that the stream's workspace does not count.
  class Arrays {
   public:
    Arrays(const PatternSizes& sizes, const std::shared_ptr<const Pattern>& pattern, Stream& stream)
        : sizes_(sizes), pattern_(pattern) {
      for (View* rows : {&p_.forward.q, &p_.forward.out, &p_.dout, &p_.dq}) {
        Take(stream, {sizes.B, 1, sizes.Nq, 1}, rows);
      }
      for (View* rows : {&p_.forward.k, &p_.forward.v, &p_.dk, &p_.dv}) {
        Take(stream, {sizes.B, 1, sizes.Nk, 1}, rows);
      }
      Take(stream, {sizes.B, 1, sizes.Nq}, &p_.forward.lse);
      for (int64_t b = 0; b < sizes.B; ++b) {
        const int64_t nq = sizes.nq, nk = sizes.nk - b;
        AttendSeq& seq = p_.forward.seqs.emplace_back();
        seq.nq = nq, seq.nk = nk;
        if (!stream.is_dry()) {
          seq.pattern = pattern_;
          continue;
        }
        seq.is_counted = false;
        seq.pattern_tiles = static_cast<double>(CeilDiv(nq, kTile) * CeilDiv(nk, kTile));
        seq.visible_tiles = seq.pattern_tiles;
      }
    }
    AttendArgs Forward(std::shared_ptr<AttendKept> kept) const {
      return {.params = {}, .problems = {p_.forward}, .kept = std::move(kept)};
    }
    AttendGradArgs Backward(std::shared_ptr<AttendKept> kept) const {
      return {.params = {}, .problems = {p_}, .is_deterministic = true, .kept = std::move(kept)};
    }
    std::vector<float> Gradients(Stream& stream) const {
      std::vector<float> all;
      for (const View* view : {&p_.dq, &p_.dk, &p_.dv}) {
        std::vector<float> one(static_cast<size_t>(view->shape.size()));
        EXPECT_TRUE(stream.device()
                        .Download(stream, view->data, std::as_writable_bytes(std::span<float>(one)))
                        .ok());
        EXPECT_TRUE(stream.Wait().ok());
        all.insert(all.end(), one.begin(), one.end());
      }
      return all;
    }

   private:
    void Take(Stream& stream, const Shape& shape, View* view) {
      *view = DenseView(nullptr, DType::kF32, shape);
      if (stream.is_dry()) return;
      Device& device = stream.device();
      auto buffer = device.memory().Allocate(view->bytes(), stream.queue());
      std::vector<float> values(static_cast<size_t>(shape.size()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) * 0.1f;
      const std::span<const std::byte> pieces[] = {std::as_bytes(std::span<const float>(values))};
      EXPECT_TRUE(device.Upload(stream, buffer->data(), pieces, nullptr).ok());
      view->data = buffer->data();
      buffers_.push_back(std::move(buffer));
    }
    const PatternSizes sizes_;
    const std::shared_ptr<const Pattern> pattern_;
    AttendGradProblem p_;
    std::vector<std::shared_ptr<Buffer>> buffers_;
  };

  const PatternSizes sizes_;
  std::shared_ptr<const Pattern> pattern_;
};

}  // namespace attnd::testing
