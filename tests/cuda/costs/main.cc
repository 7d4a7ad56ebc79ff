// Prints the table; of one or more of attend, patterns, scan and rows: those kernels alone;
// `places`: with the lines of code that cost most. `tile`: PrintTile alone.
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/costs/accesses.h"
#include "tests/cuda/costs/table.h"
#include "tests/cuda/emulator/cublas_lt.h"
#include "tests/cuda/emulator/cudnn.h"
#include "tests/cuda/emulator/cufft_stand_in.h"

int main(int argc, char** argv) {
  using namespace attnd::testing;
  std::vector<std::string> names(argv + 1, argv + argc);
  const bool with_places = std::erase(names, "places") > 0;
  // Own kernels are counted.
  emu::cublas_lt = emu::CublasLt::kAbsent;
  emu::cufft = emu::Cufft::kAbsent;
  emu::cudnn = emu::Cudnn::kAbsent;
  StartToCount();
  if (!CountsAreRight()) return 1;
  if (names == std::vector<std::string>{"tile"}) {
    PrintTile();
    return 0;
  }
  const Table table(with_places);
  const std::pair<const char*, void (*)(const Table&)> all[] = {{"attend", PrintAttend},
                                                                {"patterns", PrintAttendPatterns},
                                                                {"scan", PrintScan},
                                                                {"rows", PrintRows}};
  for (const auto& [name, print] : all) {
    bool is_wanted = names.empty();
    for (const std::string& wanted : names) is_wanted = is_wanted || wanted == name;
    if (is_wanted) print(table);
  }
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
