#include "tensor.h"

#include <algorithm>

#include "error.h"
#include "sum.h"

namespace interop {
namespace {

// Wide enough for any product of two 64-bit numbers, so that nothing here can wrap.
using Wide = __int128;

constexpr uint64_t kMostMessageBytes = (uint64_t{1} << 31) - 1;
constexpr uint64_t kMostHeaderBytes = 64 << 10;
constexpr size_t kMostDimensions = 64;
constexpr uint64_t kMostElementBytes = (uint64_t{1} << 31) - 1;
constexpr Wide kTooManyBytes = Wide{1} << 63;
constexpr uint64_t kMessageAlignment = 16;

enum Code { kInt = 0, kUInt = 1, kFloat = 2, kHandle = 3, kBfloat = 4, kComplex = 5, kBool = 6, kBComplex = 18 };
constexpr int32_t kLastKnownCode = 18;

bool is_complex(const Dtype& dtype) { return dtype.code == kComplex || dtype.code == kBComplex; }

bool is_known_width(int32_t code, uint32_t bits) {
  switch (code) {
    case kInt:
    case kUInt:
      return bits <= 8 || bits == 16 || bits == 32 || bits == 64;
    case kFloat:
      return bits == 16 || bits == 32 || bits == 64;
    case kBfloat:
      return bits == 16;
    case kComplex:
      return bits == 32 || bits == 64 || bits == 128;
    case kBComplex:
      return bits == 32;
    case 15:
    case 16:
      return bits == 6;
    case 17:
      return bits == 4;
    default:  // bool and the floats of 8 bits
      return bits == 8;
  }
}

// Appends a shape or strides field, packed or a single number; any other wire type is an unknown field.
void append_list(std::vector<int64_t>& list, const Field& field) {
  if (field.wire == Wire::varint) {
    list.push_back(static_cast<int64_t>(field.value));
  } else if (field.wire == Wire::length) {
    for (Scanner scan(field.content); !scan.done();) list.push_back(static_cast<int64_t>(scan.varint()));
  }
}

void merge(std::optional<Version>& version, Bytes content) {
  if (!version) version.emplace();
  for (Scanner scan(content); !scan.done();) {
    const Field field = scan.next();
    if (field.is(1, Wire::varint)) version->major = static_cast<uint32_t>(field.value);
    if (field.is(2, Wire::varint)) version->minor = static_cast<uint32_t>(field.value);
  }
}

void merge(std::optional<Device>& device, Bytes content) {
  if (!device) device.emplace();
  for (Scanner scan(content); !scan.done();) {
    const Field field = scan.next();
    if (field.is(1, Wire::varint)) device->type = static_cast<int32_t>(field.value);
    if (field.is(2, Wire::varint)) device->id = static_cast<int32_t>(field.value);
  }
}

void merge(std::optional<Dtype>& dtype, Bytes content) {
  if (!dtype) dtype.emplace();
  for (Scanner scan(content); !scan.done();) {
    const Field field = scan.next();
    if (field.is(1, Wire::varint)) dtype->code = static_cast<int32_t>(field.value);
    if (field.is(2, Wire::varint)) dtype->bits = static_cast<uint32_t>(field.value);
    if (field.is(3, Wire::varint)) dtype->lanes = static_cast<uint32_t>(field.value);
  }
}

// Takes one field of a header. False: padding or data, which are the caller's.
bool take_header_field(Header& header, const Field& field) {
  switch (field.number) {
    case 1:
      if (field.wire == Wire::length) merge(header.version, field.content);
      return true;
    case 2:
      if (field.wire == Wire::varint) header.flags = field.value;
      return true;
    case 3:
      if (field.wire == Wire::length) merge(header.device, field.content);
      return true;
    case 4:
      if (field.wire == Wire::length) merge(header.dtype, field.content);
      return true;
    case 5:
      append_list(header.shape, field);
      return true;
    case 6:
      append_list(header.strides, field);
      return true;
    case 7:
      if (field.wire == Wire::varint) header.byte_offset = field.value;
      return true;
    case 8:
      if (field.wire == Wire::varint) header.byte_order = static_cast<int32_t>(field.value);
      return true;
    case 9:
      if (field.wire == Wire::fixed64) header.data_sum = field.value;
      return true;
    case 10:
    case 11:
      fail(Class::unsupported, "field 10 or 11 of a tensor, which a later revision may define");
    case 14:
    case 15:
      return field.wire != Wire::length;
    default:
      return true;
  }
}

struct Message {
  Header header;
  Bytes padding;
  Bytes data;
};

Message scan_message(Bytes bytes) {
  if (bytes.size() > kMostMessageBytes) fail(Class::limit, "a tensor message of 2 GiB or more");
  Message message;
  uint64_t header_bytes = 0;
  for (Scanner scan(bytes); !scan.done();) {
    const Field field = scan.next();
    if (!take_header_field(message.header, field)) {
      if (field.number == 15) {
        message.data = field.content;
      } else {
        message.padding = field.content;
      }
      continue;
    }
    header_bytes += field.whole.size();
    if (header_bytes > kMostHeaderBytes) fail(Class::limit, "a header of more than 64 KiB");
  }
  return message;
}

void check_dtype(const Header& header) {
  require(header.dtype.has_value(), "no dtype");
  const Dtype& dtype = *header.dtype;
  require(dtype.bits >= 1 && dtype.lanes >= 1, "bits or lanes of 0");
  require(dtype.bits < 8 || dtype.bits % 8 == 0, "bits that are no multiple of 8");
  require(dtype.code >= 0 && dtype.code != kHandle, "a negative code, or an opaque handle");
  require(dtype.code > kLastKnownCode || is_known_width(dtype.code, dtype.bits), "bits that the code does not have");
  require((header.flags & ~uint64_t{7}) == 0, "flags beyond 1, 2 and 4");
  require((header.flags & kPaddedFlag) == 0 || (dtype.bits < 8 && dtype.lanes == 1), "flags: padded, but not sub-byte");
  require(dtype.lanes <= kMostElementBytes && header.element_bytes() <= kMostElementBytes, "2^31 lanes or bytes or more");
  // A stated order of single bytes means nothing, but it must still be one of the enum's.
  require(header.byte_order >= 0 && header.byte_order <= 2, "an unknown byte_order");
  require(header.byte_order != 0 || header.part_bytes() <= 1, "no byte_order");
}

// The product of the extents that are not zero and the size of an element, a packed lane counting as a byte (M9).
void check_extents(const Header& header) {
  require(header.shape.size() <= kMostDimensions, "more than 64 dimensions");
  Wide product = header.packed() ? header.dtype->lanes : header.element_bytes();
  for (int64_t extent : header.shape) {
    require(extent >= 0, "a negative extent");
    if (extent > 0) product *= extent;
    require(product < kTooManyBytes, "a shape of 2^63 bytes or more");
  }
}

bool is_row_major(const Header& header) {
  Wide expected = 1;
  for (size_t axis = header.shape.size(); axis-- > 0;) {
    if (header.shape[axis] == 1) continue;
    if (header.strides[axis] != expected) return false;
    expected *= header.shape[axis];
  }
  return true;
}

// Bytes from the lowest to the highest one that the strides reach, with M10's and M11's rules.
uint64_t check_strides(const Header& header) {
  struct Axis {
    Wide extent, stride;
    bool negative;
  };
  std::vector<Axis> axes;
  for (size_t i = 0; i < header.shape.size(); ++i) {
    if (header.shape[i] == 1) continue;
    const Wide stride = header.strides[i];
    axes.push_back({header.shape[i], stride < 0 ? -stride : stride, stride < 0});
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  Wide reach = 0;
  Wide lowest = 0;  // both as distances
  for (const Axis& axis : axes) {
    require(axis.stride > reach, "strides that reach an element twice");
    reach += (axis.extent - 1) * axis.stride;
    require(reach < kTooManyBytes, "strides of 2^63 bytes or more");
    if (axis.negative) lowest += (axis.extent - 1) * axis.stride;
  }
  const Wide size = (reach + 1) * header.element_bytes();
  require(size < kTooManyBytes, "strides of 2^63 bytes or more");
  require(Wide{header.byte_offset} == lowest * header.element_bytes(), "a byte_offset that the strides do not give");
  return static_cast<uint64_t>(size);
}

}  // namespace

bool Header::packed() const {
  return uint64_t{dtype->bits} * dtype->lanes % 8 != 0 && (flags & kPaddedFlag) == 0;
}

uint64_t Header::element_bytes() const {
  // Rounded up, which matters only for packed and padded ones.
  return (uint64_t{dtype->bits} * dtype->lanes + 7) / 8;
}

uint64_t Header::part_bytes() const { return (is_complex(*dtype) ? dtype->bits / 2 : dtype->bits) / 8; }

uint64_t Header::element_count() const {
  for (int64_t extent : shape) {
    if (extent == 0) return 0;  // looked for first: the others' product alone may be near 2^63
  }
  uint64_t count = 1;
  for (int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

Header parse_header(Bytes message) { return scan_message(message).header; }

uint64_t check_header(Header& header) {
  check_dtype(header);
  check_extents(header);
  header.flags &= kPaddedFlag;
  if (header.part_bytes() <= 1) header.byte_order = 0;
  const bool strided = !header.strides.empty();
  require(!strided || header.strides.size() == header.shape.size(), "not one stride per dimension");
  const uint64_t count = header.element_count();
  if (count == 0 || !strided || is_row_major(header)) {
    require(header.byte_offset == 0, "a byte_offset that must be 0");
    header.strides.clear();
    const Wide bits = Wide{header.dtype->bits} * header.dtype->lanes;
    return static_cast<uint64_t>(header.packed() ? (count * bits + 7) / 8 : count * Wide{header.element_bytes()});
  }
  require(!header.packed(), "packed elements that are not row-major");
  const uint64_t size = check_strides(header);
  for (size_t axis = 0; axis < header.shape.size(); ++axis) {
    if (header.shape[axis] == 1) header.strides[axis] = 1;  // as a writer has them (M12)
  }
  return size;
}

void check_size(uint64_t needed, uint64_t size) {
  const std::string says = "the payload needs " + std::to_string(needed) + " bytes, has " + std::to_string(size);
  if (size < needed) fail(Class::truncated, says);
  if (size > needed) fail(Class::decode, says);
}

void check_values(const Header& header, Bytes data) {
  // All bytes of a bool payload, those between the elements too: blocks are checked without their strides.
  if (header.dtype->code == kBool) {
    for (char byte : data) require(static_cast<uint8_t>(byte) <= 1, "a bool byte that is not 0 or 1");
  }
  if (header.packed() && !data.empty()) {
    const uint64_t used = static_cast<uint64_t>(
        Wide{header.element_count()} * header.dtype->bits * header.dtype->lanes % 8);
    require(used == 0 || static_cast<uint8_t>(data.back()) >> used == 0, "spare bits that are not zero");
  }
}

Tensor parse_tensor(Bytes bytes) {
  Message message = scan_message(bytes);
  check_size(check_header(message.header), message.data.size());
  // Of several paddings the last counts, as for any scalar (M17).
  if (message.padding.size() > kMostPaddingBytes) fail(Class::limit, "padding of more than 16384 bytes");
  require(message.padding.find_first_not_of('\0') == Bytes::npos, "padding that is not zero");
  if (message.header.data_sum && *message.header.data_sum != data_sum(message.data)) {
    fail(Class::checksum, "the payload differs from its checksum");
  }
  check_values(message.header, message.data);
  return {message.header, message.data};
}

std::string elements(const Header& header, Bytes data) {
  if (header.packed() || data.empty()) return std::string(data);
  const uint64_t size = header.element_bytes();
  const uint64_t part = std::max<uint64_t>(1, header.part_bytes());
  const bool swap = header.byte_order == 2 && header.dtype->code <= kLastKnownCode;
  const bool padded = (header.flags & kPaddedFlag) != 0;
  std::string result;
  std::vector<int64_t> index(header.shape.size());
  for (uint64_t left = header.element_count(), dense = 0; left > 0; --left, ++dense) {
    // A checked header's offsets lie in its payload, so 64 bits hold them.
    int64_t at = header.strides.empty() ? static_cast<int64_t>(dense * size) : static_cast<int64_t>(header.byte_offset);
    for (size_t axis = 0; axis < header.strides.size(); ++axis) {
      if (index[axis] > 0) at += index[axis] * header.strides[axis] * static_cast<int64_t>(size);
    }
    std::string element(data.substr(static_cast<uint64_t>(at), size));
    for (uint64_t begin = 0; swap && begin < size; begin += part) {
      std::reverse(element.begin() + static_cast<int64_t>(begin), element.begin() + static_cast<int64_t>(begin + part));
    }
    if (padded) element[0] = static_cast<char>(element[0] & ((1 << header.dtype->bits) - 1));
    result += element;
    for (size_t axis = index.size(); axis-- > 0 && ++index[axis] == header.shape[axis];) index[axis] = 0;
  }
  return result;
}

std::string header_bytes(const Header& header) {
  const auto nonzero = [](uint32_t number, uint64_t value) {
    return value == 0 ? std::string() : varint_field(number, value);
  };
  // Numbers of int32 and enum types are extended to 64 bits on the wire.
  const auto extended = [](int32_t value) { return static_cast<uint64_t>(int64_t{value}); };
  const auto list = [](uint32_t number, const std::vector<int64_t>& values) {
    std::string content;
    for (int64_t value : values) content += varint_bytes(static_cast<uint64_t>(value));
    return content.empty() ? content : length_field(number, content);
  };
  std::string bytes;
  if (header.version) {
    bytes += length_field(1, nonzero(1, header.version->major) + nonzero(2, header.version->minor));
  }
  bytes += nonzero(2, header.flags);
  if (header.device) {
    bytes += length_field(3, nonzero(1, extended(header.device->type)) + nonzero(2, extended(header.device->id)));
  }
  bytes += length_field(4, nonzero(1, extended(header.dtype->code)) + nonzero(2, header.dtype->bits) +
                               nonzero(3, header.dtype->lanes));
  bytes += list(5, header.shape);
  bytes += list(6, header.strides);
  bytes += nonzero(7, header.byte_offset);
  bytes += nonzero(8, static_cast<uint64_t>(header.byte_order));
  if (header.data_sum) bytes += fixed64_field(9, *header.data_sum);
  return bytes;
}

std::string tensor_bytes(const Header& header, Bytes data) {
  std::string bytes = header_bytes(header);
  if (data.empty()) return bytes;
  const std::string head = length_head(15, data.size());
  std::string padding;
  if (header.part_bytes() > 1) {
    // By trial, since the padding's own tag and length move the payload too.
    for (std::string zeros; (bytes.size() + padding.size() + head.size()) % kMessageAlignment != 0;) {
      zeros += '\0';
      padding = length_field(14, zeros);
    }
  }
  return bytes + padding + head + std::string(data);
}

}  // namespace interop
