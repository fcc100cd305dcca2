// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file and dbw_conversation.h, and call from one thread:
//
//   DbwJob job("127.0.0.1:50051", "resnet", 16, DbwJob::Transport::kStream);
//   publish the parameters, wait for job.k() gradients, and for each one that arrives, late ones as well:
//     job.Arrived(iteration of its parameters, worker, seconds since they were published);
//   job.EndIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing throws, and no call takes
// longer than kPatience. This file has the gRPC; what is sent and which k is used is in dbw_conversation.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dbw/v1/controller.grpc.pb.h"
#include "dbw_conversation.h"

using Deadline = std::chrono::system_clock::time_point;

// The stream `Coordinate`. A gRPC call has one deadline for all of it; on a completion queue each wait has its own.
class DecisionStream {
 public:
  explicit DecisionStream(dbw::v1::ControllerService::Stub& stub)
      : call_(stub.PrepareAsyncCoordinate(&context_, &events_)) {}

  ~DecisionStream() {
    context_.TryCancel();
    events_.Shutdown();
    Event ignored;
    while (events_.Next(&ignored.tag, &ignored.ok)) {
    }
  }

  // Sends what has a summary, and takes the decision that answers it. After a failure the stream is of no more use.
  grpc::Status Ask(const dbw::v1::CoordinateRequest& request, Deadline deadline, dbw::v1::Decision* decision) {
    if (!started_) {
      started_ = true;
      call_->StartCall(nullptr);
      if (!Done(deadline)) return Failure();
    }
    call_->Write(request, nullptr);
    if (!Done(deadline)) return Failure();
    dbw::v1::CoordinateResponse response;
    call_->Read(&response, nullptr);
    if (!Done(deadline)) return Failure();
    *decision = response.decision();
    return grpc::Status::OK;
  }

 private:
  struct Event {
    void* tag = nullptr;
    bool ok = false;
  };

  // Whether the operation that was begun has succeeded. It has ended in any case: too late, and it is cancelled.
  bool Done(Deadline deadline) {
    Event event;
    if (events_.AsyncNext(&event.tag, &event.ok, deadline) == grpc::CompletionQueue::GOT_EVENT) return event.ok;
    context_.TryCancel();
    events_.Next(&event.tag, &event.ok);
    return false;
  }

  grpc::Status Failure() {
    grpc::Status status;
    Event event;
    call_->Finish(&status, nullptr);
    events_.Next(&event.tag, &event.ok);
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the controller has ended the stream") : status;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue events_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<dbw::v1::CoordinateRequest, dbw::v1::CoordinateResponse>> call_;
  bool started_ = false;
};

// The job. No answer in time, or none at all, and it is *on fallback*.
class DbwJob {
 public:
  enum class Transport { kStream, kUnary };
  static constexpr std::chrono::seconds kPatience{1};  // with a controller that does not answer
  static constexpr std::chrono::seconds kPause{2};     // until it is tried again

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  DbwJob(const std::string& target, const std::string& name, std::uint32_t workers, Transport transport)
      : name_(name), transport_(transport), conversation_(name, Spec(), Workers(workers)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
    // With TLS: grpc::SslCredentials.
    stub_ = dbw::v1::ControllerService::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    BeginIteration(nullptr);
  }

  // How many gradients to wait for in this iteration, and whether that is not a decision of the controller.
  std::uint32_t k() const { return conversation_.k(); }
  bool on_fallback() const { return !conversation_.decision(); }

  // When to end the iteration with fewer, in seconds since its parameters were published, if the controller says so.
  std::optional<double> deadline_seconds() const {
    const auto& decision = conversation_.decision();
    if (!decision || !decision->has_deadline_seconds()) return std::nullopt;
    return decision->deadline_seconds();
  }

  // A gradient of this or an earlier iteration's parameters arrived, `seconds` after those were published.
  void Arrived(std::uint64_t iteration, std::uint32_t worker, double seconds) {
    conversation_.Arrived(iteration, worker, seconds);
  }

