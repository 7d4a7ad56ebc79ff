// The option --device.
#pragma once

#include <string>

#include "kernels/engine/devices.h"

namespace attnd {

// Empty: `text` is auto, cpu, cuda, or cuda: with numbers of devices, each once, as in cuda:0,1.
// Else what is wrong with it.
std::string CheckDevice(const std::string& text);

// Which devices it names, in `options`. REQUIRES: CheckDevice(text) is empty.
void SetDevices(const std::string& text, DeviceOptions* options);

}  // namespace attnd
