#include "kernels/cuda/rows/key_sort.cuh"

#include <algorithm>

namespace attnd::cuda {
namespace {

// Of a key that is sorted in a tile and of one that is merged, in float32 operations.
constexpr double kTileFlops = 3000, kMergeFlops = 500;
constexpr int64_t kKeyBytes = sizeof(uint64_t);

// Some rows of an entry of the list.
struct Piece {
  KeyRows of;
  int64_t first_row = 0, rows = 0;

  int64_t tiles() const { return DivideUp(of.sorted(), kSortTile); }
  int64_t kept() const { return std::min<int64_t>(of.M, kSortTile); }  // of a tile
  int64_t pitch() const { return std::min(of.sorted(), tiles() * kept()); }
  int passes() const { return Log2Up(tiles(), 62); }
  // Pass `passes` writes the result, and the others two buffers in turn: the sorted keys are one.
  bool NeedsFirst() const { return passes() >= 2 && !of.wants_keys; }
  bool NeedsSecond() const { return passes() >= 1; }
  int64_t RowScratch() const { return (int{NeedsFirst()} + int{NeedsSecond()}) * pitch(); }
};

// Where the passes over one piece read and write.
struct Buffers {
  uint64_t *first = nullptr, *second = nullptr;
  uint64_t* After(const Piece& piece, int pass) const {
    if (pass == piece.passes() && !piece.of.wants_keys) return nullptr;
    return (piece.passes() - pass) % 2 == 0 ? first : second;
  }
};

SortTilesOver TilesOf(const Piece& piece, uint64_t* to) {
  const KeyRows& of = piece.of;
  const int64_t skipped = piece.first_row * of.M;
  return {.x = of.x,
          .chosen = of.chosen == nullptr ? nullptr : of.chosen + skipped,
          .first_row = piece.first_row,
          .rows = piece.rows,
          .keys = of.sorted(),
          .M = of.M,
          .tiles = piece.tiles(),
          .order = of.order,
          .by_index = of.by_index,
          .lanes_log2 = static_cast<uint8_t>(Log2Up(DivideUp(of.sorted(), kSortEach), 8)),
          .kept = piece.kept(),
          .pitch = piece.pitch(),
          .to = to,
          .indices = of.indices == nullptr ? nullptr : of.indices + skipped};
}

MergeRunsOver RunsOf(const Piece& piece, int pass, const Buffers& buffers) {
  const int64_t span = int64_t{kSortTile} << (pass - 1);
  return {.from = buffers.After(piece, pass - 1),
          .to = buffers.After(piece, pass),
          .indices = piece.of.indices == nullptr ? nullptr
                                                 : piece.of.indices + piece.first_row * piece.of.M,
          .keys = piece.of.sorted(),
          .M = piece.of.M,
          .pitch = piece.pitch(),
          .span = span,
          .pairs = DivideUp(piece.of.sorted(), 2 * span),
          .tiles = DivideUp(std::min(piece.of.M, 2 * span), kSortTile)};
}

DeviceStatus MergePass(CudaDevice& device, Stream& stream, const std::vector<Piece>& pieces,
                       const std::vector<Buffers>& buffers, int pass) {
  ProblemList<MergeRunsOver> runs;
  double keys = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (pass > piece.passes()) continue;
    const MergeRunsOver over = RunsOf(piece, pass, buffers[i]);
    runs.Add(over, piece.rows * over.pairs * over.tiles);
    const int64_t most = over.pairs * std::min(over.M, 2 * over.span);
    keys += static_cast<double>(piece.rows * std::min(over.keys, most));
  }
  return LaunchOver(device, stream,
                    {.threads = kSortThreads,
                     .shared_bytes = kMergeRunsShared,
                     .seconds = CudaOf(device).Seconds(kMergeFlops * keys, 2 * kKeyBytes * keys)},
                    MergeRunsKernel, runs);
}

DeviceStatus SortPieces(CudaDevice& device, Stream& stream, const std::vector<Piece>& pieces) {
  int64_t scratch_bytes = 0;
  int passes = 0;
  for (const Piece& piece : pieces) {
    scratch_bytes += ShareOf<uint64_t>(piece.rows * piece.RowScratch());
    passes = std::max(passes, piece.passes());
  }
  const std::shared_ptr<Buffer> scratch =
      scratch_bytes == 0 ? nullptr : TakeShared(stream, scratch_bytes);
  if (scratch_bytes != 0 && scratch == nullptr) return NoMemory(stream);

  auto* next = scratch == nullptr ? nullptr : static_cast<uint64_t*>(scratch->data());
  const auto take = [&](int64_t keys) {
    uint64_t* const buffer = next;
    if (next != nullptr) next += keys;
    return buffer;
  };
  std::vector<Buffers> buffers;
  ProblemList<SortTilesOver> tiles;
  double keys = 0;
  for (const Piece& piece : pieces) {
    Buffers& own = buffers.emplace_back();
    const int64_t keys_of = piece.rows * piece.pitch();
    if (piece.of.wants_keys && piece.of.keys != nullptr) {
      own.first = piece.of.keys + piece.first_row * piece.of.M;
    }
    if (piece.NeedsFirst()) own.first = take(keys_of);
    if (piece.NeedsSecond()) own.second = take(keys_of);
    const SortTilesOver over = TilesOf(piece, own.After(piece, 0));
    const int64_t at_once = over.tiles > 1 ? 1 : kSortThreads >> over.lanes_log2;
    tiles.Add(over, DivideUp(piece.rows, at_once) * over.tiles);
    keys += (over.by_index ? 2 : 1) * static_cast<double>(piece.rows * over.keys);
  }
  const double seconds = CudaOf(device).Seconds(kTileFlops * keys, 12 * keys);
  DeviceStatus sorted =
      LaunchOver(device, stream,
                 {.threads = kSortThreads, .shared_bytes = kSortTilesShared, .seconds = seconds},
                 SortTilesKernel, tiles);
  if (!sorted.ok()) return sorted;
  for (int pass = 1; pass <= passes; ++pass) {
    DeviceStatus merged = MergePass(device, stream, pieces, buffers, pass);
    if (!merged.ok()) return merged;
  }
  return {};
}

// Turns of `rows` rows each that take all of the scratch memory: on a dry stream one stands for
// all, so that a plan takes as long for any number of rows.
DeviceStatus SortTurns(CudaDevice& device, Stream& stream, Piece* piece, int64_t rows) {
  const int64_t turns = piece->rows / rows;
  const Work before = stream.work();
  Piece some = *piece;
  some.rows = rows;
  DeviceStatus status = SortPieces(device, stream, {some});
  stream.work().Repeat(before, turns);
  piece->first_row += turns * rows;
  piece->rows -= turns * rows;
  return status;
}

}  // namespace

