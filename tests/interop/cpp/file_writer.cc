#include "file_writer.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include "error.h"
#include "file.h"
#include "mapping.h"
#include "metadata.h"
#include "sum.h"

namespace interop {
namespace {

constexpr char kMagic[] = "\x09" "DLPWIRE1";
constexpr char kEndMagicField[] = "1DLPWIREE";
constexpr uint64_t kSumFieldBytes = 9;

[[noreturn]] void fail_system(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

std::string metadata_fields(uint32_t number, const Metadata& metadata) {
  std::string fields;
  for (const auto& [key, value] : metadata) fields += metadata_field(number, key, value);
  return fields;
}

// Fields 1 to 3 of a record and its entry.
std::string label_fields(const NewTensor& tensor) {
  std::string fields;
  if (!tensor.name.empty()) fields += length_field(1, tensor.name);
  for (const std::string& alias : tensor.aliases) fields += length_field(2, alias);
  return fields + metadata_fields(3, tensor.metadata);
}

// A record up to its payload. `tensor_fields` are those before data, nothing for a removal.
std::string record_head(const std::string& label, const std::string& tensor_fields, uint64_t data_bytes) {
  std::string content = label;
  uint64_t sum_end = content.size() + kSumFieldBytes;
  content += fixed64_field(14, 0);
  if (!tensor_fields.empty()) {
    const std::string data_head = data_bytes == 0 ? "" : length_head(15, data_bytes);
    content += length_head(15, tensor_fields.size() + data_head.size() + data_bytes) + tensor_fields + data_head;
  }
  std::string record = length_head(2, content.size() + data_bytes);
  sum_end += record.size();
  record += content;
  // The field's 8 bytes are still zero, as its rule takes them.
  return record.replace(sum_end - 8, 8, fixed64_bytes(xxh3(record)));
}

// With the smallest padding that puts the payload of a record at `offset` on an aligned position, found by trial:
// the padding makes the lengths before it grow.
std::string aligned_head(const std::string& label, const std::string& header, uint64_t data_bytes, uint64_t offset) {
  std::string head = record_head(label, header, data_bytes);
  for (std::string zeros; data_bytes > 0 && (offset + head.size()) % kFileAlignment != 0;) {
    zeros += '\0';
    head = record_head(label, header + length_field(14, zeros), data_bytes);
  }
  return head;
}

}  // namespace

FileWriter::FileWriter(const std::string& path, bool append) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_system(path);
  try {
    // Held until the descriptor closes.
    if (::flock(fd_, LOCK_EX) != 0) fail_system(path);
    if (append) {
      const Mapping mapping(path);
      const File file(mapping.bytes());
      base_offset_ = file.chain()[0].begin;
      base_sum_ = file.chain()[0].sum;
      offset_ = file.end();
    }
    if (::ftruncate(fd_, static_cast<off_t>(offset_)) != 0) fail_system(path);
    if (::lseek(fd_, 0, SEEK_END) < 0) fail_system(path);
    if (!append) write(kMagic);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

FileWriter::~FileWriter() { ::close(fd_); }

void FileWriter::add(const NewTensor& tensor) {
  Header header = tensor.header;
  check_size(check_header(header), tensor.data.size());
  check_values(header, tensor.data);
  header.data_sum = data_sum(tensor.data);
  const std::string fields = header_bytes(header);
  const std::string label = label_fields(tensor);
  const uint64_t begin = offset_;
  write(aligned_head(label, fields, tensor.data.size(), begin));
  write(tensor.data);

  std::string entry = length_field(4, fields);
  if (tensor.data.size() > kBlockBytes) {
    std::string sums;
    for (uint64_t sum : block_sums(tensor.data)) sums += fixed64_bytes(sum);
    entry += length_field(5, sums);
  }
  add_entry(label, entry, begin, tensor.data.size());
}

void FileWriter::remove(const std::string& name) {
  const std::string label = length_field(1, name);
  const uint64_t begin = offset_;
  write(record_head(label, "", 0));
  add_entry(label, "", begin, 0);
}

void FileWriter::add_entry(const std::string& label, const std::string& header_and_sums, uint64_t record_offset,
                           uint64_t data_bytes) {
  entries_ += length_field(1, label + header_and_sums + fixed64_field(13, record_offset) +
                                  fixed64_field(14, offset_ - data_bytes) + fixed64_field(15, data_bytes));
}

void FileWriter::finish(const Metadata& file_metadata) {
  sync();  // records first: an index must never be whole before what it names
  std::string content = entries_ + metadata_fields(2, file_metadata);
  if (base_offset_ != 0) content += fixed64_field(3, base_offset_) + fixed64_field(4, base_sum_);
  const std::string summed = length_field(3, content) + fixed64_field(4, offset_);
  write(summed + fixed64_field(5, xxh3(summed)) + kEndMagicField);
  sync();
}

void FileWriter::write(Bytes bytes) {
  offset_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system(path_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void FileWriter::sync() {
  if (::fdatasync(fd_) != 0) fail_system(path_);
}

}  // namespace interop
