// What memory costs that the process does not have yet.
#pragma once

namespace attnd {

// Bytes a second at which one thread can write to new memory for the first time: the system clears
// each page then. Measured when it is first asked for, which takes about 20 ms; thread safe.
double FreshBytesPerSecond();

}  // namespace attnd
