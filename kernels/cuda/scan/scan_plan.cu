#include "kernels/cuda/scan/scan_plan.h"

#include <algorithm>

namespace attnd::cuda {
namespace {

ScanLine LineOf(const ScanParams& params, const ScanSeq& seq, bool has_state, bool wants_final) {
  const ScanReach reach(params.causal, seq, has_state, wants_final);
  ScanLine line = {.lead = reach.lead,
                   .ahead = reach.ahead,
                   .used_keys = reach.used_keys,
                   .first_query = reach.first_query,
                   .end_query = reach.end_query};
  if (line.used_keys > 0) line.positions = line.lead + line.used_keys;
  if (line.first_query < line.end_query) {
    line.positions = std::max(line.positions, line.ahead + line.end_query);
  }
  line.segments = std::max<int64_t>(1, DivideUp(line.positions, kScanSegment));
  return line;
}

}  // namespace

ScanView ScanViewOf(const View& view) {
  if (!view.given()) return {};
  return {.data = view.data,
          .b = view.stride[0],
          .h = view.stride[1],
          .n = view.stride[2],
          .d = view.shape.rank > 3 ? view.stride[3] : 0,
          .dtype = view.dtype,
          .given = true};
}

void ScanPlan::Add(const ScanProblem& p, bool wants_final) {
  ScanWork w;
  w.q = ScanViewOf(p.q);
  w.k = ScanViewOf(p.k);
  w.v = ScanViewOf(p.v);
  w.log_decay = ScanViewOf(p.log_decay);
  w.beta = ScanViewOf(p.beta);
  w.s0 = ScanViewOf(p.s0);
  w.z0 = ScanViewOf(p.z0);
  w.B = p.q.shape[0];
  w.H = p.q.shape[1];
  w.Hkv = p.k.shape[1];
  w.Nq = p.q.shape[2];
  w.Nk = p.k.shape[2];
  w.D = static_cast<int>(p.q.shape[3]);
  w.Dv = static_cast<int>(p.v.shape[3]);
  w.scale = params_.scale;
  w.offset = static_cast<float>(params_.offset);
  w.eps = static_cast<float>(params_.eps);
  w.map = params_.map;
  w.den = params_.den;
  w.delta = params_.rule == ScanRule::kDelta;
  w.feature_decays = p.log_decay.given() && p.log_decay.shape[3] > 1;
  w.key_decays = !w.feature_decays && (p.log_decay.given() || w.map == FeatureMap::kExp);
  first_line_.push_back(line_count_);
  for (const ScanSeq& seq : p.seqs) {
    ScanLine line = LineOf(params_, seq, HasState(p), wants_final);
    line.first_segment = w.segments;
    w.segments += line.segments * seq.count;
    line_count_ += seq.count;
    w.most_segments = std::max(w.most_segments, line.segments);
    w.has_blank_queries = w.has_blank_queries || line.end_query - line.first_query < w.Nq;
    w.has_blank_keys = w.has_blank_keys || line.used_keys < w.Nk;
    if (!stream_.is_dry()) lines_.push_back(line);
  }
  line_shares_ += (line_count_ - first_line_.back()) * ShareOf<ScanLine>(1);
  works_.push_back(w);
}

DeviceStatus ScanPlan::Take() {
  constexpr int64_t kAlign = 16;  // floats: a share
  int64_t floats = 0;
  for (const auto& [to, count] : wanted_) floats += DivideUp(count, kAlign) * kAlign;
  if (floats > 0) {
    scratch_ = TakeShared(stream_, floats * static_cast<int64_t>(sizeof(float)));
    if (scratch_ == nullptr) return NoMemory(stream_);
  }
  const size_t bytes = static_cast<size_t>(line_count_) * sizeof(ScanLine);
  const std::span<const std::byte> pieces[] = {
      {reinterpret_cast<const std::byte*>(lines_.data()), bytes}};
  table_ = NewTable(stream_, line_shares_, pieces);
  if (!table_.status.ok()) return table_.status;
  static float none;  // what dry streams point to
  int64_t at = 0;
  for (const auto& [to, count] : wanted_) {
    *to = stream_.is_dry() ? &none : static_cast<float*>(scratch_->data()) + at;
    at += DivideUp(count, kAlign) * kAlign;
  }
  for (size_t i = 0; i < works_.size() && !stream_.is_dry(); ++i) {
    works_[i].lines = table_.As<ScanLine>() + first_line_[i];
  }
  return {};
}

}  // namespace attnd::cuda
