#include "metadata.h"

#include <limits>

#include "error.h"
#include "name.h"

namespace interop {

void check_metadata(const std::vector<Bytes>& entries) {
  Bytes last;
  bool first = true;
  for (Bytes entry : entries) {
    Scanner scan(entry);
    const Field key = scan.next();
    require(key.is(1, Wire::length) && is_utf8(key.content), "metadata without a key, or whose key is not UTF-8");
    // string_view compares as unsigned bytes.
    require(first || last < key.content, "metadata that is not sorted, or a key twice");
    require(!scan.done(), "metadata without a value");
    const Field value = scan.next();
    require(value.is(2, Wire::length) && scan.done(), "metadata that is not exactly a key and a value");
    // M18 does not reach into the value, so that a stock parser is right for it; it also checks text for UTF-8 and
    // keeps kinds that it does not know.
    dlpack_wire::v1::MetadataValue parsed;
    require(value.content.size() <= std::numeric_limits<int>::max() &&
                parsed.ParseFromArray(value.content.data(), static_cast<int>(value.content.size())),
            "a metadata value that does not parse");
    last = key.content;
    first = false;
  }
}

std::map<Bytes, Bytes> metadata_values(const std::vector<Bytes>& entries) {
  std::map<Bytes, Bytes> values;
  for (Bytes entry : entries) {
    Scanner scan(entry);
    const Bytes key = scan.next().content;
    values[key] = scan.next().content;
  }
  return values;
}

std::string metadata_field(uint32_t number, Bytes key, const dlpack_wire::v1::MetadataValue& value) {
  return length_field(number, length_field(1, key) + length_field(2, value.SerializeAsString()));
}

}  // namespace interop
