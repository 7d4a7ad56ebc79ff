"""Faults on the host's side: streams, copies, lists of problems."""

from fault import faults_of

SMALL = "CudaDevice.ManySmallCopiesPassThroughTheSlotsInOrder"

FAULTS = faults_of("", [
    ("stream order", "memory is used again before its last use has passed",
     "cuda_queue.cc",
     "return has_ended_ || passed_ >= position;",
     "return has_ended_ || position_ >= position;",
     "CudaDevice.AFreedBufferServesItsOwnStreamAtOnceAndOthersOncePassed", "plain", ""),
    ("stream order", "pinned memory is filled again before it has been copied",
     "staging.cc",
     "  if (error == cudaSuccess && !is_new) error = cudaEventSynchronize(next.passed);\n",
     "",
     SMALL, "plain", ""),
    ("stream order", "bytes are taken before they have arrived",
     "staging.cc",
     "const cudaError_t error = cudaEventSynchronize(slot.passed);\n    if (error == cudaSuccess) {",
     "const cudaError_t error = cudaSuccess;\n    if (error == cudaSuccess) {",
     "CudaDevice.CopiesPiecesOfAnySize", "plain", ""),
    ("host touches device memory", "a table is written by the host",
     "launch.cu",
     "  table.status = StatusOf(queue.staging().Send(table.buffer->data(), pieces, "
     "[] { return true; }),\n                          \"copy of a table\");\n",
     "  std::memcpy(table.buffer->data(), pieces[0].data(), pieces[0].size());\n",
     "RowsOnCuda.OneResultOfMerge", "plain", ""),
    ("source ends too early", "a table is copied from memory that the call frees",
     "launch.cu",
     "  table.status = StatusOf(queue.staging().Send(table.buffer->data(), pieces, "
     "[] { return true; }),\n                          \"copy of a table\");\n",
     "  std::vector<std::byte> all;\n"
     "  for (const auto& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());\n"
     "  table.status = StatusOf(cudaMemcpyAsync(table.buffer->data(), all.data(), all.size(),\n"
     "                                          cudaMemcpyHostToDevice, queue.stream()), \"copy\");\n",
     "RowsOnCuda.OneResultOfMerge", "plain", ""),
    ("wrong list end", "the first block of a problem is taken for one of the problem before it",
     "launch.h",
     "if (block < problems.ends[middle]) {",
     "if (block <= problems.ends[middle]) {",
     "RowsOnCuda.OneResultOfMerge", "plain", "rows/merge.cu"),
    ("wrong list end", "a block between two slices of a launch is left out",
     "launch.cu",
     "  first_ = next_;\n",
     "  first_ = next_ + (next_ > 0 ? 1 : 0);\n",
     "RowSizesOnCuda.SlicesAreOneLaunch", "plain", ""),
    ("shared limits", "a launch lowers what another thread was allowed",
     "launch.cu",
     "static_cast<int>(CudaOf(device_).shared_bytes)",
     "static_cast<int>(bytes)",
     "Launch.SharedMemoryThatAKernelMayHaveIsNeverLowered", "plain", ""),
    ("unplanned memory", "plans leave out copies of patterns",
     "attend/attend_patterns.cu",
     "copy_shares_ += Share((seq.pattern_bytes",
     "copy_shares_ += Share(0 * (seq.pattern_bytes",
     "Isa/AttendGrad.ManyTiles/cuda", "plain", ""),
    ("short memory", "memory serves other streams where there is no event for its work",
     "cuda_queue.cc",
     "  static_cast<void>(MarkerAt(position));  // for the next call\n  return IsPast(position);",
     "  return MarkerAt(position) == nullptr;",
     "ShortMemory.WithoutAnEventABufferServesOthersOnceItsWorkHasPassed", "plain", ""),
    ("short memory", "a launch fails for what the call before it has told",
     "launch.cu",
     "  static_cast<void>(cudaGetLastError());\n",
     "",
     "ShortMemory.ALaunchHasNotTheErrorOfAnEarlierCall", "plain", ""),
    ("short memory", "where there is none for a table of attend the device is said to have failed",
     "attend/attend_patterns.cu",
     "return StatusOf(error, \"copy of a table\");",
     "if (error != cudaSuccess) return {DeviceStatus::Code::kFailed, \"cuda: copy of a table\"};\n"
     "  return {};",
     "ShortMemory.ATableOfAttendThatFindsNoneSaysSo", "plain", ""),
])
