#include "sum.h"

// Inlined, so that the library's version at run time does not matter.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace interop {

uint64_t xxh3(Bytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t xxh3_with_hole(Bytes bytes, uint64_t hole) {
  const char zeros[8] = {};
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, bytes.data(), hole);
  XXH3_64bits_update(&state, zeros, sizeof zeros);
  XXH3_64bits_update(&state, bytes.data() + hole + sizeof zeros, bytes.size() - hole - sizeof zeros);
  return XXH3_64bits_digest(&state);
}

std::vector<uint64_t> block_sums(Bytes payload) {
  std::vector<uint64_t> sums;
  for (uint64_t begin = 0; begin < payload.size(); begin += kBlockBytes) {
    sums.push_back(xxh3(payload.substr(begin, kBlockBytes)));
  }
  return sums;
}

uint64_t sum_of_sums(const std::vector<uint64_t>& sums) {
  std::string list;
  for (uint64_t sum : sums) list += fixed64_bytes(sum);
  return xxh3(list);
}

uint64_t data_sum(Bytes payload) {
  return payload.size() <= kBlockBytes ? xxh3(payload) : sum_of_sums(block_sums(payload));
}

}  // namespace interop
