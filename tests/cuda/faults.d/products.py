"""Faults in products, transforms and scans."""

from fault import faults_of

LISTS = "MatMulCuda.ListsOfAllDtypesAndTiles"
SIZES = "Isas/MatMul.EverySize/cuda"
FORWARD = "scan_forward_walk.cu"
CHUNKS = "scan_chunks.cu"
BORDERS = "ScanCuda.BordersOfChunksSegmentsAndHeads"

MATMUL = faults_of("matmul/", [
    ("missing wait", "the stage that is multiplied is still being copied",
     "matmul.cuh",
     "simt::CopyWait<S::kStages - 2>();",
     "simt::CopyWait<S::kStages - 1>();",
     LISTS, "plain", "matmul.cu"),
    ("missing barrier", "a stage is loaded while other warps multiply it",
     "matmul.cuh",
     "    // All threads' parts of this stage are there, and none reads the stage that is loaded next.\n"
     "    __syncthreads();\n",
     "",
     "Isas/MatMul.ManyTiles/cuda", "thread", "matmul.cu"),
    ("fragment", "halves of a fragment of the left side are swapped",
     "matmul_tile.cuh",
     "(FirstRow() + odd * 8 + i) * S::kPitchK + upper * 8",
     "(FirstRow() + upper * 8 + i) * S::kPitchK + odd * 8",
     LISTS, "plain", "matmul.cu"),
    ("missing mask", "the last step of a sum has elements beyond K",
     "matmul.cuh",
     "const int count = static_cast<int>(p_.K - k < S::kK ? p_.K - k : S::kK);",
     "const int count = S::kK;",
     LISTS, "plain", "matmul.cu"),
    ("read out of bounds", "rows beyond the last one are read",
     "matmul_tile.cuh",
     "      const bool valid = line < lines && at < length;\n"
     "      simt::CopyAsync(tile + line * kPitch + at, valid",
     "      const bool valid = at < length;\n"
     "      simt::CopyAsync(tile + line * kPitch + at, valid",
     SIZES, "address", "matmul.cu"),
    ("order of a sum", "chunks are added in an order that depends on which threads run first",
     "matmul.cuh",
     "      sum = from[int64_t{member} * of_chunk];\n#pragma unroll 8\n"
     "      for (int64_t chunk = member + team; chunk < p.chunks; chunk += team) {\n"
     "        sum += from[chunk * of_chunk];\n      }",
     "      static unsigned arrivals = 0;\n      const unsigned start = arrivals++;\n"
     "      for (int64_t chunk = 0; team == 1 && chunk < p.chunks; ++chunk) {\n"
     "        sum += from[(start + chunk) % p.chunks * of_chunk];\n      }",
     LISTS, "plain", "matmul.cu"),
    ("missing barrier", "sums of other threads are read before they are there",
     "matmul.cuh",
     "      sums[thread] = sum;\n      __syncthreads();\n",
     "      sums[thread] = sum;\n",
     "MatMulCuda.SumsOfManyChunks", "plain", "matmul.cu"),
    ("divergence", "warps without rows skip a barrier",
     "matmul.cuh",
     "  // Through shared memory, so that threads follow the lines of the result.\n",
     "  if (which + 1 == 1 && threadIdx.x / 32 * 16 > static_cast<unsigned>(block.at.rows)) return;\n",
     LISTS, "plain", "matmul.cu"),
])

