#include "kernels/engine/library_test.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "kernels/engine/comparing_device.h"
#include "kernels/engine/random_array.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// matmul of 16-bit matrices in every order of their elements. 2^30 products; all extents differ, so
// that an exchange of two shows.
void LaunchLargeProducts(Device& device, Stream& stream) {
  constexpr int64_t M = 1024, N = 2048, K = 512;
  const auto stored = [](DType dtype, int64_t rows, int64_t columns, bool by_columns) {
    RandomArray array(dtype, {rows, columns}, static_cast<unsigned>(rows + columns));
    if (by_columns) array.view.stride[0] = 1, array.view.stride[1] = rows;
    return array;
  };
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const bool a_by_columns : {false, true}) {
      for (const bool b_by_columns : {false, true}) {
        const RandomArray a = stored(dtype, M, K, a_by_columns),
                          b = stored(dtype, K, N, b_by_columns);
        // Each order of the operands with one of the result, of either dtype.
        const RandomArray out =
            stored(a_by_columns ? dtype : DType::kF32, M, N, a_by_columns == b_by_columns);
        // Errors of the device are in its row; the processor's would be those of SelfTest.
        static_cast<void>(device.Run(
            stream,
            MatMulArgs{.alpha = 0.5, .problems = {{.a = a.view, .b = b.view, .out = out.view}}}));
      }
    }
  }
}

// fft of every dtype, odd and even, in rows and in columns, beyond what one pass of own kernels
// does: a long side, and one with a large prime factor.
void LaunchLargeTransforms(Device& device, Stream& stream) {
  const auto launch = [&](DType dtype, const Shape& shape, bool by_columns) {
    RandomArray x(dtype, shape, 1), out(dtype, shape, 2);
    if (by_columns) x.view.stride[0] = 1, x.view.stride[1] = shape[0];
    static_cast<void>(device.Run(stream, FftArgs{.problems = {{.x = x.view, .out = out.view}}}));
  };
  launch(DType::kF32, {4125, 513}, /*by_columns=*/false);
  launch(DType::kF32, {1000, 2120}, /*by_columns=*/true);
  launch(DType::kF16, {1000, 2120}, /*by_columns=*/false);
  launch(DType::kBF16, {4125, 513}, /*by_columns=*/true);
}

// nq of Nq queries and nk of Nk keys, of which a query sees those of a band.
struct LargeAttention {
  int64_t H, Hkv, Nq, nq, Nk, nk, D, Dv;
  int64_t lo, hi;  // as BandSource
  Layout layout;
};

// One number of a row of the first head: heads that are not finite may be computed otherwise.
void MakeInfinite(int64_t row, RandomArray* array) {
  const View& view = array->view;
  const auto infinity = static_cast<uint16_t>(view.dtype == DType::kF16 ? 0x7c00 : 0x7f80);
  view.As<uint16_t>()[row * view.stride[2]] = infinity;
}

// Tensors of 16-bit numbers. Extents differ, so that an exchange of two shows, and tensors may have
// rows beyond the sequence.
struct LargeTensors {
  LargeTensors(const LargeAttention& of, DType dtype)
      : form(of),
        q(Rows(dtype, of.H, of.Nq, of.D, 0)),
        k(Rows(dtype, of.Hkv, of.Nk, of.D, 0)),
        v(Rows(dtype, of.Hkv, of.Nk, of.Dv, 0)),
        out(Rows(dtype, of.H, of.Nq, of.Dv, 0)),
        lse(DType::kF32, {1, of.H, of.Nq}, 1) {}

  RandomArray Rows(DType dtype, int64_t H, int64_t N, int64_t D, unsigned seed) const {
    RandomArray array(dtype, {1, H, N, D}, static_cast<unsigned>(H + N + D) + seed);
    array.view = DenseView(array.bytes.data(), dtype, array.view.shape, form.layout);
    return array;
  }
  AttendParams params() const { return {.scale = 1 / std::sqrt(static_cast<double>(form.D))}; }
  AttendProblem problem() const {
    const PatternSource source = BandSource(form.Nq, form.Nk, form.lo, form.hi, {form.nq, form.nk});
    AttendSeq seq{.nq = form.nq,
                  .nk = form.nk,
                  .visible_pairs = source.visible_pairs,
                  .visible_tiles = source.visible_tiles};
    if (source.build != nullptr) seq.pattern = std::make_shared<const Pattern>(source.build());
    return {.q = q.view, .k = k.view, .v = v.view, .out = out.view, .lse = lse.view, .seqs = {seq}};
  }

  const LargeAttention form;
  RandomArray q, k, v, out, lse;
};

// attend, of 2^30 multiply-adds each.
void LaunchLargeAttention(Device& device, Stream& stream, std::span<const LargeAttention> forms) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const LargeAttention& form : forms) {
      LargeTensors tensors(form, dtype);
      if (form.hi != kUnbounded) MakeInfinite(form.nk - 1, &tensors.v);
      static_cast<void>(device.Run(
          stream, AttendArgs{.params = tensors.params(), .problems = {tensors.problem()}}));
    }
  }
}

