// A client of the tensor service.

#ifndef INTEROP_CLIENT_H_
#define INTEROP_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "dlpack_wire/v1/tensor_service.grpc.pb.h"
#include "download.h"
#include "upload.h"

namespace interop {

// A call that the server refused, with the reason of the trailing metadata (V5); empty if gRPC itself refused.
class Refused : public std::runtime_error {
 public:
  Refused(const grpc::Status& status, const grpc::ClientContext& context);

  grpc::StatusCode code;
  std::string reason;
};

struct ReceivedFrame {
  dlpack_wire::v1::Frame frame;
  Received tensor;
};

struct NewFrame {
  std::string topic;
  NewTensor tensor;
};

// A Subscribe call. Ends when it is destroyed.
class Subscription {
 public:
  Subscription(dlpack_wire::v1::TensorService::Stub& stub, const dlpack_wire::v1::SubscribeRequest& request);
  ~Subscription();

  // Reads up to `caught_up`, and returns the retained frames before it.
  std::vector<ReceivedFrame> catch_up();

  // The next live frame.
  ReceivedFrame next();

 private:
  // A whole frame, or nothing for `caught_up`.
  std::optional<ReceivedFrame> next_event();
  dlpack_wire::v1::SubscribeResponse read();

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<dlpack_wire::v1::SubscribeResponse>> reader_;
  std::optional<dlpack_wire::v1::SubscribeResponse> pending_;
  bool started_ = false;
  bool finished_ = false;
};

class Client {
 public:
  explicit Client(const std::string& address);

  // A call with one request and one answer, such as &TensorService::Stub::Stat.
  template <typename Request, typename Response>
  Response call(grpc::Status (dlpack_wire::v1::TensorService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                             Response*),
                const Request& request) {
    grpc::ClientContext context;
    set_deadline(context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) throw Refused(status, context);
    return response;
  }

  // Puts an object. `on_message` sees every message before it is sent, may change it, and may end the call by
  // returning false: then the call is cancelled and nothing returned.
  using OnMessage = std::function<bool(dlpack_wire::v1::PutRequest&)>;
  std::optional<dlpack_wire::v1::PutResponse> put(const Upload& upload, const std::optional<Position>& resume = {},
                                                  const OnMessage& on_message = {});

  // Goes on with an upload that broke off (V11): from where the server stands if it holds the same bytes, else anew.
  dlpack_wire::v1::PutResponse resume(const Upload& upload);

  std::vector<Received> get(const dlpack_wire::v1::GetRequest& request);

  // Fetch, and Get for what did not fit.
  std::vector<Received> fetch(const std::string& name);

  // The server's last answer.
  dlpack_wire::v1::PublishResponse publish(const std::vector<NewFrame>& frames);

  std::unique_ptr<Subscription> subscribe(const dlpack_wire::v1::SubscribeRequest& request);

 private:
  static void set_deadline(grpc::ClientContext& context);
  // Runs a Get into a download that may hold tensors already.
  void get_into(Download& download, const dlpack_wire::v1::GetRequest& request, bool has_records);

  std::unique_ptr<dlpack_wire::v1::TensorService::Stub> stub_;
  friend class Subscription;
};

}  // namespace interop

#endif  // INTEROP_CLIENT_H_
