// A file's bytes, mapped read-only.

#ifndef INTEROP_MAPPING_H_
#define INTEROP_MAPPING_H_

#include <string>

#include "wire.h"

namespace interop {

class Mapping {
 public:
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Valid as long as the mapping, and as nobody cuts the file short: by the contract only torn tails are cut off.
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace interop

#endif  // INTEROP_MAPPING_H_