// Libraries have other code for up to 64, up to 128 and more columns.
void LaunchDenseAttention(Device& device, Stream& stream) {
  constexpr LargeAttention kForms[] = {
      {32, 16, 512, 512, 512, 512, 48, 80, kUnbounded, kUnbounded, Layout::kBHND},
      {32, 32, 640, 512, 768, 512, 64, 64, kUnbounded, kUnbounded, Layout::kBNHD},
      {16, 16, 640, 512, 768, 512, 128, 128, kUnbounded, kUnbounded, Layout::kBNHD},
      {16, 16, 640, 256, 768, 512, 256, 256, kUnbounded, kUnbounded, Layout::kBHND},
  };
  LaunchLargeAttention(device, stream, kForms);
}

// Causal, and a window. Most queries of the first head do not see the infinite value of the last
// key, which must not spread to them, as it does where a weight of zero is multiplied by it.
void LaunchAttentionInBands(Device& device, Stream& stream) {
  constexpr LargeAttention kForms[] = {
      {32, 32, 640, 512, 1024, 768, 64, 64, kUnbounded, 256, Layout::kBNHD},
      {32, 16, 768, 768, 768, 768, 80, 64, -255, 128, Layout::kBNHD},
      {24, 24, 768, 768, 768, 768, 128, 128, -255, 128, Layout::kBNHD},
      {24, 24, 640, 256, 768, 512, 256, 256, kUnbounded, 256, Layout::kBHND},
  };
  LaunchLargeAttention(device, stream, kForms);
}

// Dense, causal, and a window of which nobody sees the last keys: infinite, they must not spread to
// the gradients of queries.
void LaunchGradients(Device& device, Stream& stream) {
  constexpr LargeAttention kForms[] = {
      {16, 16, 512, 512, 512, 512, 48, 72, kUnbounded, kUnbounded, Layout::kBHND},
      {20, 20, 640, 512, 1024, 768, 64, 64, -255, 200, Layout::kBNHD},
      {24, 24, 640, 512, 768, 512, 128, 64, kUnbounded, 0, Layout::kBNHD},
      {26, 26, 640, 256, 768, 512, 128, 128, kUnbounded, 128, Layout::kBNHD},
  };
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const LargeAttention& form : kForms) {
      LargeTensors tensors(form, dtype);
      // More than that of all scores, as of sequences that see further keys.
      std::ranges::fill(std::span(tensors.lse.view.As<float>(),
                                  static_cast<size_t>(tensors.lse.view.shape.size())),
                        8.0f);
      if (form.hi != kUnbounded && form.nq - 1 + form.hi < form.nk - 2) {
        MakeInfinite(form.nk - 1, &tensors.k);
        MakeInfinite(form.nk - 2, &tensors.v);
      }
      const RandomArray dout = tensors.Rows(dtype, form.H, form.Nq, form.Dv, 1),
                        dq = tensors.Rows(dtype, form.H, form.Nq, form.D, 2),
                        dk = tensors.Rows(dtype, form.Hkv, form.Nk, form.D, 3),
                        dv = tensors.Rows(dtype, form.Hkv, form.Nk, form.Dv, 4);
      AttendGradArgs args{.params = tensors.params(), .is_deterministic = false};
      args.problems.push_back({.forward = tensors.problem(),
                               .dout = dout.view,
                               .dq = dq.view,
                               .dk = dk.view,
                               .dv = dv.view});
      static_cast<void>(device.Run(stream, std::move(args)));
    }
  }
}

constexpr LibraryTest kTests[] = {
    {.name = "cuBLASLt",
     .part = "cuBLASLt",
     .row = "matmul (cuBLASLt)",
     .launch = LaunchLargeProducts},
    {.name = "cuFFT", .part = "cuFFT", .row = "fft (cuFFT)", .launch = LaunchLargeTransforms},
    {.name = "cuDNN", .part = "cuDNN", .row = "attend (cuDNN)", .launch = LaunchDenseAttention},
    {.name = "cuDNN",
     .part = "cuDNN in bands",
     .row = "attend in bands (cuDNN)",
     .launch = LaunchAttentionInBands},
    {.name = "cuDNN",
     .part = "cuDNN gradients",
     .row = "attend_grad (cuDNN)",
     .launch = LaunchGradients},
};

}  // namespace

std::span<const LibraryTest> LibraryTests() { return kTests; }

const LibraryTest* LibraryTestOf(absl::string_view row) {
  const auto found = std::ranges::find(kTests, row, &LibraryTest::row);
  return found == std::end(kTests) ? nullptr : found;
}

void RunLibraryTest(const LibraryTest& test, Device& device, Device& reference,
                    SelfTestReport* report) {
  ComparingDevice comparing(device, reference);
  {
    Stream stream(comparing, &reference.memory());
    test.launch(comparing, stream);
  }
  comparing.AddTo(report, test.row);
}

}  // namespace attnd
