#include "kernels.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

namespace emu {
namespace {

std::mutex launches_mu;
std::map<uintptr_t, int64_t>& Launches() {
  static auto& launches = *new std::map<uintptr_t, int64_t>;
  return launches;
}
// The most that a block was launched with.
std::map<uintptr_t, size_t>& SharedBytes() {
  static auto& bytes = *new std::map<uintptr_t, size_t>;
  return bytes;
}

std::string Demangled(const char* symbol) {
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  const std::unique_ptr<char, Free> text(abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr));
  return text == nullptr ? "" : text.get();
}

// The name of a kernel without its return type and parameters; empty: it is none.
std::string NameOfKernel(const std::string& text) {
  constexpr std::string_view kFirst = "(attnd::cuda::Problems<";
  const size_t at = text.find(kFirst);
  // Pointers to kernels have such parameters, too, and parts that the compiler has split off.
  if (at == std::string::npos || at == 0 || text[at - 1] == ')' || text[at - 1] == ' ' ||
      text.ends_with(']')) {
    return {};
  }
  size_t end = at + kFirst.size();
  for (int depth = 1; depth > 0 && end < text.size(); ++end) {
    depth += text[end] == '<' ? 1 : text[end] == '>' ? -1 : 0;
  }
  if (end == text.size() || (text[end] != ')' && text[end] != ',')) return {};
  constexpr std::string_view kVoid = "void ";
  const size_t begin = text.starts_with(kVoid) ? kVoid.size() : 0;
  return text.substr(begin, at - begin);
}

// By its address in the file.
std::map<uintptr_t, std::string> FindKernels() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::map<uintptr_t, std::string> kernels;
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
  for (int n = 0; n < header->e_shnum; ++n) {
    if (sections[n].sh_type != SHT_SYMTAB) continue;
    const auto* symbol = reinterpret_cast<const ElfW(Sym)*>(bytes.data() + sections[n].sh_offset);
    const auto* const end = symbol + sections[n].sh_size / sizeof(*symbol);
    const char* const names = bytes.data() + sections[sections[n].sh_link].sh_offset;
    for (; symbol != end; ++symbol) {
      if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_value == 0) continue;
      const std::string name = NameOfKernel(Demangled(names + symbol->st_name));
      if (!name.empty()) kernels.emplace(symbol->st_value, name);
    }
  }
  return kernels;
}

// Of the program, which comes first.
uintptr_t LoadAddress() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = object->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

struct Known {
  std::map<uintptr_t, std::string> kernels = FindKernels();
  uintptr_t load_address = LoadAddress();
};
const Known& Program() {
  static const Known& known = *new Known;
  return known;
}

}  // namespace

namespace {

// Only addresses, since other processes do the same, and to find names takes a second.
void WriteSharedBytes() {
  std::ofstream table(std::getenv("EMULATED_CUDA_SHARED_TABLE"), std::ios::app);
  std::ostringstream lines;
  for (const auto& [address, bytes] : SharedBytes()) {
    lines << std::hex << address - LoadAddress() << ' ' << std::dec << bytes << '\n';
  }
  table << lines.str() << std::flush;
}

}  // namespace

std::string NameOfKernel(const void* kernel) {
  const auto& kernels = Program().kernels;
  const auto found = kernels.find(reinterpret_cast<uintptr_t>(kernel) - Program().load_address);
  return found == kernels.end() ? "a kernel without a name" : found->second;
}

void CountLaunch(const LaunchShape& shape) {
  static const bool has_table =
      std::getenv("EMULATED_CUDA_SHARED_TABLE") != nullptr && std::atexit(WriteSharedBytes) == 0;
  const auto address = reinterpret_cast<uintptr_t>(shape.kernel);
  const std::lock_guard lock(launches_mu);
  ++Launches()[address];
  if (has_table) SharedBytes()[address] = std::max(SharedBytes()[address], shape.shared_bytes);
}

std::map<std::string, int64_t> TakeLaunches() {
  const std::lock_guard lock(launches_mu);
  std::map<std::string, int64_t> counted;
  for (const auto& [address, name] : Program().kernels) {
    const auto found = Launches().find(Program().load_address + address);
    counted[name] += found == Launches().end() ? 0 : found->second;
  }
  Launches().clear();
  return counted;
}

}  // namespace emu
