#include "scenario.h"

#include <chrono>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include "client.h"
#include "error.h"
#include "sample.h"
#include "selection.h"
#include "sum.h"

namespace interop {
namespace {

using namespace dlpack_wire::v1;
using Stub = TensorService::Stub;
using grpc::StatusCode;

template <typename A, typename B>
void expect_equal(const char* what, const A& found, const B& wanted) {
  if (found == wanted) return;
  std::ostringstream says;
  says << what << " is " << found << ", not " << wanted;
  throw std::runtime_error(says.str());
}

void expect_same_bytes(const char* what, const std::string& found, const std::string& wanted) {
  expect_equal(what, found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != wanted[i]) throw std::runtime_error(std::string(what) + " differs at byte " + std::to_string(i));
  }
}

template <typename Action>
void expect_refused(StatusCode code, const std::string& reason, const Action& action) {
  try {
    action();
  } catch (const Refused& refused) {
    expect_equal("the reason", refused.reason, reason);
    expect_equal("the status", static_cast<int>(refused.code), static_cast<int>(code));
    return;
  }
  throw std::runtime_error("accepted, where " + reason + " was due");
}

AxisSelection at(int64_t index) {
  AxisSelection selection;
  selection.set_index(index);
  return selection;
}

AxisSelection range(std::optional<int64_t> start, std::optional<int64_t> stop, std::optional<int64_t> step) {
  AxisSelection selection;
  if (start) selection.mutable_range()->set_start(*start);
  if (stop) selection.mutable_range()->set_stop(*stop);
  if (step) selection.mutable_range()->set_step(*step);
  selection.mutable_range();  // a range without any field is one too
  return selection;
}

NewTensor tensor(const std::string& name, Dtype dtype, std::vector<int64_t> shape, uint32_t seed) {
  Header header = sample_header(dtype, std::move(shape));
  const uint64_t size = check_header(header);
  return {name, {}, {}, header, sample_bytes(size, seed)};
}

class Scenario {
 public:
  explicit Scenario(const std::string& address) : client_(address) {}

  void run() {
    check("info", [this] { info(); });
    check("put", [this] { put(); });
    check("get", [this] { get(); });
    check("get by selections", [this] { get_selections(); });
    check("selections refused", [this] { refused_selections(); });
    check("get from an offset", [this] { get_from_offset(); });
    check("upload resumed after a cancelled call", [this] { resumed(); });
    check("wrong block sum refused, then resumed", [this] { wrong_sum(); });
    check("chunks out of order", [this] { out_of_order(); });
    check("committed id repeated", [this] { repeated(); });
    check("if_generation", [this] { if_generation(); });
    check("discard", [this] { discard(); });
    check("store and fetch", [this] { store_and_fetch(); });
    check("fetch continued by get", [this] { fetch_large(); });
    check("stat by pages", [this] { stat(); });
    check("list by pages", [this] { list(); });
    check("delete", [this] { remove(); });
    check("publish and subscribe", [this] { publish(); });
    check("publish refused", [this] { refused_publish(); });
  }

 private:
  template <typename Action>
  void check(const char* name, const Action& action) {
    try {
      action();
    } catch (const Refused& refused) {
      throw std::runtime_error(std::string(name) + ": status " + std::to_string(refused.code) + " " + refused.reason +
                               ": " + refused.what());
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what());
    }
    std::cout << "ok " << name << std::endl;
  }

  void info() {
    info_ = client_.call(&Stub::GetServerInfo, GetServerInfoRequest());
    expect_equal("contract_revision", info_.contract_revision(), 2u);
    expect_equal("max_chunk_bytes", info_.max_chunk_bytes(), 3u << 20);
    expect_equal("the length of instance_id", info_.instance_id().size(), 32u);
  }

  // 5 MiB of one tensor, in chunks of 2, 2 and 1 MiB.
  Upload large(const std::string& name, uint32_t seed) const {
    Upload upload;
    upload.name = prefix_ + name;
    upload.id = random_upload_id();
    upload.tensors = {tensor("", {2, 32, 1}, {1280, 1024}, seed)};
    upload.chunk_bytes = 2 * kBlockBytes;
    return upload;
  }

