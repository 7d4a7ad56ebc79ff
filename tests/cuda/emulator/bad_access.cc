#include "bad_access.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "fibers.h"

namespace emu {
namespace {

const char* first = nullptr;
const char* last = nullptr;
struct sigaction other_handler;

// Formats on its own stack: in a signal handler nothing may allocate.
void Explain(int, siginfo_t* info, void*) {
  const char* address = static_cast<const char*>(info->si_addr);
  if (address >= first && address < last) {
    char text[256];
    int size;
    if (self == nullptr) {
      size = std::snprintf(text, sizeof text,
                           "cuda emulator: the host touches device memory, or a copy "
                           "what is freed\n");
    } else {
      const uint3 b = self->geometry->block_index, t = self->index;
      size = std::snprintf(text, sizeof text,
                           "cuda emulator: block (%u,%u,%u) thread (%u,%u,%u) touches memory that "
                           "is not allocated\n",
                           b.x, b.y, b.z, t.x, t.y, t.z);
    }
    static_cast<void>(!write(STDERR_FILENO, text, static_cast<size_t>(size)));
  }
  // The instruction runs again, and faults again.
  sigaction(SIGSEGV, &other_handler, nullptr);
}

}  // namespace

void ExplainAccesses(const char* begin, int64_t bytes) {
  first = begin;
  last = begin + bytes;
  struct sigaction handler = {};
  handler.sa_sigaction = Explain;
  handler.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &handler, &other_handler);
}

}  // namespace emu
