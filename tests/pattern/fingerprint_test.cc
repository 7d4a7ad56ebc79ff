// Fingerprint: keys of the cache for patterns that were sent as data.
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {
namespace {

int DifferentBits(const std::string& a, const std::string& b) {
  int bits = 0;
  for (size_t i = a.size() - 32; i < a.size(); ++i) {
    bits += std::popcount(static_cast<unsigned>(std::stoi(a.substr(i, 1), nullptr, 16) ^
                                                std::stoi(b.substr(i, 1), nullptr, 16)));
  }
  return bits;
}

// Each bit of the data changes about 64 of the 128 bits, +-6; the last word is mixed least.
TEST(Fingerprint, EveryBitOfTheDataChangesManyOfItsBits) {
  const std::vector<int32_t> data = {3, 0, -1, 77, 12, 1 << 30, 5};
  const std::string whole = Fingerprint(data);
  ASSERT_GT(whole.size(), 32u);
  for (size_t i = 0; i < data.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<int32_t> other = data;
      other[i] = static_cast<int32_t>(static_cast<uint32_t>(other[i]) ^ (1u << bit));
      const std::string changed = Fingerprint(other);
      ASSERT_EQ(changed.size(), whole.size());
      EXPECT_GE(DifferentBits(whole, changed), 24) << "word " << i << " bit " << bit;
    }
  }
}

TEST(Fingerprint, DependsOnTheLengthAndTheOrderOfTheData) {
  std::set<std::string> all;
  for (const std::vector<int32_t>& data : std::vector<std::vector<int32_t>>{
           {}, {0}, {0, 0}, {0, 0, 0}, {1, 2}, {2, 1}, {1, 2, 3, 4}, {3, 4, 1, 2}, {2, 1, 4, 3}}) {
    EXPECT_TRUE(all.insert(Fingerprint(data)).second);
    EXPECT_EQ(all.count(Fingerprint(data)), 1u);
  }
}

}  // namespace
}  // namespace attnd