  // Workers came or went.
  void SetWorkers(dbw::v1::Membership workers) { conversation_.SetWorkers(std::move(workers)); }

  // The iteration has ended: reports it, and takes the k of the next, if it comes in time.
  void EndIteration(dbw::v1::IterationSummary summary) {
    BeginIteration(conversation_.EndIteration(std::move(summary)));
  }

  // Training is over: the controller may forget the job.
  void Delete() {
    if (conversation_.link() == DbwConversation::Link::kReplaced) return;  // it is the job of another process
    stream_.reset();
    dbw::v1::DeleteJobRequest request;
    request.set_job(name_);
    request.set_allow_missing(true);
    dbw::v1::DeleteJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Status status = stub_->DeleteJob(&context, request, &response);
    if (!status.ok()) std::cerr << "the job cannot be deleted: " << status.error_message() << "\n";
  }

 private:
  static dbw::v1::JobSpec Spec() {
    dbw::v1::JobSpec spec;
    spec.mutable_policy()->mutable_dbw();
    spec.set_sync_mode(dbw::v1::SYNC_MODE_PUSH_WAIT);
    return spec;
  }

  static dbw::v1::Membership Workers(std::uint32_t count) {
    dbw::v1::Membership workers;
    workers.set_live_workers(count);
    for (std::uint32_t worker = 0; worker < count; ++worker) workers.add_workers(worker);
    return workers;
  }

  // Attaches where that is needed, sends the request, and takes in the answer; then begins the next iteration. If the
  // connection has ended, or the controller was restarted, it tries once more.
  void BeginIteration(const dbw::v1::CoordinateRequest* request) {
    const Deadline now = std::chrono::system_clock::now(), deadline = now + kPatience;
    bool due = conversation_.link() == DbwConversation::Link::kDown && now >= next_attempt_;
    for (int attempt = 0; attempt < 2 && (due || conversation_.AwaitsDecision()); ++attempt) {
      due = false;
      grpc::Status status = request ? grpc::Status::OK : Attach(deadline, &request);
      if (status.ok() && request) status = Ask(*request, deadline);
      if (status.ok()) break;
      conversation_.Failed(status.error_code(), status.error_message());
      request = nullptr;
      next_attempt_ = std::chrono::system_clock::now() + kPause;
    }
    conversation_.BeginIteration();
    if (on_fallback() && !was_on_fallback_) {
      std::cerr << "on fallback, k = " << k() << ": " << conversation_.problem() << "\n";
    } else if (was_on_fallback_ && !on_fallback()) {
      std::cerr << "decisions of the controller again, k = " << k() << "\n";
    }
    was_on_fallback_ = on_fallback();
  }

  grpc::Status Attach(Deadline deadline, const dbw::v1::CoordinateRequest** repeated) {
    dbw::v1::CreateJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(deadline);
    const grpc::Status status = stub_->CreateJob(&context, conversation_.CreateRequest(), &response);
    if (!status.ok()) return status;
    *repeated = conversation_.Created(response);
    if (transport_ == Transport::kStream) stream_ = std::make_unique<DecisionStream>(*stub_);
    return status;
  }

  grpc::Status Ask(const dbw::v1::CoordinateRequest& request, Deadline deadline) {
    grpc::Status status;
    dbw::v1::Decision decision;
    if (transport_ == Transport::kStream) {
      status = stream_->Ask(request, deadline, &decision);
    } else {
      dbw::v1::EndIterationRequest same;  // on the wire
      same.ParseFromString(request.SerializeAsString());
      dbw::v1::EndIterationResponse response;
      grpc::ClientContext context;
      context.set_deadline(deadline);
      status = stub_->EndIteration(&context, same, &response);
      decision = response.decision();
    }
    if (status.ok()) conversation_.Decided(decision);
    return status;
  }

  const std::string name_;
  const Transport transport_;
  std::unique_ptr<dbw::v1::ControllerService::Stub> stub_;
  std::unique_ptr<DecisionStream> stream_;
  DbwConversation conversation_;
  Deadline next_attempt_;  // to attach
  bool was_on_fallback_ = false;
};
