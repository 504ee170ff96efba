// Selections of a Get (V17), done here to compare the server's with.

#ifndef INTEROP_SELECTION_H_
#define INTEROP_SELECTION_H_

#include <string>
#include <vector>

#include "dlpack_wire/v1/tensor_service.pb.h"
#include "tensor.h"

namespace interop {

struct Selected {
  std::vector<int64_t> shape;
  std::string data;
};

// Of a compact row-major tensor; the selections must be in range.
Selected select(const Header& header, const std::string& data,
                const std::vector<dlpack_wire::v1::AxisSelection>& selections);

}  // namespace interop

#endif  // INTEROP_SELECTION_H_
