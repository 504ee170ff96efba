#include "file.h"

#include <algorithm>

#include "error.h"
#include "metadata.h"
#include "sum.h"
#include "walk.h"

namespace interop {
namespace {

constexpr char kMagic[] = "\x09" "DLPWIRE1";
constexpr size_t kMostIndexes = 64;

bool removes_names(const EntryFields& fields, const Entry& entry) {
  if (fields.header) return false;
  require(entry.data_bytes == 0, "an entry with a payload and without a header");
  return true;
}

}  // namespace

File::File(Bytes bytes) : bytes_(bytes) {
  const Bytes magic = kMagic;
  if (bytes.substr(0, kMagicBytes) != magic) {
    const bool version = bytes.size() >= kMagicBytes && bytes.substr(0, 8) == magic.substr(0, 8);
    fail(version ? Class::unsupported : Class::decode, "another magic");
  }
  find_live_generation();
  order_extents();
  // From the newest index to the oldest, so that the first entry of a name is the one that counts.
  for (const Index& index : chain_) {
    for (const Entry& entry : index.entries) {
      for (Bytes name : entry.names) names_.emplace(name, &entry);
    }
  }
  if (names_.count("") != 0) {
    for (const auto& [name, entry] : names_) {
      require(name.empty() || removes_names(parse_entry_fields(*entry), *entry), "an empty name beside another");
    }
  }
}

void File::find_live_generation() {
  const uint64_t size = bytes_.size();
  const uint64_t last = size < kTrailerBytes ? size : size - kTrailerBytes;
  const std::optional<Trailer> trailer = find_trailer(bytes_, last);
  std::optional<Error> fault;
  if (trailer) {
    try {
      return load_chain(trailer->index_offset, size);
    } catch (const Error& error) {
      fault = error;
    }
  }

  uint64_t complete = 0;
  uint64_t index = 0;
  uint64_t complete_index = 0;
  bool boundary = false;  // whole fields lead to where the last trailer says that its index is
  Walk walk(bytes_, kMagicBytes);
  try {
    for (;;) {
      if (trailer && walk.position() == trailer->index_offset) boundary = true;
      if (walk.done()) break;
      const uint64_t begin = walk.position();
      const Part part = walk.next();
      if (part == Part::index) index = begin;
      if (part == Part::trailer) {
        complete = walk.position();
        complete_index = index;
      }
    }
  } catch (const Error&) {
    // A torn tail, if a generation came before it.
  }
  if (trailer) {
    const uint64_t stop = walk.position();
    const bool finished = stop == size || stop == last || stop == trailer->index_offset;
    if (complete == 0 || finished || (boundary && complete <= trailer->index_offset)) throw *fault;
  }
  require(complete != 0, "a file that is not finalised");
  load_chain(complete_index, complete);
}

void File::load_chain(uint64_t newest, uint64_t end) {
  std::vector<Index> chain;
  uint64_t begin = newest;
  do {
    if (chain.size() == kMostIndexes) fail(Class::limit, "a chain of more than 64 indexes");
    Index index = parse_index(bytes_, begin);
    if (chain.empty()) {
      require(index.end + kTrailerBytes == end, "a trailer that is not behind its index");
    } else {
      require(index.end + kTrailerBytes <= chain.back().begin, "a base that is no earlier index");
      if (index.sum != chain.back().base_sum) fail(Class::checksum, "a base with another sum");
    }
    check_extents(index);
    check_names(index);
    begin = index.base_offset;
    chain.push_back(std::move(index));
  } while (begin != 0);
  require(chain.back().base_sum == 0, "a base's sum without a base");
  chain_ = std::move(chain);
  end_ = end;
}

void File::order_extents() {
  for (const Index& index : chain_) {
    for (const Entry& entry : index.entries) extents_.push_back(&entry);
  }
  std::sort(extents_.begin(), extents_.end(),
            [](const Entry* a, const Entry* b) { return a->record_offset < b->record_offset; });
  for (size_t i = 1; i < extents_.size(); ++i) {
    require(extents_[i - 1]->end() <= extents_[i]->record_offset, "records that overlap");
  }
}

std::optional<StoredTensor> File::read(const Entry& entry) const {
  const EntryFields fields = parse_entry_fields(entry);
  if (removes_names(fields, entry)) return std::nullopt;
  const Record record = parse_record(bytes_.substr(0, entry.end()), entry.record_offset);
  check_agreement(entry, fields, record);
  check_gap_before(entry);
  return StoredTensor{record.header, bytes_.substr(record.data_begin, record.data_bytes())};
}

void File::check_gap_before(const Entry& entry) const {
  const auto next = std::lower_bound(extents_.begin(), extents_.end(), entry.record_offset,
                                     [](const Entry* a, uint64_t offset) { return a->record_offset < offset; });
  const uint64_t begin = next == extents_.begin() ? kMagicBytes : (*std::prev(next))->end();
  Walk walk(bytes_.substr(0, entry.record_offset), begin);
  while (!walk.done()) walk.next();
  walk.require_whole();
}

void File::verify() const {
  require(end_ == bytes_.size(), "a torn tail");
  std::vector<uint64_t> records;
  std::map<uint64_t, uint64_t> indexes;  // with the sum that each one's trailer states
  for (Walk walk(bytes_, kMagicBytes); !walk.done();) {
    const uint64_t begin = walk.position();
    const Part part = walk.next();
    if (part == Part::record) records.push_back(begin);
    if (part == Part::trailer) {
      const Trailer trailer = *find_trailer(bytes_, begin);
      indexes[trailer.index_offset] = trailer.sum;
    }
  }

  std::map<Bytes, uint64_t> claims;  // the last record that claims a name; 0 if it removes it
  for (uint64_t begin : records) {
    const Record record = parse_record(bytes_, begin);
    if (!record.removes) {
      check_payload({record.header, bytes_.substr(record.data_begin, record.data_bytes())});
    }
    for (Bytes name : record.label.names.all()) claims[name] = record.removes ? 0 : begin;
  }
  for (const auto& [begin, sum] : indexes) verify_index(begin, records, indexes);

  const auto denoted = [this](Bytes name) -> uint64_t {
    const auto found = names_.find(name);
    if (found == names_.end()) return 0;
    return removes_names(parse_entry_fields(*found->second), *found->second) ? 0 : found->second->record_offset;
  };
  // A name that only the index has would differ from its record's, which check_agreement has refused.
  for (const auto& [name, record] : claims) {
    require(denoted(name) == record, "a name that does not denote the last record that claims it");
  }
}

void File::verify_index(uint64_t begin, const std::vector<uint64_t>& records,
                        const std::map<uint64_t, uint64_t>& indexes) const {
  const Index index = parse_index(bytes_, begin);
  check_names(index);
  check_metadata(index.metadata);
  uint64_t base_sum = 0;
  if (index.base_offset != 0) {
    const auto base = indexes.find(index.base_offset);
    require(base != indexes.end() && base->first < begin, "a base that is no earlier index");
    base_sum = base->second;
  }
  if (index.base_sum != base_sum) fail(Class::checksum, "a base with another sum");
  for (const Entry& entry : index.entries) {
    require(std::binary_search(records.begin(), records.end(), entry.record_offset), "an entry of no record");
    check_agreement(entry, parse_entry_fields(entry), parse_record(bytes_, entry.record_offset));
  }
}

void check_payload(const StoredTensor& tensor) {
  if (data_sum(tensor.data) != tensor.header.data_sum) fail(Class::checksum, "a payload that differs from its sum");
  check_values(tensor.header, tensor.data);
}

}  // namespace interop
