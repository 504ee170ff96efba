#include "sample.h"

#include "file_writer.h"
#include "sum.h"

namespace interop {
namespace {

dlpack_wire::v1::MetadataValue text(const std::string& value) {
  dlpack_wire::v1::MetadataValue metadata;
  metadata.set_string_value(value);
  return metadata;
}

dlpack_wire::v1::MetadataValue number(double value) {
  dlpack_wire::v1::MetadataValue metadata;
  metadata.set_double_value(value);
  return metadata;
}

}  // namespace

Header sample_header(Dtype dtype, std::vector<int64_t> shape) {
  Header header;
  header.device = Device{1, 0};
  header.dtype = dtype;
  header.shape = std::move(shape);
  header.byte_order = header.part_bytes() > 1 ? 1 : 0;
  return header;
}

std::string sample_bytes(uint64_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : bytes) {
    state = state * 1664525u + 1013904223u;  // the usual linear congruential numbers
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

void write_sample(const std::string& path) {
  const Dtype kUint8{1, 8, 1}, kInt4{0, 4, 1}, kBool{6, 8, 1}, kFloat16{2, 16, 1}, kFloat32{2, 32, 1};
  const Dtype kBfloat16{4, 16, 1}, kComplex128{5, 128, 1}, kFloat4{17, 4, 1}, kUnknown{200, 24, 2};
  {
    FileWriter writer = FileWriter::create(path);
    writer.add({"weights", {"tied", "tied too"}, {{"a", number(0.5)}, {"b", text("größer")}},
                sample_header(kFloat32, {2, 3}), sample_bytes(24, 1)});
    Header columns = sample_header(kFloat16, {2, 3});
    columns.strides = {1, 2};
    writer.add({"columns", {}, {}, columns, sample_bytes(12, 2)});
    Header backwards = sample_header(kFloat16, {4});
    backwards.strides = {-1};
    backwards.byte_offset = 6;
    writer.add({"backwards", {}, {}, backwards, sample_bytes(8, 3)});
    writer.add({"packed", {}, {}, sample_header(kInt4, {3}), std::string("\x21\x03")});
    Header padded = sample_header(kFloat4, {3});
    padded.flags = kPaddedFlag;
    writer.add({"padded", {}, {}, padded, std::string("\x01\x02\x0f")});
    writer.add({"bools", {}, {}, sample_header(kBool, {2}), std::string("\1\0", 2)});
    writer.add({"scalar", {}, {}, sample_header(kComplex128, {}), sample_bytes(16, 4)});
    writer.add({"empty", {}, {}, sample_header(kFloat32, {0, 7}), ""});
    writer.add({"opaque", {}, {}, sample_header(kUnknown, {2}), sample_bytes(12, 5)});
    const uint64_t blocks = 2 * kBlockBytes + 5;
    writer.add({"blocks", {}, {}, sample_header(kUint8, {static_cast<int64_t>(blocks)}), sample_bytes(blocks, 6)});
    writer.add({"gone", {}, {}, sample_header(kUint8, {1}), "x"});
    writer.finish({{"maker", text("interop")}, {"step", number(1)}});
  }
  FileWriter writer = FileWriter::append(path);
  // Takes the name over; "tied" and "tied too" still denote the first record.
  writer.add({"weights", {}, {}, sample_header(kFloat32, {3}), sample_bytes(12, 7)});
  writer.remove("gone");
  writer.add({"more", {}, {}, sample_header(kBfloat16, {5}), sample_bytes(10, 8)});
  writer.finish({{"step", number(2)}});
}

}  // namespace interop
