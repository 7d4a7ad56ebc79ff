#include "tests/cpu/attend_case.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr int64_t kGuard = 256;
constexpr std::byte kGuardByte{0xA5};

float FromBits(DType dtype, uint16_t bits) {
  if (dtype == DType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

uint16_t ToBits(DType dtype, float value) {
  if (dtype == DType::kF16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  bits += 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

// Largest error of `got`, and whether it is NaN exactly where the truth is not finite.
struct Error {
  double largest = 0;
  bool same_kind = true;
};

template <class T>
Error ErrorOf(const std::vector<T>& got, const std::vector<double>& truth) {
  Error error;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (std::isfinite(truth[i]) && std::isfinite(got[i])) {
      error.largest = std::max(error.largest, std::abs(got[i] - truth[i]));
    } else if (std::isfinite(truth[i]) != std::isfinite(got[i]) ||
               std::isnan(truth[i]) != std::isnan(got[i])) {
      error.same_kind = false;
    }
  }
  return error;
}

void ExpectClose(const std::string& what, DType dtype, const std::vector<float>& got,
                 const std::vector<float>& plain, const std::vector<double>& truth,
                 double largest_term = 0) {
  std::vector<float> rounded = plain;
  double largest = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    rounded[i] = RoundTo(dtype, plain[i]);
    if (std::isfinite(truth[i])) largest = std::max(largest, std::abs(truth[i]));
  }
  const Error ours = ErrorOf(got, truth), theirs = ErrorOf(rounded, truth);
  EXPECT_TRUE(ours.same_kind) << what << ": finite where it must not be, or the reverse";
  EXPECT_LE(ours.largest, 2 * theirs.largest + 1e-6 * std::max(largest, largest_term) + 1e-7)
      << what;
}

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, const Shape& shape, Layout layout) {
  const int64_t bytes = shape.size() * SizeOf(dtype);
  // One element off the alignment of a vector.
  const int64_t front = kGuard + SizeOf(dtype);
  memory_ = std::make_shared<std::vector<std::byte>>(front + bytes + kGuard, kGuardByte);
  std::memset(memory_->data() + front, 0xFF, bytes);
  view_ = DenseView(memory_->data() + front, dtype, shape, layout);
}

char* GuardedTensor::At(int64_t b, int64_t h, int64_t n, int64_t d) const {
  const int64_t last = view_.shape.rank == 4 ? d * view_.stride[3] : 0;
  return view_.As<char>() + SizeOf(view_.dtype) * (b * view_.stride[0] + h * view_.stride[1] +
                                                   n * view_.stride[2] + last);
}

float GuardedTensor::Get(int64_t b, int64_t h, int64_t n, int64_t d) const {
  float wide;
  uint16_t narrow;
  if (view_.dtype == DType::kF32) {
    std::memcpy(&wide, At(b, h, n, d), sizeof(wide));
    return wide;
  }
  std::memcpy(&narrow, At(b, h, n, d), sizeof(narrow));
  return FromBits(view_.dtype, narrow);
}

void GuardedTensor::Set(int64_t b, int64_t h, int64_t n, int64_t d, float value) {
  const uint16_t narrow = view_.dtype == DType::kF32 ? 0 : ToBits(view_.dtype, value);
  const void* from = view_.dtype == DType::kF32 ? static_cast<void*>(&value) : (void*)&narrow;
  std::memcpy(At(b, h, n, d), from, SizeOf(view_.dtype));
}

std::vector<float> GuardedTensor::Dense(int64_t b) const {
  std::vector<float> dense;
  const Shape& s = view_.shape;
  for (int64_t h = 0; h < s[1]; ++h) {
    for (int64_t n = 0; n < s[2]; ++n) {
      for (int64_t d = 0; d < (s.rank == 4 ? s[3] : 1); ++d) dense.push_back(Get(b, h, n, d));
    }
  }
  return dense;
}

std::vector<std::byte> GuardedTensor::Payload() const {
  const std::byte* data = view_.As<std::byte>();
  return std::vector<std::byte>(data, data + view_.bytes());
}

bool GuardedTensor::GuardsIntact() const {
  const int64_t front = kGuard + SizeOf(view_.dtype);
  for (int64_t i = 0; i < static_cast<int64_t>(memory_->size()); ++i) {
    if ((i < front || i >= front + view_.bytes()) && (*memory_)[i] != kGuardByte) return false;
  }
  return true;
}

float RoundTo(DType dtype, float value) {
  return dtype == DType::kF32 ? value : FromBits(dtype, ToBits(dtype, value));
}

Pattern DensePattern(int64_t Nq, int64_t Nk, const std::vector<char>& sees) {
  Pattern pattern;
  pattern.Nq = Nq;
  pattern.Nk = Nk;
  const int64_t q_tiles = (Nq + kTile - 1) / kTile, k_tiles = (Nk + kTile - 1) / kTile;
  std::vector<std::vector<Run>> by_query(q_tiles), by_key(k_tiles);
  const auto append = [](std::vector<Run>& runs, int64_t tile, int32_t mask) {
    if (!runs.empty() && runs.back().mask == mask &&
        runs.back().first + runs.back().count == tile) {
      ++runs.back().count;
    } else {
      runs.push_back({static_cast<int32_t>(tile), 1, mask});
    }
  };
  for (int64_t tq = 0; tq < q_tiles; ++tq) {
    for (int64_t tk = 0; tk < k_tiles; ++tk) {
      TileMask mask = {};
      int64_t seen = 0, pairs = 0;
      for (int64_t j = tk * kTile; j < std::min(Nk, (tk + 1) * kTile); ++j) {
        for (int64_t i = tq * kTile; i < std::min(Nq, (tq + 1) * kTile); ++i) {
          ++pairs;
          if (sees[i * Nk + j] == 0) continue;
          ++seen;
          mask[j % kTile] |= uint64_t{1} << (i % kTile);
        }
      }
      if (seen == 0) continue;
      pattern.visible_pairs += seen;
      ++pattern.visible_tiles;
      int32_t index = Run::kFull;
      if (seen < pairs) {
        index = static_cast<int32_t>(pattern.masks.size());
        pattern.masks.push_back(mask);
      }
      append(by_query[tq], tk, index);
      append(by_key[tk], tq, index);
    }
  }
  const auto flatten = [](const std::vector<std::vector<Run>>& rows) {
    TileRows flat;
    flat.begin.push_back(0);
    for (const auto& runs : rows) {
      flat.runs.insert(flat.runs.end(), runs.begin(), runs.end());
      flat.begin.push_back(static_cast<int64_t>(flat.runs.size()));
    }
    return flat;
  };
  pattern.by_query = flatten(by_query);
  pattern.by_key = flatten(by_key);
  return pattern;
}

std::string AttendSizes::ToString() const {
  return absl::StrCat("B", B, " H", H, "/", Hkv, " Nq", Nq, " Nk", Nk, " D", D, " Dv", Dv, " ",
                      Name(dtype), layout == Layout::kBNHD ? " BNHD" : "", " mask",
                      static_cast<int>(mask), padded ? " padded" : "");
}

AttendCase::AttendCase(const AttendSizes& s, uint64_t seed)
    : sizes(s), scale(1 / std::sqrt(static_cast<double>(s.D))) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](DType dtype, int64_t H, int64_t N, int64_t D, bool queries) {
    GuardedTensor t(dtype, Shape{s.B, H, N, D}, s.layout);
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t n = 0; n < (queries ? seqs[b].nq : seqs[b].nk); ++n) {
          for (int64_t d = 0; d < D; ++d) t.Set(b, h, n, d, normal(random));
        }
      }
    }
    return t;
  };
  for (int64_t b = 0; b < s.B; ++b) {
    AttendSeq seq;
    seq.nq = s.padded ? s.Nq - std::min<int64_t>(s.Nq, 1 + b * 30) : s.Nq;
    seq.nk = s.padded ? s.Nk - std::min<int64_t>(s.Nk, 2 + b * 40) : s.Nk;
    std::vector<char> sees(s.Nq * s.Nk, 0);
    for (int64_t i = 0; i < seq.nq; ++i) {
      for (int64_t j = 0; j < seq.nk; ++j) {
        const uint64_t tile = (i / kTile) * 7919 + j / kTile * 104729 + seed;
        const bool some_bits = random() % 3 != 0;
        sees[i * s.Nk + j] = s.mask == MaskKind::kNone     ? 1
                             : s.mask == MaskKind::kBits   ? some_bits
                             : s.mask == MaskKind::kGiven  ? s.sees(i, j)
                             : s.mask == MaskKind::kCausal ? j <= i + seq.nk - seq.nq
                             : tile % 3 == 0               ? 0
                             : tile % 3 == 1               ? 1
                                                           : some_bits && i % 5 != 0;
      }
    }
    if (s.mask != MaskKind::kNone) {
      // Without padding rows or columns in it: as the engine builds patterns.
      std::vector<char> inner(seq.nq * seq.nk);
      for (int64_t i = 0; i < seq.nq; ++i) {
        for (int64_t j = 0; j < seq.nk; ++j) inner[i * seq.nk + j] = sees[i * s.Nk + j];
      }
      seq.pattern = std::make_shared<Pattern>(DensePattern(seq.nq, seq.nk, inner));
    }
    for (char visible : sees) seq.visible_pairs += visible;
    sees_.push_back(std::move(sees));
    seqs.push_back(std::move(seq));
  }
  q = fill(s.dtype, s.H, s.Nq, s.D, true);
  k = fill(s.dtype, s.Hkv, s.Nk, s.D, false);
  v = fill(s.dtype, s.Hkv, s.Nk, s.Dv, false);
  dout = fill(s.dtype, s.H, s.Nq, s.Dv, true);
  dlse = GuardedTensor(DType::kF32, Shape{s.B, s.H, s.Nq});
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t n = 0; n < seqs[b].nq; ++n) dlse.Set(b, h, n, 0, normal(random));
    }
  }
  out = GuardedTensor(s.dtype, Shape{s.B, s.H, s.Nq, s.Dv}, s.layout);
  lse = GuardedTensor(DType::kF32, Shape{s.B, s.H, s.Nq});
  lse_low = GuardedTensor(DType::kF32, Shape{s.B, s.H, s.Nq});
  dq = GuardedTensor(s.dtype, q.view().shape, s.layout);
  dk = GuardedTensor(s.dtype, k.view().shape, s.layout);
  dv = GuardedTensor(s.dtype, v.view().shape, s.layout);
}

