// Refusals of a plan, and their messages.
#include "kernels/engine/validate.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "absl/strings/str_join.h"
#include "kernels/method/registry.h"
#include "tests/engine/cpu_engine.h"
#include "tests/plain/plain_device.h"

namespace attnd::testing {
namespace {

class ValidateTest : public ::testing::Test {
 protected:
  // A valid request of B 2, H 4, Hkv 2, Nq 5, Nk 7, D 8, Dv 3; tensors without data.
  static Call Good(const std::string& method) {
    Call call;
    call.method = method;
    Set(&call, "q", {2, 4, 5, 8});
    Set(&call, "k", {2, 2, 7, 8});
    Set(&call, "v", {2, 2, 7, 3});
    if (method == "local") call.options["window_left"] = int64_t{2};
    return call;
  }
  static void Set(Call* call, const std::string& name, const Shape& shape,
                  DType dtype = DType::kF32, Layout layout = Layout::kBHND) {
    call->tensors[name] = DenseView(nullptr, dtype, shape, layout);
  }
  void SetIntegers(Call* call, const std::string& name, std::vector<int32_t> values) {
    integers_.push_back(std::move(values));
    call->tensors[name] = DenseView(integers_.back().data(), DType::kI32,
                                    {static_cast<int64_t>(integers_.back().size())});
  }

  absl::Status Plan(const Call& call) { return engine_->MakePlan(call).status(); }
  // The reasons after `change`, each without "softmax: ".
  std::string Why(const std::function<void(Call*)>& change) {
    Call call = Good("softmax");
    change(&call);
    const absl::Status status = Plan(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    std::string text(status.message());
    for (size_t at; (at = text.find("softmax: ")) != std::string::npos;) text.erase(at, 9);
    return text;
  }

  std::unique_ptr<Engine> engine_ = EngineOn(std::make_unique<PlainDevice>());
  std::deque<std::vector<int32_t>> integers_;
};

TEST_F(ValidateTest, GoodOnesPass) {
  for (const char* method : {"softmax", "local", "linear_attention"}) {
    EXPECT_TRUE(Plan(Good(method)).ok()) << Plan(Good(method));
  }
}

TEST_F(ValidateTest, MethodAndNames) {
  const absl::Status unknown = Plan(Call{.method = "x"});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> ids;
  for (const auto& method : AllMethods()) ids.push_back(method->info().id);
  EXPECT_EQ(unknown.message(), absl::StrCat("request: method must be one of ",
                                            absl::StrJoin(ids, ", "), ", got \"x\""));
  EXPECT_EQ(Why([](Call* c) { Set(c, "foo", {1}); }),
            "tensors must be among q, k, v, q_lengths, kv_lengths, causal_offset, segment_ids_q, "
            "segment_ids_kv, cu_seqlens_q, cu_seqlens_k, bias, alibi_slopes, sink_logits, got "
            "\"foo\"");
  EXPECT_EQ(Why([](Call* c) { c->tensors.erase("k"); }), "k is required, got none");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "grad_out", {2, 4, 5, 3});
            }),
            "grad_out is taken by a backward only, got [2,4,5,3]");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "grad_memory", {2, 4});
            }),
            "grad_memory must name one of its outputs, got [2,4]");
}

TEST_F(ValidateTest, Shapes) {
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "q", {2, 5, 8});
            }),
            "q shape must be [B,H,Nq,D], got [2,5,8]");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "k", {3, 2, 7, 8});
            }),
            "k shape must be [B,Hkv,Nk,D] with B = 2, got [3,2,7,8]");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "k", {3, 2, 7, 9});
            }),
            "k shape must be [B,Hkv,Nk,D] with B = 2 and D = 8, got [3,2,7,9]");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "v", {2, 1, 6, 3});
            }),
            "v shape must be [B,Hkv,Nk,Dv] with Hkv = 2 and Nk = 7, got [2,1,6,3]");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "k", {2, 3, 7, 8});
              Set(c, "v", {2, 3, 7, 3});
            }),
            "H must be a multiple of Hkv, got H = 4 and Hkv = 3");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "q", {2, 4, 5, 0});
              Set(c, "k", {2, 2, 7, 0});
            }),
            "D must be in 1..4096, got 0");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "q", {2, 4, 5, 4097});
              Set(c, "k", {2, 2, 7, 4097});
            }),
            "D must be in 1..4096, got 4097");
  EXPECT_EQ(Why([](Call* c) { Set(c, "v", {2, 2, 7, 0}); }), "Dv must be in 1..4096, got 0");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "q", {2, 4, -1, 8});
            }),
            "Nq must be in 0..1073741824, got -1");
  EXPECT_EQ(Why([](Call* c) { Set(c, "q", {2, 0, 5, 8}); }), "H must be in 1..65536, got 0");
}