  // Several small tensors, one without elements, and one with another name.
  Upload small(const std::string& name) const {
    Upload upload;
    upload.name = prefix_ + name;
    upload.id = random_upload_id();
    upload.tensors = {tensor("a", {0, 16, 1}, {4, 5, 6}, 1), tensor("b", {1, 8, 1}, {0, 3}, 2),
                      tensor("c", {0, 4, 1}, {8}, 3), tensor("d", {5, 64, 1}, {}, 4), tensor("e", {2, 64, 1}, {7}, 5)};
    upload.tensors[0].aliases = {"tied"};
    MetadataValue value;
    value.set_int_value(-7);
    upload.tensors[0].metadata["n"] = value;
    upload.metadata["of the object"] = value;
    return upload;
  }

  GetUploadStatusResponse status(const std::string& id) {
    GetUploadStatusRequest request;
    request.set_upload_id(id);
    return client_.call(&Stub::GetUploadStatus, request);
  }

  // Waits until the server holds the upload up to `offset` of its first tensor.
  GetUploadStatusResponse wait_for(const Upload& upload, uint64_t offset) {
    for (int i = 0; i < 500; ++i) {
      const GetUploadStatusResponse found = status(upload.id);
      if (found.state() == GetUploadStatusResponse::RECEIVING && found.offset() >= offset) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error("the upload did not come to offset " + std::to_string(offset) + " in 5 s");
  }

  // Sends an upload as far as 4 MiB, and cancels the call.
  void put_partly(const Upload& upload) {
    client_.put(upload, {}, [&](PutRequest& request) {
      if (request.chunk().offset() < 4 * kBlockBytes) return true;
      wait_for(upload, 4 * kBlockBytes);
      return false;
    });
  }

  std::vector<Received> get_all(const std::string& name) {
    GetRequest request;
    request.set_name(name);
    return client_.get(request);
  }

  void expect_received(const std::vector<Received>& found, const Upload& wanted) {
    expect_equal("the number of tensors", found.size(), wanted.tensors.size());
    for (size_t i = 0; i < found.size(); ++i) {
      expect_equal("a name", found[i].name, wanted.tensors[i].name);
      Header header = wanted.tensors[i].header;
      header.data_sum = data_sum(wanted.tensors[i].data);  // the server adds it
      expect_same_bytes("a header", header_bytes(found[i].header), header_bytes(header));
      expect_same_bytes("a payload", found[i].data, wanted.tensors[i].data);
    }
  }

  void put() {
    const Upload upload = large("large", 11);
    large_generation_ = client_.put(upload)->generation();
    if (large_generation_ == 0) throw std::runtime_error("the generation is 0");
  }

  void get() { expect_received(get_all(prefix_ + "large"), large("large", 11)); }

  void get_selections() {
    const Upload upload = large("large", 11);
    const NewTensor& whole = upload.tensors[0];
    const std::vector<std::vector<AxisSelection>> cases = {
        {range(-1, std::nullopt, -3), at(-2)},
        {at(0)},
        {at(1279), at(1023)},
        {range({}, {}, {}), range(1, 1000, 7)},
        {range({}, {}, -1)},
        {range(100, 5, 1), at(3)},
        {range(-5000, 5000, 640), range(5000, -5000, -512)},
        {range(5, {}, INT64_MAX), range({}, {}, INT64_MIN)},
    };
    for (const auto& selections : cases) {
      GetRequest request;
      request.set_name(upload.name);
      for (const AxisSelection& selection : selections) *request.add_selections() = selection;
      const std::vector<Received> found = client_.get(request);
      const Selected wanted = select(whole.header, whole.data, selections);
      expect_equal("the number of tensors", found.size(), 1u);
      expect_equal("whether a selection has a data_sum", found[0].header.data_sum.has_value(), false);
      Header header = whole.header;
      header.shape = wanted.shape;
      expect_same_bytes("a selection's header", header_bytes(found[0].header), header_bytes(header));
      expect_same_bytes("a selection", found[0].data, wanted.data);
    }
  }

  void refused_selections() {
    client_.put(small("small"));
    struct Case {
      std::string name, tensor;
      std::vector<AxisSelection> selections;
      StatusCode code;
      std::string reason;
    };
    const std::string large_name = prefix_ + "large", small_name = prefix_ + "small";
    const std::vector<Case> cases = {
        {large_name, "", {AxisSelection()}, StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST"},  // an unset oneof
        {large_name, "", {at(1280)}, StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE"},
        {large_name, "", {at(-1281)}, StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE"},
        {large_name, "", {range(1, 2, 0)}, StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST"},
        {large_name, "", {at(0), at(0), at(0)}, StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST"},
        {small_name, "", {at(0)}, StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST"},   // several tensors
        {small_name, "c", {at(0)}, StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST"},  // packed
        {small_name, "none", {}, StatusCode::NOT_FOUND, "TENSOR_NOT_FOUND"},
        {prefix_ + "none", "", {}, StatusCode::NOT_FOUND, "OBJECT_NOT_FOUND"},
        {"", "", {}, StatusCode::INVALID_ARGUMENT, "INVALID_NAME"},
    };
    for (const Case& one : cases) {
      GetRequest request;
      request.set_name(one.name);
      if (!one.tensor.empty()) request.add_tensors(one.tensor);
      for (const AxisSelection& selection : one.selections) *request.add_selections() = selection;
      expect_refused(one.code, one.reason, [&] { client_.get(request); });
    }
    // Further fields beside the unset one change nothing.
    GetRequest request;
    request.set_name(large_name);
    *request.add_selections() = at(0);
    request.add_selections();
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.get(request); });
  }

  void get_from_offset() {
    GetRequest request;
    request.set_name(prefix_ + "large");
    request.set_start_offset(kBlockBytes - 1);
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.get(request); });
    request.set_start_offset(6 * kBlockBytes);
    expect_refused(StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", [&] { client_.get(request); });
    request.set_start_offset(0);
    request.set_generation(large_generation_ + 1000);
    expect_refused(StatusCode::FAILED_PRECONDITION, "GENERATION_MISMATCH", [&] { client_.get(request); });
  }

  void resumed() {
    const Upload upload = large("resumed", 12);
    put_partly(upload);
    const GetUploadStatusResponse held = status(upload.id);
    expect_equal("the state", static_cast<int>(held.state()), static_cast<int>(GetUploadStatusResponse::RECEIVING));
    expect_equal("tensor_index", held.tensor_index(), 0u);
    expect_equal("offset", held.offset(), 4 * kBlockBytes);
    expect_equal("held_sum", held.held_sum(), upload.held_sum({held.tensor_index(), held.offset()}));
    const PutResponse response = client_.resume(upload);
    const GetUploadStatusResponse committed = status(upload.id);
    expect_equal("the state", static_cast<int>(committed.state()),
                 static_cast<int>(GetUploadStatusResponse::COMMITTED));
    expect_equal("the generation", committed.generation(), response.generation());
    expect_received(get_all(upload.name), upload);
  }

  void wrong_sum() {
    const Upload upload = large("wrong sum", 13);
    expect_refused(StatusCode::DATA_LOSS, "CHECKSUM_MISMATCH", [&] {
      client_.put(upload, {}, [](PutRequest& request) {
        if (request.chunk().offset() == 2 * kBlockBytes) {
          request.mutable_chunk()->set_block_sums(1, request.chunk().block_sums(1) ^ 1);
        }
        return true;
      });
    });
    const GetUploadStatusResponse held = status(upload.id);
    expect_equal("offset", held.offset(), 2 * kBlockBytes);
    expect_equal("held_sum", held.held_sum(), upload.held_sum({0, 2 * kBlockBytes}));
    GetRequest request;
    request.set_name(upload.name);
    expect_refused(StatusCode::NOT_FOUND, "OBJECT_NOT_FOUND", [&] { client_.get(request); });
    client_.resume(upload);
    expect_received(get_all(upload.name), upload);
  }

  void out_of_order() {
    const Upload upload = large("out of order", 14);
    // The second chunk at another offset; then, each time resumed at the same place, other broken chunks.
    struct Case {
      std::function<void(Chunk&)> spoil;
      std::string reason;
    };
    const std::vector<Case> cases = {
        {[](Chunk& chunk) { chunk.set_offset(chunk.offset() + kBlockBytes); }, "CHUNK_OUT_OF_ORDER"},
        {[](Chunk& chunk) { chunk.set_tensor_index(1); }, "CHUNK_OUT_OF_ORDER"},
        {[](Chunk& chunk) { chunk.clear_data(), chunk.clear_block_sums(); }, "CHUNK_OUT_OF_ORDER"},
    };
    std::optional<Position> from;
    for (const Case& one : cases) {
      expect_refused(StatusCode::INVALID_ARGUMENT, one.reason, [&] {
        client_.put(upload, from, [&](PutRequest& request) {
          if (request.has_chunk() && request.chunk().offset() == 2 * kBlockBytes) one.spoil(*request.mutable_chunk());
          return true;
        });
      });
      const GetUploadStatusResponse held = status(upload.id);
      expect_equal("offset", held.offset(), 2 * kBlockBytes);
      from = Position{held.tensor_index(), held.offset()};
    }
    // Pieces of blocks and missing sums are errors after which nothing is kept.
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] {
      client_.put(upload, from, [&](PutRequest& request) {
        if (request.has_chunk()) request.mutable_chunk()->clear_block_sums();
        return true;
      });
    });
    expect_equal("the state", static_cast<int>(status(upload.id).state()),
                 static_cast<int>(GetUploadStatusResponse::UNKNOWN));
    expect_refused(StatusCode::NOT_FOUND, "UPLOAD_NOT_FOUND", [&] { client_.put(upload, from); });
    // Without finish the upload is not whole, but all of it is held.
    expect_refused(StatusCode::ABORTED, "UPLOAD_INCOMPLETE", [&] {
      client_.put(upload, {}, [](PutRequest& request) {
        request.set_finish(false);
        return true;
      });
    });
    const GetUploadStatusResponse whole = status(upload.id);
    expect_equal("tensor_index", whole.tensor_index(), 1u);
    expect_equal("offset", whole.offset(), 0u);
    expect_equal("held_sum", whole.held_sum(), upload.held_sum({1, 0}));
    client_.resume(upload);
    expect_received(get_all(upload.name), upload);
  }

  void repeated() {
    Upload upload = small("repeated");
    const PutResponse first = *client_.put(upload);
    expect_equal("already_committed", first.already_committed(), false);
    const auto expect_repeat = [&](const std::optional<Position>& resume) {
      const PutResponse again = *client_.put(upload, resume);
      expect_equal("already_committed", again.already_committed(), true);
      expect_equal("the generation", again.generation(), first.generation());
    };
    expect_repeat({});
    expect_repeat(Position{});
    upload.name.clear();
    expect_repeat({});
    upload.name = prefix_ + "another";
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.put(upload); });
  }

  void if_generation() {
    Upload upload = small("conditional");
    upload.if_generation = 0;
    const uint64_t first = client_.put(upload)->generation();
    const auto expect_mismatch = [&](uint64_t generation) {
      upload.id = random_upload_id();
      upload.if_generation = generation;
      expect_refused(StatusCode::FAILED_PRECONDITION, "GENERATION_MISMATCH", [&] { client_.put(upload); });
    };
    expect_mismatch(0);
    expect_mismatch(first + 1);
    upload.id = random_upload_id();
    upload.if_generation = first;
    const uint64_t second = client_.put(upload)->generation();
    if (second <= first) throw std::runtime_error("generation " + std::to_string(second) + " does not grow");
    expect_mismatch(first);
  }

  void discard() {
    DiscardUploadRequest request;
    const auto expect_unknown = [&] {
      expect_refused(StatusCode::NOT_FOUND, "UPLOAD_NOT_FOUND",
                     [&] { client_.call(&Stub::DiscardUpload, request); });
    };
    const Upload upload = large("discarded", 15);
    request.set_upload_id(upload.id);
    put_partly(upload);
    client_.call(&Stub::DiscardUpload, request);
    expect_equal("the state", static_cast<int>(status(upload.id).state()),
                 static_cast<int>(GetUploadStatusResponse::UNKNOWN));
    expect_unknown();
    // An upload that a call is sending.
    expect_refused(StatusCode::ABORTED, "UPLOAD_INCOMPLETE", [&] {
      client_.put(upload, {}, [&](PutRequest& message) {
        if (message.chunk().offset() == 4 * kBlockBytes) {
          wait_for(upload, 4 * kBlockBytes);
          client_.call(&Stub::DiscardUpload, request);
        }
        return true;
      });
    });
    client_.put(upload);
    expect_unknown();  // a committed one stays
    request.set_upload_id("short");
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST",
                   [&] { client_.call(&Stub::DiscardUpload, request); });
  }

