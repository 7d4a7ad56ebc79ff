// Ops::Draw.
#include "kernels/core/random.h"
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::Draw(const DrawParams& params, const std::vector<Shape>& shapes) {
  if (!Require(!shapes.empty(), "draw", "needs a problem")) return {};
  const RandomStream stream(params.seed, params.name);
  std::vector<Tensor> tables;
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const Shape& shape : shapes) {
    auto table = std::find_if(tables.begin(), tables.end(),
                              [&](const Tensor& t) { return t[0].shape == shape; });
    if (table == tables.end()) {
      std::vector<float> values(stream_.is_dry() ? 0 : static_cast<size_t>(shape.size()));
      switch (params.distribution) {
        case Distribution::kUniform:
          stream.Uniforms(0, values, params.low, params.high);
          break;
        case Distribution::kNormal:
          stream.Normals(0, values, params.deviation);
          break;
        case Distribution::kTruncatedNormal:
          stream.TruncatedNormals(0, values, params.deviation);
          break;
      }
      tables.push_back(FromHost({shape}, std::vector<std::vector<float>>{std::move(values)}));
      if (!status_.ok()) return {};
      table = tables.end() - 1;
    }
    views.push_back((*table)[0]);
    buffers.push_back(table->buffer(0));
  }
  return Tensor(std::move(views), std::move(buffers));
}

}  // namespace attnd
