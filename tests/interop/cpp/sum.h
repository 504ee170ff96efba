// Sums of payloads: XXH3-64 by blocks (S1, S2).

#ifndef INTEROP_SUM_H_
#define INTEROP_SUM_H_

#include <cstdint>
#include <vector>

#include "wire.h"

namespace interop {

constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

uint64_t xxh3(Bytes bytes);

// XXH3-64 of `bytes` with the 8 bytes at `hole` taken as zero, as a record states it of itself.
uint64_t xxh3_with_hole(Bytes bytes, uint64_t hole);

// One sum a block; none for no bytes.
std::vector<uint64_t> block_sums(Bytes payload);

// XXH3-64 of sums as 8 bytes little-endian each: of a payload of several blocks, or of the blocks that an upload holds.
uint64_t sum_of_sums(const std::vector<uint64_t>& sums);

uint64_t data_sum(Bytes payload);

}  // namespace interop

#endif  // INTEROP_SUM_H_