  StoreRequest store_request(const Upload& upload) const {
    StoreRequest request;
    request.set_name(upload.name);
    request.set_upload_id(upload.id);
    for (const auto& [key, value] : upload.metadata) (*request.mutable_metadata())[key] = value;
    for (const NewTensor& one : upload.tensors) {
      *request.add_records() = to_record(one);
      request.mutable_records()->rbegin()->mutable_tensor()->set_data(one.data);
    }
    return request;
  }

  void store_and_fetch() {
    const Upload upload = small("stored");
    StoreRequest request = store_request(upload);
    const StoreResponse first = client_.call(&Stub::Store, request);
    const StoreResponse again = client_.call(&Stub::Store, request);
    expect_equal("already_committed", again.already_committed(), true);
    expect_equal("the generation", again.generation(), first.generation());
    expect_received(client_.fetch(upload.name), upload);
    expect_received(get_all(upload.name), upload);

    FetchRequest some;
    some.set_name(upload.name);
    for (const char* name : {"e", "tied", "e"}) some.add_tensors(name);
    const FetchResponse fetched = client_.call(&Stub::Fetch, some);
    expect_equal("the number of records", fetched.records_size(), 3);
    expect_equal("the first name", fetched.records(0).name(), "e");
    expect_equal("the second name", fetched.records(1).name(), "a");
    expect_equal("an alias", fetched.records(1).aliases(0), "tied");
    expect_equal("metadata", fetched.records(1).metadata().at("n").int_value(), -7);
    expect_equal("metadata", fetched.object().metadata().at("of the object").int_value(), -7);

    request.set_upload_id(random_upload_id());
    request.mutable_records(0)->mutable_tensor()->set_data_sum(1);
    expect_refused(StatusCode::DATA_LOSS, "CHECKSUM_MISMATCH", [&] { client_.call(&Stub::Store, request); });
    request.set_upload_id(random_upload_id());
    request.mutable_records(0)->mutable_tensor()->clear_data_sum();
    request.mutable_records(0)->mutable_tensor()->clear_dtype();
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_TENSOR", [&] { client_.call(&Stub::Store, request); });
  }