TEST_F(ValidateTest, HeadsOfAllRows) {
  const auto sizes = [](const std::string& method, int64_t B, int64_t H, int64_t Hkv) {
    Call call = Good(method);
    Set(&call, "q", {B, H, 0, 1});
    Set(&call, "k", {B, Hkv, 0, 1});
    Set(&call, "v", {B, Hkv, 0, 1});
    return call;
  };
  for (const std::string method : {"softmax", "local", "linear_attention"}) {
    EXPECT_EQ(Plan(sizes(method, 65536, 65536, 65536)),
              absl::InvalidArgumentError(method + ": B * H must be in 1..1048576, got 4294967296"));
    EXPECT_EQ(Plan(sizes(method, 1024, 1025, 1)),
              absl::InvalidArgumentError(method + ": B * H must be in 1..1048576, got 1049600"));
    EXPECT_TRUE(Plan(sizes(method, 1024, 1024, 1024)).ok());
    // A size that is out of range is reported once.
    EXPECT_EQ(Plan(sizes(method, 65537, 1024, 1)),
              absl::InvalidArgumentError(method + ": B must be in 1..65536, got 65537"));
  }
}

TEST_F(ValidateTest, SizesThatOverflow) {
  const int64_t big = int64_t{1} << 30, heads = 1 << 16;
  EXPECT_EQ(Why([&](Call* c) {
              Set(c, "q", {2, heads, big, 8});
            }),
            "q size must be at most 1099511627776 bytes, got [2,65536,1073741824,8] of float32\n"
            "out size must be at most 1099511627776 bytes, got [2,65536,1073741824,3] of float32");
  EXPECT_EQ(Why([&](Call* c) {
              Set(c, "k", {2, 2, INT64_MAX, 8});
              Set(c, "v", {2, 2, INT64_MAX, 3});
            }),
            "Nk must be in 0..1073741824, got 9223372036854775807\n"
            "k size must be at most 1099511627776 bytes, got [2,2,9223372036854775807,8] of "
            "float32\n"
            "v size must be at most 1099511627776 bytes, got [2,2,9223372036854775807,3] of "
            "float32");
}

TEST_F(ValidateTest, TypesAndLayouts) {
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "q", {2, 4, 5, 8}, DType::kI32);
            }),
            "q dtype must be float32, float16 or bfloat16, got int32");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "k", {2, 2, 7, 8}, DType::kF16);
            }),
            "k dtype must be that of q, float32, got float16");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "v", {2, 2, 7, 3}, DType::kF32, Layout::kBNHD);
            }),
            "v layout must be that of q, BHND, got BNHD");
  EXPECT_EQ(Why([](Call* c) { c->tensors["q"].stride[3] = 2; }),
            "q must be dense along its last dimension, got stride 2");
}

TEST_F(ValidateTest, Lengths) {
  EXPECT_EQ(Why([&](Call* c) {
              SetIntegers(c, "kv_lengths", {7, 8});
            }),
            "kv_lengths[1] must be in 0..Nk = 0..7, got 8");
  EXPECT_EQ(Why([&](Call* c) {
              SetIntegers(c, "q_lengths", {-1, 5});
            }),
            "q_lengths[0] must be in 0..Nq = 0..5, got -1");
  EXPECT_EQ(Why([&](Call* c) {
              SetIntegers(c, "kv_lengths", {7, 7, 7});
            }),
            "kv_lengths shape must be [B] with B = 2, got [3]");
  EXPECT_EQ(Why([](Call* c) { Set(c, "causal_offset", {2}, DType::kF32); }),
            "causal_offset dtype must be int32, got float32");
  Call call = Good("softmax");
  SetIntegers(&call, "causal_offset", {INT32_MIN, INT32_MAX});
  SetIntegers(&call, "q_lengths", {0, 5});
  call.options["causal"] = true;
  EXPECT_EQ((*engine_->MakePlan(call))->visible_pairs, 4 * 5 * 7);
}

TEST_F(ValidateTest, Gradients) {
  const auto backward = [](Call* c) { c->direction = Direction::kBackward; };
  EXPECT_EQ(Why(backward), "grad_out or grad_lse is required, got none");
  EXPECT_EQ(Why([&](Call* c) {
              backward(c);
              Set(c, "grad_out", {2, 4, 5, 8});
            }),
            "grad_out shape must be [B,H,Nq,Dv] with Dv = 3, got [2,4,5,8]");
  EXPECT_EQ(Why([&](Call* c) {
              backward(c);
              Set(c, "grad_out", {2, 4, 5, 3}, DType::kBF16);
              Set(c, "grad_lse", {2, 4, 5, 1}, DType::kF16);
            }),
            "grad_lse shape must be [B,H,Nq], got [2,4,5,1]\n"
            "grad_lse dtype must be float32, got float16\n"
            "grad_out dtype must be that of q, float32, got bfloat16");
}

