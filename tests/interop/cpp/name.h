// Names of tensors (N1, N2).

#ifndef INTEROP_NAME_H_
#define INTEROP_NAME_H_

#include <vector>

#include "wire.h"

namespace interop {

bool is_utf8(Bytes text);

// The names of one record or entry: the content of field 1, if there is one, and of each field 2.
class Names {
 public:
  // Takes a field of number 1 or 2 and applies the rules that it can break by itself. False for other fields.
  bool take(const Field& field);

  // Rules for all of them together, when the last one has been taken.
  void check() const;

  // Name first; the one empty name if there is no field 1.
  std::vector<Bytes> all() const;

 private:
  bool named_ = false;
  Bytes name_;
  std::vector<Bytes> aliases_;
};

}  // namespace interop

#endif  // INTEROP_NAME_H_
