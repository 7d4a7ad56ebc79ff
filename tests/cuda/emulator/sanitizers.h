// What the sanitizers are told. The thread sanitizer takes every CUDA thread for a thread of its
// own, ordered by barriers alone. It must not look at what the emulator itself shares between them:
// functions with a Quiet in scope, and those marked EMU_UNSEEN.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
void __tsan_read_range(const void*, size_t);
void __tsan_write_range(void*, size_t);
}
#endif

#define EMU_UNSEEN __attribute__((no_sanitize("thread")))

namespace emu {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
struct Quiet {
  Quiet() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
  ~Quiet() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
};
inline void NoteRead(const void* p, size_t n) { __tsan_read_range(p, n); }
inline void NoteWrite(void* p, size_t n) { __tsan_write_range(p, n); }
inline void Release(char* sync) { __tsan_release(sync); }
inline void Acquire(char* sync) { __tsan_acquire(sync); }
#else
constexpr bool kThreadSanitizer = false;
struct Quiet {
  Quiet() {}
};
#if defined(__SANITIZE_ADDRESS__)
// Lets it look while the thread runs that named the address.
inline void NoteRead(const void* p, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<void>(static_cast<const volatile char*>(p)[i]);
}
#else
inline void NoteRead(const void*, size_t) {}
#endif
inline void NoteWrite(void*, size_t) {}
inline void Release(char*) {}
inline void Acquire(char*) {}
#endif

}  // namespace emu
