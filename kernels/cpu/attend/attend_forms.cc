// Attention by the form of its patterns: tiles or listed pairs.
#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/attend_list.h"
#include "kernels/cpu/primitives.h"

namespace attnd {
namespace {

// Problems with listed sequences have kernels of their own. In nearly every launch either all
// problems are listed or none is.
bool IsListed(const AttendProblem& p) { return !p.seqs.empty() && p.seqs[0].is_listed; }
bool IsListed(const AttendGradProblem& p) { return IsListed(p.forward); }
template <class Args, class Tiles, class Lists>
DeviceStatus EachForm(const Args& args, const Tiles& tiles, const Lists& lists) {
  const auto is_listed = [](const auto& p) { return IsListed(p); };
  const auto count = std::count_if(args.problems.begin(), args.problems.end(), is_listed);
  if (count == 0) return tiles(args);
  if (count == static_cast<std::ptrdiff_t>(args.problems.size())) return lists(args);
  Args listed{.params = args.params}, rest{.params = args.params};
  for (const auto& problem : args.problems) {
    (IsListed(problem) ? listed : rest).problems.push_back(problem);
  }
  const DeviceStatus status = tiles(rest);
  return status.ok() ? lists(listed) : status;
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const AttendArgs& args) {
  return EachForm(
      args, [&](const AttendArgs& tiles) { return CpuAttend(device, stream, tiles); },
      [&](const AttendArgs& lists) { return CpuAttendLists(device, stream, lists); });
}

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const AttendGradArgs& args) {
  return EachForm(
      args, [&](const AttendGradArgs& tiles) { return CpuAttendGrad(device, stream, tiles); },
      [&](const AttendGradArgs& lists) { return CpuAttendListsGrad(device, stream, lists); });
}

}  // namespace attnd