TEST_F(ValidateTest, EveryReasonAtOnce) {
  Call call = Good("local");
  call.options = {{"window_left", int64_t{-3}}, {"speed", true}, {"alibi", int64_t{1}}};
  Set(&call, "k", {3, 2, 7, 8});
  Set(&call, "bias", {1, 1, 5, 8});
  EXPECT_EQ(Plan(call),
            absl::InvalidArgumentError(
                "local: alibi must be a bool, got 1\n"
                "local: speed is not an option of this method, got true\n"
                "local: window_left must be >= -1, got -3\n"
                "local: k shape must be [B,Hkv,Nk,D] with B = 2, got [3,2,7,8]\n"
                "local: bias shape must be broadcastable to [B,H,Nq,Nk] with Nk = 7, got "
                "[1,1,5,8]"))
      << Plan(call);
}

TEST_F(ValidateTest, RulesOfTheMethods) {
  Call call = Good("local");
  call.options.clear();
  EXPECT_EQ(Plan(call).message(),
            "local: window_left is required when granularity is token, got none");
  call.options["granularity"] = std::string("block");
  EXPECT_EQ(Plan(call).message(), "local: block is required when granularity is block, got none");
  call.options["block"] = int64_t{0};
  EXPECT_EQ(Plan(call).message(), "local: block must be >= 1, got 0");
  call = Good("linear_attention");
  call.options = {{"scale", 0.0}, {"eps", -1e-3}, {"chunk_size", int64_t{1025}}};
  EXPECT_EQ(Plan(call).message(),
            "linear_attention: chunk_size must be in 1..1024, got 1025\n"
            "linear_attention: eps must be >= 0 and <= 1e+30, got -0.001\n"
            "linear_attention: scale must be > 0 and <= 1e+30, got 0");
  call = Good("linear_attention");
  SetIntegers(&call, "causal_offset", {0, 0});
  EXPECT_EQ(Plan(call).message(),
            "linear_attention: tensors must be among q, k, v, q_lengths, kv_lengths, "
            "state_s, state_z, got \"causal_offset\"");
}

TEST_F(ValidateTest, DeclaredShapesAndTypes) {
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "bias", {3, 1, 1});
              Set(c, "alibi_slopes", {2, 4});
              Set(c, "sink_logits", {1, 4});
            }),
            "bias shape must be broadcastable to [B,H,Nq,Nk] with H = 4, got [3,1,1]\n"
            "sink_logits shape must be [H], got [1,4]");
  EXPECT_EQ(Why([](Call* c) {
              for (const char* name : {"q", "k", "v"}) c->tensors[name].dtype = DType::kBF16;
              Set(c, "bias", {1, 1, 1, 1, 1}, DType::kF16);
              Set(c, "alibi_slopes", {4}, DType::kF32);
              Set(c, "sink_logits", {4}, DType::kBF16);
            }),
            "bias shape must be broadcastable to [B,H,Nq,Nk], got [1,1,1,1,1]\n"
            "bias dtype must be float32 or that of q, bfloat16, got float16");
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "segment_ids_q", {2, 5}, DType::kI32);
              Set(c, "segment_ids_kv", {2, 7});
            }),
            "segment_ids_kv dtype must be int32, got float32");
}

TEST_F(ValidateTest, SequencesOfTheWrongTypeAreNotRead) {
  // Reading two-byte elements as int32 would run past their end.
  EXPECT_EQ(Why([](Call* c) {
              Set(c, "cu_seqlens_q", {2}, DType::kF16);
              Set(c, "cu_seqlens_k", {2}, DType::kF16);
            }),
            "cu_seqlens_q dtype must be int32, got float16\n"
            "cu_seqlens_k dtype must be int32, got float16\n"
            "B must be 1 with packed sequences, got 2");
}

TEST_F(ValidateTest, LengthsWithoutDataCountAsFull) {
  Call call = Good("softmax");
  Set(&call, "kv_lengths", {2}, DType::kI32);
  const auto plan = engine_->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->visible_pairs, 2 * 4 * 5 * 7);
}

TEST_F(ValidateTest, PackedSequences) {
  Call call = Good("softmax");
  Set(&call, "q", {1, 4, 5, 8});
  Set(&call, "k", {1, 2, 7, 8});
  Set(&call, "v", {1, 2, 7, 3});
  SetIntegers(&call, "cu_seqlens_q", {0, 2, 2, 5});
  SetIntegers(&call, "cu_seqlens_k", {0, 3, 5, 7});
  const auto plan = engine_->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->visible_pairs, 4 * (2 * 3 + 0 * 2 + 3 * 2));
  // Without data one sequence counts as holding all rows, which gives an upper bound.
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"}) Set(&call, name, {4}, DType::kI32);
  const auto bound = engine_->MakePlan(call);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ((*bound)->visible_pairs, 4 * 5 * 7);
  EXPECT_GE((*bound)->workspace_bytes, (*plan)->workspace_bytes);
}

TEST_F(ValidateTest, EmptySequencesAreFine) {
  Call call = Good("local");
  Set(&call, "q", {2, 4, 0, 8});
  Set(&call, "k", {2, 2, 0, 8});
  Set(&call, "v", {2, 2, 0, 3});
  EXPECT_TRUE(Plan(call).ok()) << Plan(call);
}

}  // namespace
}  // namespace attnd::testing
