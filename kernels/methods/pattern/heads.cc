#include "kernels/methods/pattern/heads.h"

#include <algorithm>
#include <utility>

namespace attnd {
namespace {

// One of every `step` heads, which stands for that many.
HeadParts SomeHeads(int64_t count, int64_t step,
                    const std::function<PatternParts(int64_t head)>& parts) {
  HeadParts heads;
  for (int64_t h = 0; h < count; h += step) {
    heads.push_back(parts(h));
    for (PatternSource& part : heads.back()) {
      part = OfHeads(std::move(part), step);
      if (step > 1) part.is_counted = part.knows_pairs = false;
    }
  }
  return heads;
}

HeadParts PlannedHeads(const SeenSeq& seq, const HeadRule& rule,
                       const std::function<PatternParts(int64_t head)>& parts) {
  if (rule.differ_by_values) {
    if (rule.bound) return AllHeads(rule.bound());
    HeadParts one = {parts(0)};
    for (PatternSource& part : one[0]) part = OfHeads(std::move(part), rule.count);
    return one;
  }
  const bool is_periodic = rule.period > 0 && rule.count % rule.period == 0;
  const int64_t described = is_periodic ? rule.period : rule.count;
  if (described <= seq.most_sources / rule.work) return SomeHeads(described, 1, parts);
  if (rule.bound) return AllHeads(rule.bound());
  if (rule.period > 0) {
    HeadParts heads = SomeHeads(rule.period, 1, parts);  // about
    for (PatternSource& part : heads[0]) part.knows_pairs = false;
    return heads;
  }
  return SomeHeads(described, (described + seq.most_sources - 1) / seq.most_sources, parts);
}

}  // namespace

HeadParts AllHeads(PatternSource source) { return {{std::move(source)}}; }

PatternSource OfHeads(PatternSource source, int64_t heads) {
  source.host.bytes *= heads;
  source.host.seconds *= static_cast<double>(heads);
  source.patterns *= heads;
  return source;
}

HeadParts EachHead(const SeenSeq& seq, const HeadRule& rule,
                   const std::function<PatternParts(int64_t head)>& parts) {
  if (seq.is_planned) return PlannedHeads(seq, rule, parts);
  HeadParts heads;
  for (int64_t h = 0; h < rule.count; ++h) {
    const bool repeats = rule.period > 0 && h >= rule.period;
    heads.push_back(repeats ? heads[h - rule.period] : parts(h));
  }
  return heads;
}

}  // namespace attnd
