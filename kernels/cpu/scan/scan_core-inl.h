// What the jobs of scan share: tiles of a block, decays and shifts of its keys, its normalisers.
#if defined(ATTND_CPU_SCAN_CORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_CORE_INL_H_
#undef ATTND_CPU_SCAN_CORE_INL_H_
#else
#define ATTND_CPU_SCAN_CORE_INL_H_
#endif

#include "kernels/cpu/scan/scan_delta-inl.h"
#include "kernels/cpu/scan/scan_recur-inl.h"
#include "kernels/cpu/scan/scan_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Columns [begin, end) of the last axis.
inline View Columns(View view, int64_t begin, int64_t end) {
  if (!view.given()) return view;
  const int last = view.shape.rank - 1;
  view.data = view.As<std::byte>() + begin * view.stride[last] * SizeOf(view.dtype);
  view.shape.dims[last] = end - begin;
  return view;
}

// Element (b, h, n, d) of a float32 tensor with any strides; n of a [B,H,N] one.
inline float& FloatAt(const View& view, int64_t b, int64_t h, int64_t n, int64_t d = 0) {
  return view.As<float>()[b * view.stride[0] + h * view.stride[1] + n * view.stride[2] +
                          d * view.stride[3]];
}

// x = e^x for x <= 0, n floats; n is rounded up to whole vectors.
HWY_INLINE void ExpRow(float* x, int64_t n) {
  const DF d;
  for (int64_t c = 0; c < n; c += kLanes) hn::StoreU(ExpNegative(d, hn::LoadU(d, x + c)), d, x + c);
}

// Every sum over keys is kept relative to e^shift. Only kExp has shifts, the maximum of the keys
// summed so far: as it rises, the sums decay. All other maps have shift 0.
struct ScanCore {
  const ScanItem& item;
  const ScanParams& params;
  const ScanProblem& problem;
  const ScanLayout layout;
  const ScanWalk walk;
  const int64_t D, group, block;
  const bool shifted, delta;
  Tile q, k, v, o, decay;
  Tile prefix;
  Tile seen;  // z as the queries of the block read it, see PassKeys
  float *const s, *const z, *const sum;
  float *const q_shift, *const k_shift, *const row_shift, *const row_d, *const beta, *const factor;
  float* const shared_decay;  // of each key, where its features share one
  Ahead ahead;
  // q, k, or only their features from first_feature on, if an item needs no others.
  View queries_from, keys_from;
  int64_t first_feature = 0;
  bool walks_rows = false;   // whether an item reads its tokens' features only as ReadsInPlace says
  float shift = kNothing;    // of the sums
  float rise = 1;            // what the block multiplies all sums with before it adds its keys
  bool is_decaying = false;  // whether any key of the block decays
  const bool shares_decay;   // whether all features of a key have one decay
  bool in_runs = false;      // whether recurrences of the block take its decays as `runs`
  DecayRuns runs;

  ScanCore(const ScanItem& work, float* scratch)
      : item(work),
        params(*work.params),
        problem(*work.problem),
        layout(work),
        walk(WalkOf(work)),
        D(layout.D),
        group(layout.group),
        block(layout.block),
        shifted(params.map == FeatureMap::kExp),
        delta(params.rule == ScanRule::kDelta),
        q{scratch + layout.q, layout.q_pitch, layout.q_width},
        k{scratch + layout.k, layout.q_pitch, layout.q_width},
        v{scratch + layout.v, layout.v_pitch, layout.v_width},
        o{scratch + layout.o, layout.v_pitch, layout.v_width},
        decay{scratch + layout.decay, layout.q_pitch, layout.q_width},
        prefix{scratch + layout.prefix, layout.prefix_pitch, layout.q_width},
        seen(prefix),
        s(scratch + layout.s),
        z(scratch + layout.z),
        sum(scratch + layout.sum),
        q_shift(scratch + layout.q_shift),
        k_shift(scratch + layout.k_shift),
        row_shift(scratch + layout.row_shift),
        row_d(scratch + layout.row_d),
        beta(scratch + layout.beta),
        factor(scratch + layout.factor),
        shared_decay(scratch + layout.shared_decay),
        ahead(/*takes=*/params.causal),
        queries_from(problem.q),
        keys_from(problem.k),
        shares_decay(shifted || (problem.log_decay.given() && problem.log_decay.shape[3] == 1)) {}

