// A TensorRecord in a file: head, tensor and payload (F1 to F4).

#ifndef INTEROP_RECORD_H_
#define INTEROP_RECORD_H_

#include <cstdint>
#include <vector>

#include "name.h"
#include "tensor.h"
#include "wire.h"

namespace interop {

constexpr uint64_t kFileAlignment = 64;

// Fields 1 to 3, which records and index entries share, in ascending order (F1).
class Label {
 public:
  // Takes a field of number 1 to 3. False for other fields.
  bool take(const Field& field);
  void check() const;

  Names names;
  Bytes metadata_fields;  // with their tags and lengths, for comparison
  std::vector<Bytes> metadata;

 private:
  uint64_t bytes_ = 0;
};

// Ascending field numbers, each at most once (F1); numbers that may repeat are the caller's.
class Order {
 public:
  void see(uint32_t number);
  void see_repeatable(uint32_t number);

 private:
  uint32_t last_ = 0;
};

struct Record {
  Label label;
  bool removes = false;
  Bytes header_fields;  // the tensor's fields before padding
  Header header;        // checked
  uint64_t begin = 0;
  uint64_t data_begin = 0;
  uint64_t end = 0;

  uint64_t data_bytes() const { return end - data_begin; }
};

// Reads all of the record at `begin` but its payload; `file` ends where the record may end at most.
Record parse_record(Bytes file, uint64_t begin);

}  // namespace interop

#endif  // INTEROP_RECORD_H_