  void fetch_large() { expect_received(client_.fetch(prefix_ + "large"), large("large", 11)); }

  void stat() {
    StatRequest request;
    request.set_name(prefix_ + "stored");
    request.set_max_record_count(2);
    std::string names;
    uint64_t pages = 0;
    do {
      const StatResponse page = client_.call(&Stub::Stat, request);
      for (const TensorRecord& record : page.records()) names += record.name();
      request.set_first_record(page.next_record());
      ++pages;
    } while (request.first_record() != 0 && pages < 10);
    expect_equal("the names", names, "abcde");
    expect_equal("the number of pages", pages, 3u);
  }

  void list() {
    ListRequest request;
    request.set_prefix(prefix_ + "listed/");
    for (const char* name : {"b", "a", "\xc3\xa9", "c", "aa"}) {
      client_.call(&Stub::Store, store_request(small(std::string("listed/") + name)));
    }
    request.set_page_size(2);
    std::string names;
    int pages = 0;
    do {
      const ListResponse page = client_.call(&Stub::List, request);
      if (page.objects_size() > 2) throw std::runtime_error("a page of " + std::to_string(page.objects_size()));
      for (const ObjectInfo& object : page.objects()) {
        names += object.name().substr(request.prefix().size()) + " ";
        expect_equal("tensor_count", object.tensor_count(), 5u);
        expect_equal("payload_bytes", object.payload_bytes(), 240u + 4 + 8 + 56);
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty() && ++pages < 10);
    expect_equal("the names", names, "a aa b c \xc3\xa9 ");
    request.set_page_token("no token");
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.call(&Stub::List, request); });
  }

  void remove() {
    DeleteRequest request;
    request.set_name(prefix_ + "large");
    request.set_if_generation(large_generation_ + 1);
    expect_refused(StatusCode::FAILED_PRECONDITION, "GENERATION_MISMATCH",
                   [&] { client_.call(&Stub::Delete, request); });
    request.set_if_generation(large_generation_);
    expect_equal("the generation", client_.call(&Stub::Delete, request).generation(), large_generation_);
    expect_refused(StatusCode::NOT_FOUND, "OBJECT_NOT_FOUND", [&] { client_.call(&Stub::Delete, request); });
  }

  void publish() {
    const std::string topic = prefix_ + "topic";
    std::vector<NewFrame> frames = {{topic, tensor("", {1, 8, 1}, {3}, 21)},
                                    {topic, tensor("", {2, 32, 1}, {1024, 640}, 22)},  // three blocks
                                    {topic, tensor("", {2, 32, 1}, {0}, 23)}};
    MetadataValue value;
    value.set_string_value("größer");
    frames[0].tensor.metadata["k"] = value;
    SubscribeRequest request;
    request.add_patterns(prefix_ + "*");
    request.set_policy(DELIVERY_POLICY_RELIABLE);
    const auto subscription = client_.subscribe(request);
    expect_equal("the number of retained frames", subscription->catch_up().size(), 0u);
    const PublishResponse answer = client_.publish(frames);
    expect_equal("last_sequence", answer.last_sequence(), 3u);
    expect_equal("subscriber_count", answer.subscriber_count(), 1u);
    for (uint64_t i = 0; i < frames.size(); ++i) {
      const ReceivedFrame found = subscription->next();
      expect_equal("the topic", found.frame.topic(), topic);
      expect_equal("the sequence", found.frame.sequence(), i + 1);
      expect_equal("dropped_count", found.frame.dropped_count(), 0u);
      if (found.frame.time_ns() == 0) throw std::runtime_error("time_ns is 0");
      expect_equal("the number of metadata", static_cast<size_t>(found.frame.metadata_size()),
                   frames[i].tensor.metadata.size());
      Header header = frames[i].tensor.header;
      header.data_sum = data_sum(frames[i].tensor.data);
      expect_same_bytes("a header", header_bytes(found.tensor.header), header_bytes(header));
      expect_same_bytes("a payload", found.tensor.data, frames[i].tensor.data);
    }
    // The newest frame is retained.
    const std::vector<ReceivedFrame> retained = client_.subscribe(request)->catch_up();
    expect_equal("the number of retained frames", retained.size(), 1u);
    expect_equal("the retained sequence", retained[0].frame.sequence(), 3u);
  }

  void refused_publish() {
    const NewTensor one = tensor("", {1, 8, 1}, {3}, 21);
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_NAME", [&] { client_.publish({{prefix_ + "a*", one}}); });
    NewTensor bad = one;
    bad.data += "more";
    expect_refused(StatusCode::INVALID_ARGUMENT, "CHUNK_OUT_OF_ORDER",
                   [&] { client_.publish({{prefix_ + "topic", bad}}); });
    bad.data.clear();
    expect_refused(StatusCode::ABORTED, "UPLOAD_INCOMPLETE", [&] { client_.publish({{prefix_ + "topic", bad}}); });
    SubscribeRequest request;
    request.add_patterns("a*b");
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.subscribe(request)->catch_up(); });
    request.set_patterns(0, prefix_ + "*");
    request.set_policy(static_cast<DeliveryPolicy>(77));
    expect_refused(StatusCode::INVALID_ARGUMENT, "INVALID_REQUEST", [&] { client_.subscribe(request)->catch_up(); });
  }

  Client client_;
  // Names of an earlier run on the same server do not disturb this one.
  const std::string prefix_ = "interop/" + std::to_string(std::random_device()()) + "/";
  GetServerInfoResponse info_;
  uint64_t large_generation_ = 0;
};

}  // namespace

void run_scenario(const std::string& address) { Scenario(address).run(); }

}  // namespace interop
