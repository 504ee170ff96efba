#include "client.h"

#include <chrono>

#include "error.h"
#include "sum.h"

namespace interop {

using namespace dlpack_wire::v1;

namespace {

constexpr std::chrono::seconds kDeadline{30};

std::string trailer(const grpc::ClientContext& context, const std::string& key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace

Refused::Refused(const grpc::Status& status, const grpc::ClientContext& context)
    : std::runtime_error(status.error_message()),
      code(status.error_code()),
      reason(trailer(context, "dlpack-wire-reason")) {}

Client::Client(const std::string& address)
    : stub_(TensorService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

void Client::set_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
}

std::optional<PutResponse> Client::put(const Upload& upload, const std::optional<Position>& resume,
                                       const OnMessage& on_message) {
  grpc::ClientContext context;
  set_deadline(context);
  PutResponse response;
  const auto writer = stub_->Put(&context, &response);
  bool cancelled = false;
  upload.each_message(resume, [&](PutRequest& request) {
    if (on_message && !on_message(request)) {
      context.TryCancel();
      cancelled = true;
      return false;
    }
    // False when the server has answered early; Finish tells what.
    return writer->Write(request);
  });
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (cancelled) return std::nullopt;
  if (!status.ok()) throw Refused(status, context);
  return response;
}

PutResponse Client::resume(const Upload& upload) {
  GetUploadStatusRequest request;
  request.set_upload_id(upload.id);
  const GetUploadStatusResponse status = call(&TensorService::Stub::GetUploadStatus, request);
  if (status.state() == GetUploadStatusResponse::COMMITTED) {
    PutResponse response;
    response.set_generation(status.generation());
    response.set_already_committed(true);
    return response;
  }
  const Position position{status.tensor_index(), status.offset()};
  const bool holds = status.state() == GetUploadStatusResponse::RECEIVING &&
                     status.tensor_index() <= upload.tensors.size() && status.held_sum() == upload.held_sum(position);
  return *put(upload, holds ? std::optional(position) : std::nullopt);
}

void Client::get_into(Download& download, const GetRequest& request, bool has_records) {
  grpc::ClientContext context;
  set_deadline(context);
  const auto reader = stub_->Get(&context, request);
  GetResponse response;
  uint64_t records_left = 0;
  bool first = true;
  try {
    while (reader->Read(&response)) {
      if (first) records_left = response.record_count();
      first = false;
      require(records_left >= static_cast<uint64_t>(response.records_size()), "more records than announced");
      records_left -= static_cast<uint64_t>(response.records_size());
      for (const TensorRecord& record : response.records()) {
        if (!has_records) download.add_tensor(record.name(), record.tensor());
      }
      require(!response.has_chunk() || records_left == 0, "a chunk before the last record");
      if (response.has_chunk()) download.take(response.chunk());
    }
  } catch (const Error&) {
    context.TryCancel();  // a reader must not be dropped in the middle of a call
    reader->Finish();
    throw;
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) throw Refused(status, context);
  require(!first && records_left == 0, "a stream without all its records");
}

std::vector<Received> Client::get(const GetRequest& request) {
  Download download;
  get_into(download, request, false);
  return download.finish();
}

std::vector<Received> Client::fetch(const std::string& name) {
  FetchRequest request;
  request.set_name(name);
  const FetchResponse response = call(&TensorService::Stub::Fetch, request);
  Download download;
  for (const TensorRecord& record : response.records()) download.add_tensor(record.name(), record.tensor());
  for (const Chunk& chunk : response.chunks()) download.take(chunk);
  require(response.complete() == download.complete(), "a Fetch that misstates whether it is complete");
  if (!download.complete()) {
    GetRequest rest;
    rest.set_name(name);
    rest.set_generation(response.object().generation());
    rest.set_start_tensor_index(download.position().tensor_index);
    rest.set_start_offset(download.position().offset);
    get_into(download, rest, true);
  }
  return download.finish();
}

PublishResponse Client::publish(const std::vector<NewFrame>& frames) {
  grpc::ClientContext context;
  set_deadline(context);
  const auto stream = stub_->Publish(&context);
  for (const NewFrame& frame : frames) {
    PublishRequest request;
    request.mutable_frame()->set_topic(frame.topic);
    *request.mutable_frame()->mutable_header() = to_message(frame.tensor.header);
    for (const auto& [key, value] : frame.tensor.metadata) (*request.mutable_frame()->mutable_metadata())[key] = value;
    const Bytes data = frame.tensor.data;
    // The frame shares a message with its first chunk.
    uint64_t offset = 0;
    do {
      if (!data.empty()) *request.mutable_chunk() = to_chunk(0, offset, data.substr(offset, kBlockBytes));
      if (!stream->Write(request)) break;
      request.Clear();
      offset += kBlockBytes;
    } while (offset < data.size());
  }
  stream->WritesDone();
  // Read after the last frame only: the answers are small, and the transport holds far more of them.
  PublishResponse response;
  PublishResponse last;
  while (stream->Read(&response)) last = response;
  const grpc::Status status = stream->Finish();
  if (!status.ok()) throw Refused(status, context);
  return last;
}

std::unique_ptr<Subscription> Client::subscribe(const SubscribeRequest& request) {
  return std::make_unique<Subscription>(*stub_, request);
}

Subscription::Subscription(TensorService::Stub& stub, const SubscribeRequest& request) {
  Client::set_deadline(context_);
  reader_ = stub.Subscribe(&context_, request);
}

Subscription::~Subscription() {
  if (finished_) return;
  context_.TryCancel();
  SubscribeResponse rest;
  while (reader_->Read(&rest)) {
  }
  reader_->Finish();
}

SubscribeResponse Subscription::read() {
  SubscribeResponse response;
  if (!reader_->Read(&response)) {
    finished_ = true;
    throw Refused(reader_->Finish(), context_);
  }
  require(response.has_start() != started_, "a subscription that does not begin with start, or states it twice");
  started_ = true;
  return response;
}

std::optional<ReceivedFrame> Subscription::next_event() {
  for (;;) {
    // A message may bring `start` or `caught_up` and a frame; what is used is cleared, the rest kept for the next call.
    SubscribeResponse message = pending_ ? *pending_ : read();
    pending_.reset();
    if (message.caught_up()) {
      message.set_caught_up(false);
      pending_ = message;
      return std::nullopt;
    }
    if (!message.has_frame()) {
      require(!message.has_chunk(), "a chunk without its frame");
      continue;
    }
    Download download;
    download.add_tensor(message.frame().topic(), message.frame().header());
    if (message.has_chunk()) download.take(message.chunk());
    while (!download.complete()) {
      const SubscribeResponse more = read();
      require(more.has_chunk() && !more.has_frame(), "a frame inside another");
      download.take(more.chunk());
    }
    return ReceivedFrame{message.frame(), download.finish()[0]};
  }
}

std::vector<ReceivedFrame> Subscription::catch_up() {
  std::vector<ReceivedFrame> frames;
  while (auto frame = next_event()) frames.push_back(*frame);
  return frames;
}

ReceivedFrame Subscription::next() {
  auto frame = next_event();
  require(frame.has_value(), "caught_up twice");
  return *frame;
}

}  // namespace interop
