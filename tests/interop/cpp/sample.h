// Tensors to test with, and a file of them.

#ifndef INTEROP_SAMPLE_H_
#define INTEROP_SAMPLE_H_

#include <string>
#include <vector>

#include "tensor.h"

namespace interop {

// A compact header on the CPU, little endian where that means something.
Header sample_header(Dtype dtype, std::vector<int64_t> shape);

// Bytes without a period near a block's size, so that a misplaced block shows; another seed, other bytes.
std::string sample_bytes(uint64_t size, uint32_t seed);

// Two generations: several element types and layouts, names taken over and removed, metadata, more than one block.
void write_sample(const std::string& path);

}  // namespace interop

#endif  // INTEROP_SAMPLE_H_
