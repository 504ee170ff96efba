#include "record.h"

#include <optional>

#include "error.h"
#include "metadata.h"
#include "sum.h"

namespace interop {
namespace {

constexpr uint64_t kMostLabelBytes = (1 << 20) - 9;
constexpr uint64_t kMostContentBytes = 1 << 20;
constexpr uint64_t kMostHeadBytes = 1130560;

// The tensor of a record: header, padding, data, in this order.
void parse_record_tensor(Record& record, Bytes tensor) {
  Order order;
  uint64_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  bool padded = false;
  for (Scanner scan(tensor); !scan.done();) {
    const Field field = scan.next();
    order.see(field.number);
    if (field.is(14, Wire::length)) {
      padded = true;
      if (field.content.size() > kMostPaddingBytes) fail(Class::limit, "padding of more than 16384 bytes");
      require(field.content.find_first_not_of('\0') == Bytes::npos, "padding that is not zero");
    } else if (field.number == 15) {
      require(field.wire == Wire::length && scan.done(), "data that does not end its tensor");
      require(!field.content.empty(), "data written out for an empty payload");
      payload_bytes = field.content.size();
    } else {
      require(!padded, "a field between padding and data");
      header_bytes += field.whole.size();
    }
  }
  require(!padded || payload_bytes > 0, "padding of an empty payload");
  record.header_fields = tensor.substr(0, header_bytes);
  record.data_begin = record.end - payload_bytes;
  record.header = parse_header(record.header_fields);
  require(record.header.data_sum.has_value(), "no data_sum");
  check_size(check_header(record.header), payload_bytes);
  require(payload_bytes == 0 || record.data_begin % kFileAlignment == 0, "a payload that is not aligned");
}

}  // namespace

bool Label::take(const Field& field) {
  if (field.number > 3) return false;
  bytes_ += field.whole.size();
  if (bytes_ > kMostLabelBytes) fail(Class::limit, "names and metadata of more than 1 MiB - 9 bytes");
  if (names.take(field)) return true;
  require(field.wire == Wire::length, "metadata of another wire type");
  // Neighbours on the wire, as fields come in order, so that they make one range.
  metadata_fields = metadata.empty() ? field.whole
                                     : Bytes(metadata_fields.data(), metadata_fields.size() + field.whole.size());
  metadata.push_back(field.content);
  return true;
}

void Label::check() const {
  names.check();
  check_metadata(metadata);
}

void Order::see(uint32_t number) {
  require(number > last_, "a field out of order, or twice");
  last_ = number;
}

void Order::see_repeatable(uint32_t number) {
  require(number >= last_, "a field out of order");
  last_ = number;
}

Record parse_record(Bytes file, uint64_t begin) {
  Scanner top(file, begin);
  const Field whole = top.next();
  require(whole.is(2, Wire::length), "no record where one must begin");
  const Bytes content = whole.content;
  Record record;
  record.begin = begin;
  record.end = record.data_begin = top.position();
  const uint64_t content_begin = record.end - content.size();

  Order order;
  uint64_t content_bytes = 0;
  std::optional<uint64_t> sum;
  uint64_t sum_begin = 0;
  std::optional<Bytes> tensor;
  for (Scanner scan(content); !scan.done();) {
    const Field field = scan.next();
    field.number == 2 || field.number == 3 ? order.see_repeatable(field.number) : order.see(field.number);
    if (field.number != 15) {
      content_bytes += field.whole.size();
      if (content_bytes > kMostContentBytes) fail(Class::limit, "a record of more than 1 MiB without its tensor");
    }
    if (record.label.take(field)) continue;
    if (field.number <= 8) fail(Class::unsupported, "field 4 to 8 of a record, which a later revision may define");
    if (field.number == 14) {
      require(field.wire == Wire::fixed64, "a header_xxh3_64 of another wire type");
      sum = field.value;
      sum_begin = content_begin + scan.position() - 8;
    } else if (field.number == 15) {
      require(field.wire == Wire::length && scan.done(), "a tensor that does not end its record");
      tensor = field.content;
    }
  }
  require(sum.has_value(), "no header_xxh3_64");
  record.removes = !tensor;
  if (tensor) parse_record_tensor(record, *tensor);
  record.label.check();
  require(!record.removes || !record.label.names.all()[0].empty(), "a removal without a name");
  const uint64_t head_bytes = record.data_begin - begin;
  if (head_bytes > kMostHeadBytes) fail(Class::limit, "a record's head of more than 1130560 bytes");
  if (xxh3_with_hole(file.substr(begin, head_bytes), sum_begin - begin) != *sum) {
    fail(Class::checksum, "a record's head that differs from its header_xxh3_64");
  }
  return record;
}

}  // namespace interop