SCAN = faults_of("scan/", [
    ("wrong position", "keys decay by what belongs to the key before them",
     "scan_tiles.cuh",
     "w.log_decay.h + t * w.log_decay.n",
     "w.log_decay.h + (t > 0 ? t - 1 : 0) * w.log_decay.n",
     "Scan.DecaysOfAllSizes", "plain", FORWARD),
    ("missing barrier", "results of a tile are stored before all warps have written them",
     "scan_forward_walk.cuh",
     "    if (walks) Walk(p, rows, bad);\n    __syncthreads();\n",
     "    if (walks) Walk(p, rows, bad);\n",
     "Scan.WithoutLse", "thread", FORWARD),
    ("shared tile too small", "the tile of queries lacks its last element",
     "scan_forward_walk.cuh",
     "xq = tiles.Take<float>(queries * S::kK);",
     "xq = tiles.Take<float>(queries * S::kK - 1);",
     "Scan.WithoutLse", "address", FORWARD),
    ("missing mask", "a state of columns beyond the last one is stored",
     "scan_state.cuh",
     "        if (c < columns) f(state.m[r][c], own + row * by_row + c * by_own);",
     "        f(state.m[r][c], own + row * by_row + c * by_own);",
     "ScanCuda.LinesOfSeveralSegments", "plain", FORWARD),
    ("missing rows", "rows whose out has no gradient are left out of chunks",
     "scan_chunk_block.cuh",
     "tensor.Set(w.dout, at.b, h, query, line.first_query, line.end_query, columns);",
     "tensor.Set(w.dout, at.b, h, query, line.first_query,\n"
     "               w.dout.given ? line.end_query : line.first_query, columns);",
     "ScanCuda.AnAbsentGradientOfOutIsZero", "plain", "scan_chunk_grad.cu"),
    ("wrong lane", "sums over features miss those of half of the lanes",
     "scan_state.cuh",
     "    for (int flip = 1; flip < S::kAcross; flip *= 2) {",
     "    for (int flip = 1; flip < S::kAcross / 2; flip *= 2) {",
     "Scan.HeadDims", "plain", FORWARD),
    ("lost state", "segments begin with the state of the first one",
     "scan_forward_walk.cuh",
     "before = Base::FloatsAt(w.states, begin);",
     "before = Base::FloatsAt(w.states, 0);",
     "ScanCuda.LinesOfSeveralSegments", "plain", FORWARD),
    ("missing mask", "queries of a chunk see the key after theirs",
     "scan_chunks.cuh",
     "          if (key > row) {\n",
     "          if (key > row + 1) {\n",
     "Scan.Lengths", "plain", CHUNKS),
    ("missing barrier", "the state advances while other warps read it",
     "scan_chunks.cuh",
     "      __syncthreads();  // the state has been read\n",
     "",
     "Scan.EveryChunkSize", "thread", CHUNKS),
    ("missing barrier", "the state of a gradient of chunks advances while other warps read it",
     "scan_chunk_grad.cuh",
     "        __syncthreads();  // the state has been read\n",
     "",
     BORDERS, "plain", "scan_chunk_grad.cu"),
    ("wrong position", "gradients of later rows take the normaliser's gradient of the key's row",
     "scan_chunk_grad.cuh",
     "if (flow.has_ones) scores[n][i] += to_d[flow.is_forward ? row : key];",
     "if (flow.has_ones) scores[n][i] += to_d[row];",
     BORDERS, "plain", "scan_chunk_grad.cu"),
    ("bad value", "a value that is not finite reaches queries before it",
     "scan_chunks.cuh",
     "if (is_bad && member == 0) Base::SetBadAside(/*later_see=*/true);",
     "is_bad = false;",
     "Scan.BadValuesReachOnlyQueriesThatSeeThem", "plain", CHUNKS),
])

FFT = faults_of("fft/", [
    ("wrong factor", "all elements of a butterfly turn by one root",
     "fft_radix.cuh",
     "parts == 1 ? x[t] : Mul(x[t], roots[p * t * root]);",
     "parts == 1 ? x[t] : Mul(x[t], roots[p * root]);",
     "Isas/FftTest.IsTheDefinition/cuda", "plain", "fft.cu"),
    ("missing barrier", "a pass reads what the one before it may not have written yet",
     "fft_radix.cuh",
     "        RunAnyRadix(radix, x, other, elements, stride, parts, roots, root, n);\n    }\n"
     "    __syncthreads();\n",
     "        RunAnyRadix(radix, x, other, elements, stride, parts, roots, root, n);\n    }\n",
     "FftCuda.OneResult", "thread", "fft.cu"),
])

BATCHES = "CublasLtCuda.BatchesAndListsHaveTheBitsOfTheirMatrices"
LIBRARY = faults_of("", [
    ("batch invariance", "an algorithm of the library that cuts sums is taken",
     "cublas_lt.cc",
     "           parts > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;",
     "           false;",
     BATCHES, "plain", ""),
    ("wrong matrix", "the library gets the first matrix of a batch for all of them",
     "matmul/matmul_library.cu",
     "OffsetOf(view, shape, matrix)",
     "OffsetOf(view, shape, 0)",
     BATCHES, "plain", ""),
    ("wrong list end", "the last piece of a product is as long as the others",
     "matmul/matmul_library.cu",
     "LtProductOf(product, a, b, out, last)",
     "LtProductOf(product, a, b, out, product.rows)",
     BATCHES, "plain", ""),
])

TRANSFORMS = "CufftCuda.BatchesAndListsHaveTheBitsOfTheirMatrices"
LIBRARY_FFT = faults_of("", [
    ("wrong matrix", "the library transforms the first matrix of a batch for all of them",
     "fft/fft_library.cu",
     "OffsetOf(view, matrix)",
     "OffsetOf(view, 0)",
     TRANSFORMS, "plain", ""),
    ("wrong position", "the mirror image of an element lies in its own row",
     "fft/fft_library.cuh",
     "is_mirrored && n > 0 ? c.N - n : n",
     "n",
     TRANSFORMS, "plain", "fft/fft_library.cu"),
    ("lifetime", "a plan ends before the stream has run its work",
     "fft/fft_library.cu",
     "      queue.Hold(t.plan);\n",
     "",
     "Cufft.APlanOutlivesItsWork", "plain", ""),
    ("workspace", "what own kernels need where the library fails is not planned",
     "fft/fft_library.cu",
     "bytes = std::max(bytes + Cufft::kWorkspaceAlign, own_bytes);",
     "bytes += Cufft::kWorkspaceAlign;\n  static_cast<void>(own_bytes);",
     "Cufft.OwnKernelsServeOnceItHasFailed", "plain", ""),
])

FAULTS = MATMUL + SCAN + FFT + LIBRARY + LIBRARY_FFT
