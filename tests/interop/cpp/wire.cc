#include "wire.h"

#include "error.h"

namespace interop {
namespace {

constexpr int kMostVarintBytes = 10;
constexpr uint64_t kMostFieldNumber = (uint64_t{1} << 29) - 1;

}  // namespace

Field Scanner::next() {
  const uint64_t begin = position_;
  const uint64_t tag = minimal_varint();
  Field field;
  require(tag >> 3 >= 1 && tag >> 3 <= kMostFieldNumber, "a field number outside 1 to 2^29 - 1");
  field.number = static_cast<uint32_t>(tag >> 3);
  field.wire = static_cast<Wire>(tag & 7);
  switch (field.wire) {
    case Wire::varint:
      field.value = varint();
      break;
    case Wire::fixed64:
      field.value = load64(take(8));
      break;
    case Wire::length:
      field.content = take(minimal_varint());
      break;
    case Wire::fixed32:
      take(4);  // no field of the contract has this type, so nobody needs the value
      break;
    default:
      fail(Class::decode, "a group, or wire type 6 or 7");
  }
  field.whole = bytes_.substr(begin, position_ - begin);
  return field;
}

uint64_t Scanner::varint() {
  uint64_t value = 0;
  for (int i = 0; i < kMostVarintBytes; ++i) {
    const auto byte = static_cast<uint8_t>(take(1)[0]);
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return value;
  }
  fail(Class::decode, "a varint of more than 10 bytes");
}

uint64_t Scanner::minimal_varint() {
  const uint64_t begin = position_;
  const uint64_t value = varint();
  // Writing the value again shows both defects, needless bytes and bits above 64.
  require(bytes_.substr(begin, position_ - begin) == varint_bytes(value), "a tag or length that is not minimal");
  return value;
}

Bytes Scanner::take(uint64_t size) {
  if (size > bytes_.size() - position_) fail(Class::truncated, "a field is cut off");
  const Bytes taken = bytes_.substr(position_, size);
  position_ += size;
  return taken;
}

uint64_t load64(Bytes eight) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(eight[i]);
  return value;
}

std::string varint_bytes(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
  return bytes;
}

std::string fixed64_bytes(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string varint_field(uint32_t number, uint64_t value) {
  return varint_bytes(uint64_t{number} << 3 | static_cast<uint64_t>(Wire::varint)) + varint_bytes(value);
}

std::string fixed64_field(uint32_t number, uint64_t value) {
  return varint_bytes(uint64_t{number} << 3 | static_cast<uint64_t>(Wire::fixed64)) + fixed64_bytes(value);
}

std::string length_head(uint32_t number, uint64_t size) {
  return varint_bytes(uint64_t{number} << 3 | static_cast<uint64_t>(Wire::length)) + varint_bytes(size);
}

std::string length_field(uint32_t number, Bytes content) {
  return length_head(number, content.size()).append(content);
}

}  // namespace interop
