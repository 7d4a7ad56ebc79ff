#include "kernels/cuda/element/elementwise.cuh"

#include "kernels/cuda/element/element_cost.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ElementwiseArgs& args) {
  const int operands = args.derivative ? 2 : Operands(args.op);
  ProblemList<ElementWalk> list;
  double bytes = 0, elements = 0;
  bool turns = false;
  for (const ElementwiseProblem& p : args.problems) {
    for (const ElementWalk& walk : WalksOf({&p.a, &p.b, &p.c, &p.out})) {
      list.Add(walk, walk.blocks(kElementsABlock));
      turns = turns || walk.tiled;
    }
    bytes += static_cast<double>(p.a.bytes() + p.b.bytes() + p.c.bytes() + p.out.bytes());
    elements += static_cast<double>(p.out.shape.size());
  }
  const LaunchShape shape = {.threads = kElementThreads,
                             .shared_bytes = turns ? kTurnShared : 0,
                             .seconds = CudaOf(device).Seconds(elements * FlopsOf(args.op), bytes)};
  const ElementKernelOp op = {args.op, args.derivative, args.alpha, args.beta};
  if (operands == 1) return LaunchOver(device, stream, shape, Elementwise<1>, list, op);
  if (operands == 2) return LaunchOver(device, stream, shape, Elementwise<2>, list, op);
  return LaunchOver(device, stream, shape, Elementwise<3>, list, op);
}

}  // namespace attnd::cuda
