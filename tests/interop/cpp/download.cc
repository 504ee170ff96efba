#include "download.h"

#include "error.h"
#include "sum.h"

namespace interop {

void Download::add_tensor(const std::string& name, const dlpack_wire::v1::DLTensor& header) {
  require(header.data().empty(), "a header with a payload");
  Header parsed = parse_header(header.SerializeAsString());
  sizes_.push_back(check_header(parsed));
  tensors_.push_back({name, parsed, ""});
  skip_complete();
}

void Download::take(const dlpack_wire::v1::Chunk& chunk) {
  require(!complete(), "a chunk that nothing waits for");
  require(chunk.tensor_index() == position_.tensor_index && chunk.offset() == position_.offset,
          "a chunk that is not the next one");
  const uint64_t size = chunk.data().size();
  const uint64_t left = sizes_[position_.tensor_index] - position_.offset;
  require(size > 0 && size <= left, "a chunk without bytes, or beyond the payload");
  require(size % kBlockBytes == 0 || size == left, "a chunk that is not whole blocks");
  const std::vector<uint64_t> sums = block_sums(chunk.data());
  require(static_cast<size_t>(chunk.block_sums_size()) == sums.size(), "not one sum a block");
  for (size_t i = 0; i < sums.size(); ++i) {
    if (chunk.block_sums(static_cast<int>(i)) != sums[i]) fail(Class::checksum, "a block that differs from its sum");
  }
  tensors_[position_.tensor_index].data += chunk.data();
  position_.offset += size;
  skip_complete();
}

void Download::skip_complete() {
  while (!complete() && position_.offset == sizes_[position_.tensor_index]) {
    ++position_.tensor_index;
    position_.offset = 0;
  }
}

std::vector<Received> Download::finish() {
  if (!complete()) fail(Class::truncated, "a stream that ends before its last chunk");
  for (const Received& tensor : tensors_) {
    if (tensor.header.data_sum && *tensor.header.data_sum != data_sum(tensor.data)) {
      fail(Class::checksum, "a payload that differs from its data_sum");
    }
    check_values(tensor.header, tensor.data);
  }
  return std::move(tensors_);
}

}  // namespace interop
