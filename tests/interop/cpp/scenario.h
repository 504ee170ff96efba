// What a client must be able to do with a server: one check after the other.

#ifndef INTEROP_SCENARIO_H_
#define INTEROP_SCENARIO_H_

#include <string>

namespace interop {

// Prints a line per check. An exception with what differs, in numbers, at the first failure.
void run_scenario(const std::string& address);

}  // namespace interop

#endif  // INTEROP_SCENARIO_H_
