// Fields of the protobuf wire format, scanned under the strict rule M18.

#ifndef INTEROP_WIRE_H_
#define INTEROP_WIRE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace interop {

// Bytes that somebody else owns: a message, a mapped file, or a part of one.
using Bytes = std::string_view;

enum class Wire : uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

struct Field {
  uint32_t number = 0;
  Wire wire = Wire::varint;
  uint64_t value = 0;  // of a number
  Bytes content;       // of a length-delimited field
  Bytes whole;         // from the tag to the end

  bool is(uint32_t other_number, Wire other_wire) const { return number == other_number && wire == other_wire; }
};

class Scanner {
 public:
  // `position` is at most the size of `bytes`.
  explicit Scanner(Bytes bytes, uint64_t position = 0) : bytes_(bytes), position_(position) {}

  bool done() const { return position_ == bytes_.size(); }
  uint64_t position() const { return position_; }

  // The next field. Touches nothing but its tag, length and number, so that a payload is never paged in.
  Field next();

  // The next bare varint, as in a packed list. It may be longer than needed, and bits above 64 are dropped (M17).
  uint64_t varint();

 private:
  uint64_t minimal_varint();
  Bytes take(uint64_t size);

  Bytes bytes_;
  uint64_t position_;
};

uint64_t load64(Bytes eight);

// For writers: one field each, with a minimal tag and length.
std::string varint_bytes(uint64_t value);
std::string fixed64_bytes(uint64_t value);
std::string varint_field(uint32_t number, uint64_t value);
std::string fixed64_field(uint32_t number, uint64_t value);
std::string length_field(uint32_t number, Bytes content);
std::string length_head(uint32_t number, uint64_t size);

}  // namespace interop

#endif  // INTEROP_WIRE_H_