  // Begins to list what the next block touches.
  void FetchFeatures(const ScanBlock& next) {
    ahead.Clear();
    ahead.Add(Keys(keys_from, next));
    FetchQueries(queries_from, next);
    if (problem.log_decay.given() && problem.log_decay.shape[3] > 1) {
      ahead.Add(Keys(problem.log_decay, next));
    }
  }
  void FetchQueries(const View& view, const ScanBlock& next) {
    for (int64_t g = 0; g < group; ++g) ahead.Add(Queries(view, g, next));
  }
  // Rows that are stored past the caches are not fetched.
  void FetchStored(const RowsOf& rows) {
    if (rows.view.given() && !RowStore(rows).streams()) ahead.Add(rows);
  }

  RowsOf Queries(const View& view, int64_t g, const ScanBlock& at) const {
    return {view, item.b, item.kv_head * group + g, at.q, at.queries};
  }
  RowsOf Keys(const View& view, const ScanBlock& at) const {
    return {view, item.b, item.kv_head, at.k, at.keys};
  }
  // What is loaded of a tile of features.
  Tile Loaded(const Tile& tile) const {
    return {tile.data + first_feature, tile.pitch, ScanWidth::Of(keys_from.shape[3])};
  }
  // Rows of head g in a tile of queries.
  Tile OfHead(const Tile& tile, int64_t g) const {
    return {tile.Row(g * block), tile.pitch, tile.width};
  }
  Series RowSeries(const Tile& tile) const {
    return {.data = tile.data, .term = block * tile.pitch, .token = tile.pitch};
  }

  // Rows of the block's keys, times the beta of each.
  void ScaleByBeta(const ScanBlock& at, const Tile& tile) const {
    if (problem.beta.given()) ScaleRows(beta, at.keys, tile);
  }

  // Whether rows of features can be read where they lie, several of them side by side and each from
  // its begin to its end: rows of a few kilobytes would fight for the same sets of L1.
  bool ReadsInPlace(const View& from) const {
    constexpr int64_t kMostStride = 512;
    return walks_rows && params.map == FeatureMap::kIdentity && params.offset == 0 &&
           IsClose(from, k.width) && from.stride[2] <= kMostStride;
  }

  void LoadQueries(const ScanBlock& at) {
    if (group == 1 && at.queries > 0 && ReadsInPlace(queries_from)) {
      q = InPlace(Queries(queries_from, 0, at));
      return;
    }
    for (int64_t g = 0; g < group && at.queries > 0; ++g) {
      LoadFeatures(params.map, Queries(queries_from, g, at), Loaded(OfHead(q, g)),
                   q_shift + g * block, static_cast<float>(params.offset));
    }
  }

  // Features, decays and beta of the block's keys. `kept_shift`: the shift after each key of the
  // sequence, if it is known; else shifts follow `shift`, and that is moved on.
  void LoadKeys(const ScanBlock& at, const float* kept_shift = nullptr) {
    rise = 1;
    is_decaying = false;
    if (at.keys == 0) {
      row_shift[0] = shift;
      return;
    }
    if (ReadsInPlace(keys_from)) {
      k = InPlace(Keys(keys_from, at));
    } else {
      LoadFeatures(params.map, Keys(keys_from, at), Loaded(k), k_shift,
                   static_cast<float>(params.offset));
    }
    if (shifted) {
      FindShifts(at, kept_shift);
      ApplyShifts(at);
    }
    if (problem.log_decay.given()) LoadDecays(at);
    for (int64_t t = 0; t < at.keys; ++t) {
      beta[t] = problem.beta.given() ? FloatAt(problem.beta, item.b, item.kv_head, at.k + t) : 1.0f;
    }
  }

  // row_shift[t + 1] = shift after key t of the block.
  void FindShifts(const ScanBlock& at, const float* kept_shift) {
    if (kept_shift != nullptr) {
      row_shift[0] = at.k == 0 ? kNothing : kept_shift[at.k - 1];
      std::copy_n(kept_shift + at.k, at.keys, row_shift + 1);
      return;
    }
    row_shift[0] = shift;
    // Keys that all queries of the walk see need no shift of their own.
    const float all = std::max(shift, *std::max_element(k_shift, k_shift + at.keys));
    for (int64_t t = 0; t < at.keys; ++t) {
      row_shift[t + 1] = at.queries == 0 ? all : std::max(row_shift[t], k_shift[t]);
    }
    shift = row_shift[at.keys];
  }

