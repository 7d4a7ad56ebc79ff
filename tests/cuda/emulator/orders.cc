#include "orders.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "device_memory.h"
#include "devices.h"
#include "kernels.h"
#include "options.h"

namespace emu {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr std::chrono::milliseconds kLong{200};

std::atomic<int64_t> repeated{0};

int64_t RepeatsOfEnvironment() {
  const char* const text = std::getenv("EMULATED_CUDA_REPEATS");
  return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
}

// Guarded by memory_turn.
bool IsRepeated(const LaunchShape& shape) {
  static auto& launches = *new std::map<const void*, int64_t>;
  // Without a kernel: of the emulator's own tests.
  return shape.kernel != nullptr && launches[shape.kernel]++ < repeats;
}

// What the memory of all devices held.
class Contents {
 public:
  explicit Contents(const std::vector<DeviceMemory::Piece>& pieces) : pieces_(pieces) {
    size_t bytes = 0;
    for (const DeviceMemory::Piece& piece : pieces) bytes += piece.bytes;
    bytes_.reserve(bytes);
    for (const DeviceMemory::Piece& piece : pieces) {
      bytes_.insert(bytes_.end(), piece.begin, piece.begin + piece.bytes);
    }
  }
  void PutBack() const {
    const char* from = bytes_.data();
    for (const DeviceMemory::Piece& piece : pieces_) {
      std::memcpy(piece.begin, from, piece.bytes);
      from += piece.bytes;
    }
  }
  // Aborts where the memory holds other bits.
  void Compare(const LaunchShape& shape, const char* order) const {
    const char* of_first = bytes_.data();
    for (const DeviceMemory::Piece& piece : pieces_) {
      for (size_t i = 0; std::memcmp(piece.begin, of_first, piece.bytes) != 0; ++i) {
        if (piece.begin[i] == of_first[i]) continue;
        Misuse("%s leaves other bits in %s order: byte %zu of an array of %zu",
               NameOfKernel(shape.kernel).c_str(), order, i, piece.bytes);
      }
      of_first += piece.bytes;
    }
  }

 private:
  const std::vector<DeviceMemory::Piece>& pieces_;
  std::vector<char> bytes_;
};

}  // namespace

int64_t repeats = RepeatsOfEnvironment();
std::mutex memory_turn;

int64_t RepeatedLaunches() { return repeated; }

void RunInOrders(const LaunchShape& shape, const std::function<void()>& run) {
  if (repeats == 0 || !IsRepeated(shape)) return run();
  const std::vector<DeviceMemory::Piece> pieces = DeviceMemory::Get().Pieces();
  int64_t bytes = 0;
  for (const DeviceMemory::Piece& piece : pieces) bytes += static_cast<int64_t>(piece.bytes);
  if (bytes > kMostBytes) return run();
  const Contents before(pieces);
  const auto begin = std::chrono::steady_clock::now();
  run();
  if (std::chrono::steady_clock::now() - begin > kLong) return;
  ++repeated;
  const Contents after(pieces);
  struct Case {
    const char* name;
    Options options;
  };
  const Case others[] = {{"forward", {.order = Order::kForward}},
                         {"reverse", {.order = Order::kReverse}},
                         {"random", {.order = Order::kRandom, .seed = 1}},
                         {"another random", {.order = Order::kRandom, .seed = 2}},
                         {"a random", {.order = Order::kRandom, .seed = 3, .workers = 2}}};
  const Options own = options;
  for (const Case& other : others) {
    // The first run's own.
    if (other.options.order == own.order && other.options.seed == own.seed &&
        other.options.workers == own.workers) {
      continue;
    }
    before.PutBack();
    options = other.options;
    run();
    after.Compare(shape, other.name);
  }
  options = own;
}

}  // namespace emu
