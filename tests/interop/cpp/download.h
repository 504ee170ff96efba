// Tensors that come from the service: headers, then chunks in order, every block checked (V6, V7).

#ifndef INTEROP_DOWNLOAD_H_
#define INTEROP_DOWNLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dlpack_wire/v1/tensor_service.pb.h"
#include "tensor.h"

namespace interop {

// Where a stream of chunks stands: its next byte.
struct Position {
  uint32_t tensor_index = 0;
  uint64_t offset = 0;
};

struct Received {
  std::string name;
  Header header;
  std::string data;
};

// Serves a Get or a Fetch of several tensors, and a frame of one. A parsed message no longer shows what M18 forbids, so
// this client trusts its server so far; everything else about headers and payloads is checked.
class Download {
 public:
  void add_tensor(const std::string& name, const dlpack_wire::v1::DLTensor& header);
  void take(const dlpack_wire::v1::Chunk& chunk);

  // The next byte that must come; past the last tensor if none.
  Position position() const { return position_; }
  bool complete() const { return position_.tensor_index == tensors_.size(); }

  // All tensors, each with its whole payload, compared with its sum if it has one.
  std::vector<Received> finish();

 private:
  void skip_complete();

  std::vector<Received> tensors_;
  std::vector<uint64_t> sizes_;
  Position position_;
};

}  // namespace interop

#endif  // INTEROP_DOWNLOAD_H_
