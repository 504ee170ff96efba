// The messages of a Put: start, records, chunks of whole blocks with their sums, finish (V6 to V8).

#ifndef INTEROP_UPLOAD_H_
#define INTEROP_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dlpack_wire/v1/tensor_service.pb.h"
#include "download.h"
#include "file_writer.h"

namespace interop {

struct Upload {
  std::string name;
  std::string id;  // 16 random bytes, or empty: an upload that cannot be resumed
  std::optional<uint64_t> if_generation;
  Metadata metadata;
  std::vector<NewTensor> tensors;
  uint64_t chunk_bytes = 1 << 20;  // whole blocks

  // Sends message after message, at `resume` from that position on, until `send` returns false.
  void each_message(const std::optional<Position>& resume,
                    const std::function<bool(dlpack_wire::v1::PutRequest&)>& send) const;

  // What the server must state as held_sum at a position (V11).
  uint64_t held_sum(const Position& position) const;
};

std::string random_upload_id();

// A record as the service takes it: a header alone.
dlpack_wire::v1::TensorRecord to_record(const NewTensor& tensor);

// The tensor's header as a message, without its payload.
dlpack_wire::v1::DLTensor to_message(const Header& header);

dlpack_wire::v1::Chunk to_chunk(uint32_t tensor_index, uint64_t offset, Bytes data);

}  // namespace interop

#endif  // INTEROP_UPLOAD_H_
