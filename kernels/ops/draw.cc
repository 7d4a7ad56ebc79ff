// Ops::Draw.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/stopped.h"
#include "kernels/ops/draw_cache.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/status_of.h"

namespace attnd {

Tensor Ops::Draw(const DrawParams& params, const std::vector<Shape>& shapes) {
  return Draw(std::vector<DrawParams>(shapes.size(), params), shapes);
}

Tensor Ops::Draw(const std::vector<DrawParams>& params, const std::vector<Shape>& shapes) {
  if (!Require(!shapes.empty(), "draw", "needs a problem")) return {};
  if (!Require(params.size() == shapes.size(), "draw", "params of every problem")) return {};
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < shapes.size(); ++p) {
    size_t same = 0;
    while (same < p && !(params[same] == params[p] && shapes[same] == shapes[p])) ++same;
    buffers.push_back(same < p ? buffers[same] : Drawn(params[p], shapes[p]));
    if (!status_.ok()) return {};
    views.push_back(DenseView(buffers.back()->data(), DType::kF32, shapes[p]));
  }
  return Tensor(std::move(views), std::move(buffers));
}

std::shared_ptr<Buffer> Ops::Drawn(const DrawParams& params, const Shape& shape) {
  const int64_t bytes = shape.size() * SizeOf(DType::kF32);
  std::shared_ptr<Buffer> buffer = stream_.workspace().Allocate(bytes);
  if (buffer == nullptr) {
    Fail(absl::ResourceExhaustedError(absl::StrCat("no memory left for ", bytes, " bytes")));
    return nullptr;
  }
  DrawCache::Table table;
  if (stream_.is_dry()) {
    const DrawCost cost = CostOfDraw(params, shape);
    stream_.work().host_bytes += cost.host_bytes;
    // Whether the cache will hold the table is not known, as for built patterns.
    stream_.work().seconds += cost.seconds;
  } else {
    table = draws_ != nullptr ? draws_->Get(params, shape) : NewTable(params, shape);
    if (table == nullptr) Fail(StoppedStatus());
    if (!status_.ok()) return nullptr;
  }
  // A dry stream reads none of these bytes.
  const auto* data = table == nullptr ? nullptr : reinterpret_cast<const std::byte*>(table->data());
  const std::span<const std::byte> values(data, static_cast<size_t>(bytes));
  Fail(StatusOf(stream_.device().Upload(stream_, buffer->data(), {&values, 1}, table)));
  return buffer;
}

}  // namespace attnd
