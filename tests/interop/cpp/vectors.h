// The repository's test vectors: messages and files with their stated verdicts.

#ifndef INTEROP_VECTORS_H_
#define INTEROP_VECTORS_H_

#include <string>

namespace interop {

std::string to_hex(const std::string& bytes);

// Nothing if `hex` is no even number of hex digits.
bool from_hex(const std::string& hex, std::string& bytes);

// Runs all vectors under `directory` (tests/data), prints counts and every difference, and returns how many differ.
int check_vectors(const std::string& directory);

}  // namespace interop

#endif  // INTEROP_VECTORS_H_