bool AttendCase::Sees(int64_t b, int64_t i, int64_t j) const {
  return sees_[b][i * sizes.Nk + j] != 0;
}

AttendProblem AttendCase::Forward() const {
  return {.q = q.view(),
          .k = k.view(),
          .v = v.view(),
          .out = out.view(),
          .lse = lse.view(),
          .lse_low = lse_low.view(),
          .seqs = seqs};
}

AttendGradProblem AttendCase::Backward() const {
  return {Forward(), dout.view(), dlse.view(), dq.view(), dk.view(), dv.view()};
}

PlainAttendCase AttendCase::Plain(int64_t b) const {
  return {.H = sizes.H,
          .Hkv = sizes.Hkv,
          .Nq = sizes.Nq,
          .Nk = sizes.Nk,
          .D = sizes.D,
          .Dv = sizes.Dv,
          .scale = scale,
          .q = q.Dense(b),
          .k = k.Dense(b),
          .v = v.Dense(b),
          .dout = dout.Dense(b),
          .dlse = dlse.Dense(b),
          .sees = [this, b](int64_t i, int64_t j) { return Sees(b, i, j); }};
}

PlainAttendResult<double> AttendCase::Truth(int64_t b, bool backward) const {
  return PlainAttend<double>(Plain(b), backward, [](double x) { return x; });
}

