#include "upload.h"

#include <random>

#include "error.h"
#include "sum.h"

namespace interop {

using dlpack_wire::v1::Chunk;
using dlpack_wire::v1::DLTensor;
using dlpack_wire::v1::PutRequest;
using dlpack_wire::v1::PutStart;
using dlpack_wire::v1::TensorRecord;

void Upload::each_message(const std::optional<Position>& resume, const std::function<bool(PutRequest&)>& send) const {
  PutRequest request;
  PutStart& start = *request.mutable_start();
  start.set_name(name);
  start.set_upload_id(id);
  if (resume) {
    start.set_resume(true);  // the rest holds as first stated
  } else {
    if (if_generation) start.set_if_generation(*if_generation);
    for (const auto& [key, value] : metadata) (*start.mutable_metadata())[key] = value;
    for (const NewTensor& tensor : tensors) start.set_payload_bytes(start.payload_bytes() + tensor.data.size());
    start.set_record_count(tensors.size());
  }
  if (!send(request)) return;
  // A record a message, as many headers may be too large for one message together.
  for (size_t i = 0; !resume && i < tensors.size(); ++i) {
    request.Clear();
    *request.add_records() = to_record(tensors[i]);
    if (!send(request)) return;
  }
  Position position = resume.value_or(Position{});
  for (; position.tensor_index < tensors.size(); ++position.tensor_index, position.offset = 0) {
    const Bytes data = tensors[position.tensor_index].data;
    for (; position.offset < data.size(); position.offset += chunk_bytes) {
      request.Clear();
      *request.mutable_chunk() =
          to_chunk(position.tensor_index, position.offset, data.substr(position.offset, chunk_bytes));
      if (!send(request)) return;
    }
  }
  request.Clear();
  request.set_finish(true);
  send(request);
}

uint64_t Upload::held_sum(const Position& position) const {
  if (position.tensor_index == tensors.size()) return sum_of_sums({});
  return sum_of_sums(block_sums(Bytes(tensors[position.tensor_index].data).substr(0, position.offset)));
}

std::string random_upload_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 16; ++i) id += static_cast<char>(random());
  return id;
}

TensorRecord to_record(const NewTensor& tensor) {
  TensorRecord record;
  record.set_name(tensor.name);
  for (const std::string& alias : tensor.aliases) record.add_aliases(alias);
  for (const auto& [key, value] : tensor.metadata) (*record.mutable_metadata())[key] = value;
  *record.mutable_tensor() = to_message(tensor.header);
  return record;
}

DLTensor to_message(const Header& header) {
  DLTensor message;
  require(message.ParseFromString(header_bytes(header)), "a header that does not parse");
  return message;
}

Chunk to_chunk(uint32_t tensor_index, uint64_t offset, Bytes data) {
  Chunk chunk;
  chunk.set_tensor_index(tensor_index);
  chunk.set_offset(offset);
  for (uint64_t sum : block_sums(data)) chunk.add_block_sums(sum);
  chunk.set_data(std::string(data));
  return chunk;
}

}  // namespace interop
