// Writes a tensor file, or a further generation of one.

#ifndef INTEROP_FILE_WRITER_H_
#define INTEROP_FILE_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dlpack_wire/v1/tensor_file.pb.h"
#include "tensor.h"

namespace interop {

using Metadata = std::map<std::string, dlpack_wire::v1::MetadataValue>;  // sorted as N5 asks

struct NewTensor {
  std::string name;
  std::vector<std::string> aliases;
  Metadata metadata;
  Header header;  // its data_sum is made by the writer
  std::string data;
};

class FileWriter {
 public:
  // A new file, or one that is overwritten.
  static FileWriter create(const std::string& path) { return FileWriter(path, false); }

  // The next generation of a file; a torn tail is cut off.
  static FileWriter append(const std::string& path) { return FileWriter(path, true); }

  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void add(const NewTensor& tensor);
  void remove(const std::string& name);

  // Writes the index; without it the generation is a torn tail.
  void finish(const Metadata& file_metadata);

 private:
  FileWriter(const std::string& path, bool append);
  void write(Bytes bytes);
  void sync();
  void add_entry(const std::string& label, const std::string& header_and_sums, uint64_t record_offset,
                 uint64_t data_bytes);

  std::string path_;
  int fd_;
  uint64_t offset_ = 0;
  std::string entries_;
  uint64_t base_offset_ = 0;
  uint64_t base_sum_ = 0;
};

}  // namespace interop

#endif  // INTEROP_FILE_WRITER_H_
