// And, Or, Not, Beside and Over of predicates.
#include "kernels/pattern/predicates/predicate.h"

#include <cassert>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

// The numbers of both shapes; unknown if one of them is, or if they are too many.
TileShape Joined(const TileShape& a, const TileShape& b) {
  TileShape joined = a;
  if (a.size == 0 || b.size == 0 || a.size + b.size > TileShape::kMax) return {};
  for (int i = 0; i < b.size; ++i) joined.numbers[joined.size++] = b.numbers[i];
  return joined;
}

class AndOf : public Predicate {
 public:
  AndOf(Visible a, Visible b) : a_(std::move(a)), b_(std::move(b)) {}
  std::string key() const override { return absl::StrCat("(", a_->key(), " & ", b_->key(), ")"); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    std::vector<TileSpan> outer, inner;
    a_->Spans(q_tile, first, last, &outer);
    for (const TileSpan& a : outer) {
      inner.clear();
      b_->Spans(q_tile, a.first, a.last, &inner);
      for (const TileSpan& b : inner) Emit(b.first, b.last, a.full && b.full, spans);
    }
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    a_->Keep(q_tile, key_tile, mask);
    b_->Keep(q_tile, key_tile, mask);
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return Joined(a_->Shape(q_tile, key_tile), b_->Shape(q_tile, key_tile));
  }
  int64_t bytes() const override { return a_->bytes() + b_->bytes(); }

 private:
  const Visible a_, b_;
};

class OrOf : public Predicate {
 public:
  OrOf(Visible a, Visible b) : a_(std::move(a)), b_(std::move(b)) {}
  std::string key() const override { return absl::StrCat("(", a_->key(), " | ", b_->key(), ")"); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    std::vector<TileSpan> lists[2];
    a_->Spans(q_tile, first, last, &lists[0]);
    b_->Spans(q_tile, first, last, &lists[1]);
    size_t next[2] = {0, 0};
    // From border to border: the spans of both lists that cover [at, until).
    for (int64_t at = first; at < last;) {
      int64_t until = last;
      bool seen = false, full = false;
      for (int i = 0; i < 2; ++i) {
        while (next[i] < lists[i].size() && lists[i][next[i]].last <= at) ++next[i];
        if (next[i] == lists[i].size()) continue;
        const TileSpan& span = lists[i][next[i]];
        until = std::min(until, span.first <= at ? span.last : span.first);
        seen = seen || span.first <= at;
        full = full || (span.first <= at && span.full);
      }
      if (seen) Emit(at, until, full, spans);
      at = until;
    }
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    TileMask other = *mask;
    a_->Keep(q_tile, key_tile, mask);
    b_->Keep(q_tile, key_tile, &other);
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] |= other[k];
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return Joined(a_->Shape(q_tile, key_tile), b_->Shape(q_tile, key_tile));
  }
  int64_t bytes() const override { return a_->bytes() + b_->bytes(); }

 private:
  const Visible a_, b_;
};

class NotOf : public Predicate {
 public:
  explicit NotOf(Visible a) : a_(std::move(a)) {}
  std::string key() const override { return absl::StrCat("!", a_->key()); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    std::vector<TileSpan> hidden;
    a_->Spans(q_tile, first, last, &hidden);
    int64_t at = first;
    for (const TileSpan& span : hidden) {
      Emit(at, span.first, /*full=*/true, spans);
      if (!span.full) Emit(span.first, span.last, /*full=*/false, spans);
      at = span.last;
    }
    Emit(at, last, /*full=*/true, spans);
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    TileMask hidden = *mask;
    a_->Keep(q_tile, key_tile, &hidden);
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= ~hidden[k];
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return a_->Shape(q_tile, key_tile);
  }
  int64_t bytes() const override { return a_->bytes(); }

 private:
  const Visible a_;
};

class BesideOf : public Predicate {
 public:
  BesideOf(Visible left, int64_t tiles, Visible right)
      : left_(std::move(left)), right_(std::move(right)), tiles_(tiles) {}
  std::string key() const override {
    return absl::StrCat("(", left_->key(), " beside ", tiles_, " ", right_->key(), ")");
  }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    if (first < tiles_) left_->Spans(q_tile, first, std::min(last, tiles_), spans);
    if (last <= tiles_) return;
    std::vector<TileSpan> right;
    right_->Spans(q_tile, std::max(first, tiles_) - tiles_, last - tiles_, &right);
    for (const TileSpan& s : right) Emit(s.first + tiles_, s.last + tiles_, s.full, spans);
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    if (key_tile < tiles_) {
      left_->Keep(q_tile, key_tile, mask);
    } else {
      right_->Keep(q_tile, key_tile - tiles_, mask);
    }
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    const bool is_left = key_tile < tiles_;
    const TileShape side{1, {is_left ? 0 : 1}};
    return Joined(
        side, is_left ? left_->Shape(q_tile, key_tile) : right_->Shape(q_tile, key_tile - tiles_));
  }
  int64_t bytes() const override { return left_->bytes() + right_->bytes(); }

 private:
  const Visible left_, right_;
  const int64_t tiles_;
};

class OverOf : public Predicate {
 public:
  OverOf(Visible upper, int64_t tiles, Visible lower)
      : upper_(std::move(upper)), lower_(std::move(lower)), tiles_(tiles) {}
  std::string key() const override {
    return absl::StrCat("(", upper_->key(), " over ", tiles_, " ", lower_->key(), ")");
  }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    if (q_tile < tiles_) {
      upper_->Spans(q_tile, first, last, spans);
    } else {
      lower_->Spans(q_tile - tiles_, first, last, spans);
    }
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    if (q_tile < tiles_) {
      upper_->Keep(q_tile, key_tile, mask);
    } else {
      lower_->Keep(q_tile - tiles_, key_tile, mask);
    }
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return q_tile < tiles_ ? upper_->Shape(q_tile, key_tile) : TileShape{};
  }
  int64_t bytes() const override { return upper_->bytes() + lower_->bytes(); }

 private:
  const Visible upper_, lower_;
  const int64_t tiles_;
};

}  // namespace

TileShape Predicate::Shape(int64_t, int64_t) const { return {}; }

Visible And(Visible a, Visible b) { return std::make_shared<AndOf>(std::move(a), std::move(b)); }
Visible Or(Visible a, Visible b) { return std::make_shared<OrOf>(std::move(a), std::move(b)); }
Visible Not(Visible a) { return std::make_shared<NotOf>(std::move(a)); }
Visible Beside(Visible left, int64_t tiles, Visible right) {
  return std::make_shared<BesideOf>(std::move(left), tiles, std::move(right));
}
Visible Over(Visible upper, int64_t tiles, Visible lower) {
  return std::make_shared<OverOf>(std::move(upper), tiles, std::move(lower));
}

}  // namespace attnd
