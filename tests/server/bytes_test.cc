// Messages as they are received and sent: small parts are copied, large ones referenced.
#include "proto/wire/bytes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

TEST(Bytes, SmallMessagesAreCopiedAndLargeOnesReferred) {
  Received small, large;
  const grpc::ByteBuffer small_bytes = BytesOf("abc"),
                         large_bytes = BytesOf(std::string(70000, 'x'));
  ASSERT_TRUE(Receive(small_bytes, &small).ok());
  ASSERT_TRUE(Receive(large_bytes, &large).ok());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(large_bytes.Dump(&slices).ok());
  EXPECT_EQ(small.bytes, 3);
  ASSERT_EQ(small.pieces.size(), 1u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(small.pieces[0].data()), 3), "abc");
  ASSERT_EQ(large.pieces.size(), slices.size());
  EXPECT_EQ(static_cast<const void*>(large.pieces[0].data()), slices[0].begin());
}

TEST(Bytes, WrappedMemoryIsHeldUntilItsSliceIsGone) {
  auto memory = std::make_shared<std::string>(kWrapBytes, 'x');
  const std::weak_ptr<std::string> watched = memory;
  {
    const grpc::Slice slice = Wrap(memory->data(), memory->size(), memory);
    EXPECT_EQ(static_cast<const void*>(slice.begin()), memory->data());
    memory.reset();
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace attnd
