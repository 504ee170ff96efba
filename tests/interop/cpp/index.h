// A TensorFileIndex with its trailer, and its entries (F6 to F9, F13).

#ifndef INTEROP_INDEX_H_
#define INTEROP_INDEX_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "record.h"
#include "wire.h"

namespace interop {

constexpr uint64_t kMagicBytes = 9;
constexpr uint64_t kTrailerBytes = 27;
constexpr uint64_t kOffsetsBytes = 27;

struct Trailer {
  uint64_t index_offset = 0;
  uint64_t sum = 0;
};

// The trailer at `begin`, if there is one.
std::optional<Trailer> find_trailer(Bytes file, uint64_t begin);

// What open needs of an entry: its names and its extent. The rest stays unread until the entry is used.
struct Entry {
  Bytes fields;  // those before the offsets
  std::vector<Bytes> names;
  uint64_t record_offset = 0;
  uint64_t data_offset = 0;
  uint64_t data_bytes = 0;

  uint64_t end() const { return data_offset + data_bytes; }
};

// The fields of an entry before its offsets, for read and verify.
struct EntryFields {
  Label label;
  std::optional<Bytes> header;  // absent in the entry of a removal
  std::optional<std::vector<uint64_t>> block_sums;
};

EntryFields parse_entry_fields(const Entry& entry);

struct Index {
  uint64_t begin = 0;
  uint64_t end = 0;  // its trailer is right behind
  uint64_t sum = 0;
  std::vector<Entry> entries;
  std::vector<Bytes> metadata;
  uint64_t base_offset = 0;
  uint64_t base_sum = 0;
};

// F6 and F7, with the trailer and the sum.
Index parse_index(Bytes file, uint64_t begin);

// F8 without overlaps, F9.
void check_extents(const Index& index);
void check_names(const Index& index);

// F10, F11, F13: the entry says what its record says.
void check_agreement(const Entry& entry, const EntryFields& fields, const Record& record);

}  // namespace interop

#endif  // INTEROP_INDEX_H_