  // Turns rises of the shift into decays, where it is one rise into `rise`, and makes the features
  // relative to it.
  void ApplyShifts(const ScanBlock& at) {
    const int64_t keys = at.keys;
    if (at.queries == 0) rise = ShiftFactor(row_shift[0], row_shift[1]);
    for (int64_t t = 0; t < keys; ++t) {
      factor[t] = k_shift[t] == kNothing ? kNothing : k_shift[t] - row_shift[t + 1];
      if (at.queries == 0) continue;
      const float ratio = ShiftFactor(row_shift[t], row_shift[t + 1]);
      is_decaying = is_decaying || ratio != 1.0f;
      shared_decay[t] = ratio;
    }
    std::fill(factor + keys, factor + ScanWidth::Of(keys), 0.0f);
    ExpRow(factor, keys);
    ScaleRows(factor, keys, k);
  }

  void LoadDecays(const ScanBlock& at) {
    const View& from = problem.log_decay;
    is_decaying = true;
    if (shares_decay) {
      float* const a = shared_decay;
      for (int64_t t = 0; t < at.keys; ++t) {
        a[t] = FloatAt(from, item.b, item.kv_head, at.k + t);
      }
      std::fill(a + at.keys, a + ScanWidth::Of(at.keys), 0.0f);
      ExpRow(a, at.keys);
      // A running maximum rarely rises: most blocks do not decay.
      is_decaying = std::any_of(a, a + at.keys, [](float factor) { return factor != 1.0f; });
      for (int64_t t = 0; t < at.keys && is_decaying && delta; ++t) {
        std::fill_n(decay.Row(t), decay.width, a[t]);
      }
      return;
    }
    for (int64_t t = 0; t < at.keys; ++t) {
      float* row = decay.Row(t);
      const float* source = &FloatAt(from, item.b, item.kv_head, at.k + t);
      if (from.stride[3] == 1) {
        std::copy_n(source, D, row);
      } else {
        for (int64_t c = 0; c < D; ++c) row[c] = source[c * from.stride[3]];
      }
      std::fill(row + D, row + decay.width, 0.0f);
      ExpRow(row, decay.width);
    }
  }

  // How recurrences of the block decay, whose keys are loaded: `by_feature` where features differ.
  // The delta rule reads what it adds to, and knows rows of decays only.
  Decay FindDecay(const ScanBlock& at, bool reverse, Decay by_feature) {
    in_runs = at.keys > 0 && is_decaying && shares_decay && !delta;
    if (in_runs) runs.Find(shared_decay, at.keys, reverse);
    return in_runs ? Decay::kRuns : at.keys > 0 && is_decaying ? by_feature : Decay::kNone;
  }
  // Rows of `heads` heads that a run adds, and those that it reads.
  void IntoRuns(const ScanBlock& at, const Tile& tile, int64_t heads) const {
    for (int64_t g = 0; g < heads && in_runs; ++g)
      ScaleRows(runs.inverse, at.keys, OfHead(tile, g));
  }
  void OutOfRuns(const ScanBlock& at, const Tile& tile, int64_t heads) const {
    for (int64_t g = 0; g < heads && in_runs; ++g)
      ScaleRows(runs.product, at.keys, OfHead(tile, g));
  }
  // x *= the decay of key t, a row of features.
  void DecayBy(int64_t t, float* x) const {
    if (shares_decay) return ScaleRow(shared_decay[t], x, k.width);
    MultiplyRow(decay.Row(t), x, k.width);
  }

  // row_d = phi_q . z for the block's queries; z moves on over its keys.
  void Normalise(const ScanBlock& at) {
    PassKeys(at, 0, k.width, [&](int64_t t) HWY_ATTR {
      for (int64_t g = 0; g < group && at.queries > 0; ++g) {
        row_d[g * block + t] = Dot(q.Row(g * block + t), seen.Row(t), k.width);
      }
    });
  }