DeviceStatus SortKeys(CudaDevice& device, Stream& stream, const std::vector<KeyRows>& list,
                      int64_t most_scratch) {
  std::vector<Piece> pieces;
  int64_t used = 0;
  for (const KeyRows& of : list) {
    if (of.M == 0) continue;
    Piece piece{of, 0, of.rows()};
    const int64_t scratch = piece.RowScratch();
    while (piece.rows > 0) {
      Piece some = piece;
      if (scratch > 0) {
        if (used > 0 && used + scratch > most_scratch) {
          if (DeviceStatus status = SortPieces(device, stream, pieces); !status.ok()) return status;
          pieces.clear();
          used = 0;
        }
        const int64_t of_turn = std::max<int64_t>(most_scratch / scratch, 1);
        if (stream.is_dry() && used == 0 && piece.rows > of_turn) {
          DeviceStatus status = SortTurns(device, stream, &piece, of_turn);
          if (!status.ok()) return status;
          continue;
        }
        const int64_t fitting = std::max<int64_t>((most_scratch - used) / scratch, 1);
        some.rows = std::min(piece.rows, fitting);
        used += some.rows * scratch;
      }
      pieces.push_back(some);
      piece.first_row += some.rows;
      piece.rows -= some.rows;
    }
  }
  return SortPieces(device, stream, pieces);
}

}  // namespace attnd::cuda
