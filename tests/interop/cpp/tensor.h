// The tensor message: DLTensor, read and written by hand (section "Message" of the contract).

#ifndef INTEROP_TENSOR_H_
#define INTEROP_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire.h"

namespace interop {

struct Version {
  uint32_t major = 0;
  uint32_t minor = 0;
};

struct Device {
  int32_t type = 0;
  int32_t id = 0;
};

struct Dtype {
  int32_t code = 0;
  uint32_t bits = 0;
  uint32_t lanes = 0;
};

constexpr uint64_t kPaddedFlag = 4;
constexpr uint64_t kMostPaddingBytes = 16384;

// Fields 1 to 9. `parse_header` fills in what the wire says; `check_header` checks it and drops what means nothing.
struct Header {
  std::optional<Version> version;
  uint64_t flags = 0;
  std::optional<Device> device;
  std::optional<Dtype> dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  uint64_t byte_offset = 0;
  int32_t byte_order = 0;
  std::optional<uint64_t> data_sum;

  bool packed() const;             // M4
  uint64_t element_bytes() const;  // of an element that is not packed
  uint64_t part_bytes() const;     // of a lane, or of a half of a complex lane
  uint64_t element_count() const;  // only of a checked header
};

struct Tensor {
  Header header;
  Bytes data;
};

// Reads fields 1 to 9 of a message under M17, M18 and the reserved numbers; padding and data are passed over.
Header parse_header(Bytes message);

// Checks M1 to M13, all but the elements' values. Clears flags that mean nothing, a byte order that means nothing, and
// strides that say no more than row-major. Returns the size that the payload must have.
uint64_t check_header(Header& header);

// D or T unless `size` is the one that check_header returned.
void check_size(uint64_t needed, uint64_t size);

// Spare bits and bools (M4, M7) of a checked header's payload.
void check_values(const Header& header, Bytes data);

// A bare message: all rules of the section, the sum too.
Tensor parse_tensor(Bytes message);

// The elements of a checked tensor: row-major without gaps, little endian unless the code is unknown, spare bits of
// padded ones cleared; packed ones stay packed.
std::string elements(const Header& header, Bytes data);

// The header's fields as a writer makes them (M12, M15), of a checked header.
std::string header_bytes(const Header& header);

// A bare message as a writer makes it, with its payload aligned by M14.
std::string tensor_bytes(const Header& header, Bytes data);

}  // namespace interop

#endif  // INTEROP_TENSOR_H_
