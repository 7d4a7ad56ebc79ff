// Stacks and the switch between them.
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>

#include "block.h"

#if !defined(__x86_64__)
#error "EmuSwitchStack is written for x86-64 alone"
#endif
asm(R"(
.text
.globl EmuSwitchStack
.hidden EmuSwitchStack
.type EmuSwitchStack, @function
EmuSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size EmuSwitchStack, .-EmuSwitchStack
)");

namespace emu {
namespace {

constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 4096;

// A stack on which RunThreads begins.
std::unique_ptr<Stack> NewStack(int id) {
  auto stack = std::make_unique<Stack>();
  void* map = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (map == MAP_FAILED || mprotect(map, kGuardBytes, PROT_NONE) != 0) std::abort();
  char* bottom = static_cast<char*>(map) + kGuardBytes;
  stack->bottom = bottom;
  stack->bytes = kStackBytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom, kStackBytes);
#elif defined(__SANITIZE_THREAD__)
  stack->tsan = __tsan_create_fiber(0);
#endif
  // Six registers, then RunThreads as return address with the stack aligned as after a call. If all
  // stacks began at a page, they would share few cache sets: twice the cost of a switch.
  void** top = reinterpret_cast<void**>(bottom + kStackBytes - id % 16 * 256) - 2;
  *top = reinterpret_cast<void*>(&RunThreads);
  stack->pointer = top - 6;
  return stack;
}

}  // namespace

Stack* Block::TakeStack(int id) {
  const Quiet quiet;
  if (free_stacks.empty()) {
    stacks.push_back(NewStack(id));
    return stacks.back().get();
  }
  Stack* const stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

namespace {

// The running thread begins.
void Begin() {
  const Quiet quiet;
  Fiber& f = Self();
  f.tiles_taken = f.group = f.collectives = 0;
  f.copies.clear();
}

}  // namespace

[[noreturn]] EMU_UNSEEN void RunThreads() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  for (;;) {
    Block& b = *self->block;
    Begin();
    Acquire(&b.begin);
    (*b.body)();
    Release(&b.end);
    Fiber& f = Self();
    f.warp->name[f.Lane()] = nullptr;
    if (++b.exited + b.arrived == b.threads && b.arrived > 0) b.ReportStuck();
    Fiber& next = b.Next();
    Stack* const stack = f.stack;
    // To the thread sanitizer a stack is a thread: each keeps its own.
    if (!kThreadSanitizer) {
      f.stack = nullptr;
      if (next.stack == nullptr) {
        next.stack = stack;
        self = &next;
        continue;
      }
      b.free_stacks.push_back(stack);
    }
    SwitchTo(stack, &next);
  }
}

void DescribeCallerStack(Stack* stack) {
#if defined(__SANITIZE_ADDRESS__)
  thread_local struct {
    void* bottom = nullptr;
    size_t bytes = 0;
  } own;
  if (own.bottom == nullptr) {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) std::abort();
    pthread_attr_getstack(&attributes, &own.bottom, &own.bytes);
    pthread_attr_destroy(&attributes);
  }
  stack->bottom = own.bottom;
  stack->bytes = own.bytes;
#elif defined(__SANITIZE_THREAD__)
  stack->tsan = __tsan_get_current_fiber();
#else
  static_cast<void>(stack);
#endif
}

}  // namespace emu
