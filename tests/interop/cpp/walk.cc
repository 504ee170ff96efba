#include "walk.h"

#include "error.h"
#include "index.h"

namespace interop {

Part Walk::next() {
  if (index_) {
    const std::optional<Trailer> trailer = find_trailer(file_, position_);
    require(trailer && trailer->index_offset == *index_, "an index without its trailer right behind");
    index_.reset();
    position_ += kTrailerBytes;
    return Part::trailer;
  }
  Scanner scan(file_, position_);
  const Field field = scan.next();
  require(field.wire == Wire::length, "a top-level field that is not length-delimited");
  // A known number of another wire type is no unknown field here: only numbers above 6 are for later revisions.
  require(field.number == 2 || field.number == 3 || field.number > 6, "a top-level field out of place");
  if (field.number == 3) index_ = position_;
  position_ = scan.position();
  return field.number == 2 ? Part::record : field.number == 3 ? Part::index : Part::unknown;
}

void Walk::require_whole() const { require(!index_, "an index without its trailer right behind"); }

}  // namespace interop