  // z of the features [begin, end), whole vectors, moves on over the block's keys. Calls f(t) when
  // seen.Row(t) is what query t reads. Sums within the block start from 0; z, which may be large,
  // is added once, at the end.
  template <class F>
  void PassKeys(const ScanBlock& at, int64_t begin, int64_t end, const F& f) {
    if (at.queries == 0 && !is_decaying) return AddAllToNormaliser(at.keys, begin, end);
    seen = at.keys > 0 ? prefix : Tile{z, 0, prefix.width};
    if (at.keys > 0) std::fill(sum + begin, sum + end, 0.0f);
    for (int64_t t = 0; t < at.count(); ++t) {
      if (at.keys > 0) AddToNormaliser(t, begin, end);
      f(t);
    }
    if (at.keys > 0) std::copy_n(prefix.Row(at.keys - 1) + begin, end - begin, z + begin);
  }

  void AddAllToNormaliser(int64_t keys, int64_t begin, int64_t end) {
    const DF d;
    if (rise != 1) ScaleRow(rise, z + begin, end - begin);
    for (int64_t c = begin; c < end; c += kLanes) {
      VF total = hn::Zero(d);
      for (int64_t t = 0; t < keys; ++t) {
        total = hn::MulAdd(hn::Set(d, beta[t]), hn::LoadU(d, k.Row(t) + c), total);
      }
      hn::StoreU(hn::Add(hn::LoadU(d, z + c), total), d, z + c);
    }
  }

  void AddToNormaliser(int64_t t, int64_t begin, int64_t end) {
    const DF d;
    const VF b = hn::Set(d, beta[t]);
    float* const to = prefix.Row(t);
    for (int64_t c = begin; c < end; c += kLanes) {
      VF local = hn::LoadU(d, sum + c), before = hn::LoadU(d, z + c);
      if (is_decaying) {
        const VF a = shares_decay ? hn::Set(d, shared_decay[t]) : hn::LoadU(d, decay.Row(t) + c);
        local = hn::Mul(a, local);
        before = hn::Mul(a, before);
        hn::StoreU(before, d, z + c);
      }
      local = hn::MulAdd(b, hn::LoadU(d, k.Row(t) + c), local);
      hn::StoreU(local, d, sum + c);
      hn::StoreU(hn::Add(before, local), d, to + c);
    }
  }

  // Applies the block's rise to `rows` rows of a state.
  void Rise(int64_t rows, const Tile& state) const {
    for (int64_t c = 0; c < rows && rise != 1; ++c) ScaleRow(rise, state.Row(c), state.width);
  }

  // The initial z, which is 0 where it is not given.
  void StartNormaliser() {
    std::fill_n(z, k.width, 0.0f);
    for (int64_t c = 0; c < D && problem.z0.given(); ++c) {
      z[c] = FloatAt(problem.z0, item.b, item.kv_head, c);
    }
  }

  // state = columns `from` of a state, [D, ..]; 0 where it is not given.
  void LoadState(const View& from, const Tile& state) const {
    ZeroTile(state, D);
    for (int64_t c = 0; c < D && from.given(); ++c) {
      for (int64_t i = 0; i < from.shape[3]; ++i) {
        state.Row(c)[i] = FloatAt(from, item.b, item.kv_head, c, i);
      }
    }
  }

  // den(d); 0 where the row is to give 0.
  float Den(float d) const {
    const auto eps = static_cast<float>(params.eps);
    if (shifted) return d;
    switch (params.den) {
      case ScanDen::kAdd:
        return d + eps;
      case ScanDen::kJax:
        return std::fabs(d) <= eps ? d + 2 * eps : d;
      case ScanDen::kClamp:
        return d <= eps ? eps : d;
      case ScanDen::kAbsClamp:
        return std::fabs(d) <= eps ? eps : std::fabs(d);
      case ScanDen::kOne:
        break;
    }
    return 1.0f;
  }
  // What turns a normalised row's sum over values into the output.
  float Reciprocal(float d) const {
    const float den = Den(d);
    return den == 0 ? 0.0f : static_cast<float>(params.scale) / den;
  }
  // kOne and kExp: the logarithm of |what does|. It may be beyond float32 where its product with
  // the sum is not.
  double LogScale(float shifts) const { return std::log(std::fabs(params.scale)) + shifts; }
  float Sign() const { return params.scale < 0 ? -1.0f : 1.0f; }

  // The shift of what query t of the block reads.
  float RowShift(const ScanBlock& at, int64_t t) const {
    return row_shift[at.keys > 0 ? t + 1 : 0];
  }
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
