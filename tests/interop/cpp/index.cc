#include "index.h"

#include <algorithm>
#include <unordered_set>

#include "error.h"
#include "sum.h"

namespace interop {
namespace {

constexpr uint64_t kMostIndexBytes = (uint64_t{1} << 31) - 1;
constexpr uint64_t kMostMetadataBytes = 16 << 20;
constexpr uint64_t kIndexOffsetFieldBytes = 9;
constexpr char kNameTag = 0x0a;
constexpr char kAliasTag = 0x12;
constexpr char kEndMagic[] = "1DLPWIREE";  // the tag of field 6 is the digit 1
constexpr char kFixed64Tags13To15[] = "iqy";

Entry parse_entry(Bytes content) {
  if (content.size() < kOffsetsBytes) fail(Class::truncated, "an index entry without its offsets");
  const Bytes offsets = content.substr(content.size() - kOffsetsBytes);
  for (size_t i = 0; i < 3; ++i) require(offsets[9 * i] == kFixed64Tags13To15[i], "an index entry without its offsets");
  Entry entry;
  entry.fields = content.substr(0, content.size() - kOffsetsBytes);
  entry.record_offset = load64(offsets.substr(1));
  entry.data_offset = load64(offsets.substr(10));
  entry.data_bytes = load64(offsets.substr(19));
  // A name and aliases stand first; what is behind them, another name too, is read's to judge.
  Names names;
  char wanted = kNameTag;
  for (Scanner scan(entry.fields); !scan.done();) {
    const char tag = entry.fields[scan.position()];
    if (tag != wanted && tag != kAliasTag) break;
    names.take(scan.next());
    wanted = kAliasTag;
  }
  names.check();
  entry.names = names.all();
  return entry;
}

}  // namespace

std::optional<Trailer> find_trailer(Bytes file, uint64_t begin) {
  if (begin > file.size() || file.size() - begin < kTrailerBytes) return std::nullopt;
  const Bytes bytes = file.substr(begin, kTrailerBytes);
  if (bytes[0] != '\x21' || bytes[9] != '\x29' || bytes.substr(18) != kEndMagic) return std::nullopt;
  return Trailer{load64(bytes.substr(1)), load64(bytes.substr(10))};
}

EntryFields parse_entry_fields(const Entry& entry) {
  EntryFields fields;
  Order order;
  for (Scanner scan(entry.fields); !scan.done();) {
    const Field field = scan.next();
    field.number == 2 || field.number == 3 ? order.see_repeatable(field.number) : order.see(field.number);
    require(field.number < 13, "a field of an entry behind its offsets' place");
    if (fields.label.take(field)) continue;
    if (field.number == 4) {
      require(field.wire == Wire::length, "an entry's header of another wire type");
      fields.header = field.content;
    } else if (field.number == 5) {
      require(field.wire == Wire::length && field.content.size() % 8 == 0, "block_sums that are not packed");
      fields.block_sums.emplace();
      for (size_t i = 0; i < field.content.size(); i += 8) {
        fields.block_sums->push_back(load64(field.content.substr(i)));
      }
    } else if (field.number <= 8) {
      fail(Class::unsupported, "field 6 to 8 of an entry, which a later revision may define");
    }
  }
  fields.label.check();
  return fields;
}

Index parse_index(Bytes file, uint64_t begin) {
  require(begin >= kMagicBytes && begin < file.size(), "an index offset outside the file");
  Scanner top(file, begin);
  const Field whole = top.next();
  require(whole.is(3, Wire::length), "no index where one must begin");
  if (whole.content.size() > kMostIndexBytes) fail(Class::limit, "an index of 2 GiB or more");
  Index index;
  index.begin = begin;
  index.end = top.position();
  const std::optional<Trailer> trailer = find_trailer(file, index.end);
  require(trailer && trailer->index_offset == begin, "an index without its trailer right behind");
  index.sum = trailer->sum;
  if (xxh3(file.substr(begin, whole.whole.size() + kIndexOffsetFieldBytes)) != index.sum) {
    fail(Class::checksum, "an index that differs from its sum");
  }

  Order order;
  uint64_t metadata_bytes = 0;
  for (Scanner scan(whole.content); !scan.done();) {
    const Field field = scan.next();
    field.number <= 2 ? order.see_repeatable(field.number) : order.see(field.number);
    require(field.number > 4 || field.wire == (field.number <= 2 ? Wire::length : Wire::fixed64),
            "a field of an index with another wire type");
    switch (field.number) {
      case 1:
        index.entries.push_back(parse_entry(field.content));
        break;
      case 2:
        metadata_bytes += field.whole.size();
        if (metadata_bytes > kMostMetadataBytes) fail(Class::limit, "an index with more than 16 MiB of metadata");
        index.metadata.push_back(field.content);
        break;
      case 3:
        index.base_offset = field.value;
        break;
      case 4:
        index.base_sum = field.value;
        break;
    }
  }
  return index;
}

void check_extents(const Index& index) {
  for (const Entry& entry : index.entries) {
    require(entry.record_offset >= kMagicBytes && entry.record_offset < entry.data_offset &&
                entry.data_offset <= index.begin && entry.data_bytes <= index.begin - entry.data_offset,
            "an entry's extent outside magic and index");
    require(entry.data_bytes == 0 || entry.data_offset % kFileAlignment == 0, "a payload that is not aligned");
  }
}

void check_names(const Index& index) {
  std::unordered_set<Bytes> seen;
  for (const Entry& entry : index.entries) {
    for (Bytes name : entry.names) require(seen.insert(name).second, "a name twice in an index");
  }
}

void check_agreement(const Entry& entry, const EntryFields& fields, const Record& record) {
  require(record.end == entry.end() && record.data_begin == entry.data_offset, "an entry with another extent");
  require(fields.header.has_value() != record.removes, "an entry without a header, or a removal with one");
  require(record.removes || *fields.header == record.header_fields, "an entry with another header");
  require(fields.label.metadata_fields == record.label.metadata_fields, "an entry with other metadata");
  const std::vector<Bytes> names = record.label.names.all();
  const std::unordered_set<Bytes> known(names.begin(), names.end());
  for (Bytes name : entry.names) require(known.count(name) != 0, "an entry with a name that its record has not");

  const uint64_t blocks = (entry.data_bytes + kBlockBytes - 1) / kBlockBytes;
  require(fields.block_sums.has_value() == (blocks > 1), "block_sums of one block, or none of several");
  if (!fields.block_sums) return;
  require(fields.block_sums->size() == blocks, "block_sums of another number of blocks");
  if (sum_of_sums(*fields.block_sums) != *record.header.data_sum) {
    fail(Class::checksum, "block_sums that do not give data_sum");
  }
}

}  // namespace interop
