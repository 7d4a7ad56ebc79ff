// The options --device, --self-test and --cache-dir.
#pragma once

#include <string>

#include "kernels/engine/devices.h"

namespace attnd {

// Empty: `text` is auto, cpu, cuda, or cuda: with numbers of devices, each once, as in cuda:0,1.
// Else what is wrong with it.
std::string CheckDevice(const std::string& text);

// Which devices it names, in `options`. REQUIRES: CheckDevice(text) is empty.
void SetDevices(const std::string& text, DeviceOptions* options);

// Empty: `text` is fresh or what the command line takes for true or false. Else what is wrong.
std::string CheckSelfTest(const std::string& text);

// REQUIRES: CheckSelfTest(text) is empty.
DeviceOptions::Proof ProofOf(const std::string& text);

// `given`; if it is empty, the folder of the user by the XDG base directory specification:
// $XDG_CACHE_HOME/attnd or ~/.cache/attnd. Empty: there is none.
std::string CacheFolder(const std::string& given);

}  // namespace attnd