PlainAttendResult<float> AttendCase::PlainCode(int64_t b, bool backward) const {
  return PlainAttend<float>(Plain(b), backward,
                            [this](float x) { return RoundTo(sizes.dtype, x); });
}

void AttendCase::ExpectForward() const {
  for (int64_t b = 0; b < sizes.B; ++b) {
    const auto truth = Truth(b, /*backward=*/false);
    const auto plain = PlainCode(b, /*backward=*/false);
    ExpectClose("out", sizes.dtype, out.Dense(b), plain.out, truth.out);
    ExpectClose("lse", DType::kF32, lse.Dense(b), plain.lse, truth.lse);
  }
  EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact() && lse_low.GuardsIntact());
}

void AttendCase::ExpectBackward() const {
  for (int64_t b = 0; b < sizes.B; ++b) {
    const auto truth = Truth(b, /*backward=*/true);
    const auto plain = PlainCode(b, /*backward=*/true);
    ExpectClose("dq", sizes.dtype, dq.Dense(b), plain.dq, truth.dq, truth.largest_term);
    ExpectClose("dk", sizes.dtype, dk.Dense(b), plain.dk, truth.dk, truth.largest_term);
    ExpectClose("dv", sizes.dtype, dv.Dense(b), plain.dv, truth.dv);
  }
  EXPECT_TRUE(dq.GuardsIntact() && dk.GuardsIntact() && dv.GuardsIntact());
}

std::vector<std::byte> AttendCase::Outputs(bool backward) const {
  std::vector<std::byte> bytes;
  const auto append = [&](const GuardedTensor& t) {
    const std::vector<std::byte> payload = t.Payload();
    bytes.insert(bytes.end(), payload.begin(), payload.end());
  };
  append(out);
  append(lse);
  if (backward) {
    append(dq);
    append(dk);
    append(dv);
  }
  return bytes;
}

void RunAttend(Device& device, const std::vector<const AttendCase*>& cases, bool backward) {
  BufferPool pool(int64_t{1} << 20, /*poison=*/true);
  Stream stream(device, &pool);
  std::vector<AttendProblem> forward;
  std::vector<AttendGradProblem> gradients;
  for (const AttendCase* c : cases) {
    forward.push_back(c->Forward());
    gradients.push_back(c->Backward());
  }
  const double scale = cases.at(0)->scale;
  ASSERT_TRUE(device.Run(stream, AttendArgs{.params = {.scale = scale}, .problems = forward}).ok());
  if (!backward) return;
  ASSERT_TRUE(
      device.Run(stream, AttendGradArgs{.params = {.scale = scale}, .problems = gradients}).ok());
}

}  // namespace attnd
