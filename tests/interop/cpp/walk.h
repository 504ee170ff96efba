// A walk over a file's top-level fields by their lengths, under F5. It reads no payload.

#ifndef INTEROP_WALK_H_
#define INTEROP_WALK_H_

#include <cstdint>
#include <optional>

#include "wire.h"

namespace interop {

enum class Part { record, index, trailer, unknown };

class Walk {
 public:
  Walk(Bytes file, uint64_t begin) : file_(file), position_(begin) {}

  // No part is left. True between an index and its trailer at the end of the bytes too; see require_whole.
  bool done() const { return position_ == file_.size(); }

  // Where the next part begins; after an error, where the part that has it begins.
  uint64_t position() const { return position_; }

  // Passes over the next part; an error for what F5 refuses, or a field beyond the file.
  Part next();

  // An error if the walk ends between an index and its trailer.
  void require_whole() const;

 private:
  Bytes file_;
  uint64_t position_;
  std::optional<uint64_t> index_;  // the one whose trailer must come next
};

}  // namespace interop

#endif  // INTEROP_WALK_H_
