// Limits of tensors and priorities, and the order of reasons.
#include "tests/server/request_fixture.h"

namespace attnd {
namespace {

TEST(RequestTest, TheNumberOfTensorsIsLimited) {
  auto draft = GoodDraft();
  for (int i = 3; i < 256; ++i) draft.Add("t" + std::to_string(i), {1}, 4);
  ASSERT_EQ(draft.request.tensors_size(), 256);
  EXPECT_THAT(Refusal(draft), IsEmpty());
  draft.Add("t256", {1}, 4);
  EXPECT_THAT(Refusal(draft), ElementsAre("request: tensors must be at most 256, got 257"));
}

TEST(RequestTest, RefusesTooManyTensorsInOneLine) {
  auto draft = GoodDraft();
  for (int i = 0; i < 254; ++i) draft.request.add_tensors();
  EXPECT_THAT(Refusal(draft), ElementsAre("request: tensors must be at most 256, got 257"));
}

TEST(RequestTest, RefusesAPriorityAboveThatOfTheCaller) {
  auto draft = GoodDraft();
  draft.request.set_priority(6);
  const DecodeContext limited{.devices = kDevices, .max_priority = 5};
  EXPECT_EQ(DecodeEnvelope(draft.request, draft.raw, limited).envelope,
            absl::InvalidArgumentError("request: priority must be <= 5 from this address "
                                       "(--max-priority of the server), got 6"));
  draft.request.set_priority(5);
  EXPECT_TRUE(DecodeEnvelope(draft.request, draft.raw, limited).envelope.ok());
}

TEST(RequestTest, JoinsTheReasonsOfTheEngine) {
  auto draft = GoodDraft();
  draft.request.set_priority(1000);
  FakeEngine engine;
  engine.status = absl::UnimplementedError("local: alibi is not served by this version, got true");
  EXPECT_THAT(Refusal(draft, engine.context),
              ElementsAre("request: priority must be -100..100, got 1000",
                          "local: alibi is not served by this version, got true"));
  // The code of the engine is kept if only the engine refuses.
  draft.request.set_priority(100);
  EXPECT_EQ(Decode(draft.request, draft.raw, engine.context).status(), engine.status);
}

}  // namespace
}  // namespace attnd
