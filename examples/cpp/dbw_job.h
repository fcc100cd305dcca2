// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file, and call from one thread:
//
//   DbwJob job("127.0.0.1:50051", "resnet", 16, DbwJob::Transport::kStream);
//   publish the parameters, wait for job.k() gradients, and for each one that arrives, late ones as well:
//     job.Arrived(iteration of its parameters, worker, seconds since they were published);
//   job.EndIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing throws, and no call takes
// longer than kPatience.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "dbw/v1/controller.grpc.pb.h"

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
  static constexpr std::uint64_t kRemembered = 1024;   // iterations; arrivals of those further back are ignored

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  DbwJob(const std::string& target, std::string name, std::uint32_t workers, Transport transport)
      : name_(std::move(name)), workers_(workers), transport_(transport), k_(workers) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
    // With TLS: grpc::SslCredentials.
    stub_ = dbw::v1::ControllerService::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    const grpc::Status status = Attach(std::chrono::system_clock::now() + kPatience);
    Note(status);
    SetFallback(status);
  }

  // How many gradients to wait for in this iteration, and whether that is not a decision of the controller.
  std::uint32_t k() const { return k_; }
  bool on_fallback() const { return on_fallback_; }

  // A gradient of this or an earlier iteration's parameters is in, `seconds` after those were published.
  void Arrived(std::uint64_t iteration, std::uint32_t worker, double seconds) {
    const auto known = std::find_if(arrivals_.begin(), arrivals_.end(),
                                    [=](const auto& batch) { return batch.iteration() == iteration; });
    dbw::v1::Arrivals& batch = known == arrivals_.end() ? *arrivals_.Add() : *known;
    if (batch.seconds().empty()) {
      batch.set_iteration(iteration);
      batch.set_preceding(arrived_[iteration]);
    }
    batch.add_seconds(seconds);
    batch.add_workers(worker);
    ++arrived_[iteration];
    if (transport_ == Transport::kUnary && iteration < iteration_) Report();
  }

  // The iteration has ended: says so, and takes the k of the next, if it comes in time.
  void EndIteration(dbw::v1::IterationSummary summary) {
    summary.set_fallback(on_fallback_);
    if (previous_k_) summary.set_previous_k(*previous_k_);  // the controller may have missed it
    const Deadline deadline = std::chrono::system_clock::now() + kPatience;
    grpc::Status status = Ask(summary, deadline);
    // It was restarted and does not know the session: attach again, and repeat. Nothing counts twice.
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) status = Ask(summary, deadline);
    SetFallback(status);
    arrivals_.Clear();
    previous_k_ = summary.k();
    iteration_ = summary.iteration() + 1;
    if (summary.iteration() >= kRemembered) arrived_.erase(summary.iteration() - kRemembered);
  }

  // Training is over: the controller may forget the job.
  void Delete() {
    if (replaced_) return;
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
  grpc::Status Attach(Deadline deadline) {
    dbw::v1::CreateJobRequest request;
    request.set_job(name_);
    request.mutable_spec()->mutable_policy()->mutable_dbw();
    request.mutable_spec()->set_sync_mode(dbw::v1::SYNC_MODE_PUSH_WAIT);
    request.mutable_membership()->set_live_workers(workers_);
    for (std::uint32_t worker = 0; worker < workers_; ++worker) request.mutable_membership()->add_workers(worker);
    const bool begins = session_.empty();
    if (begins) request.set_iteration(iteration_);  // later the job shall stay where it is
    dbw::v1::CreateJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(deadline);
    const grpc::Status status = stub_->CreateJob(&context, request, &response);
    if (!status.ok()) return status;
    if (begins) Take(response.job().decision());
    session_ = response.session();
    stream_ = std::make_unique<DecisionStream>(*stub_);
    return status;
  }

  // Sends what has happened, and takes the decision for the next iteration.
  grpc::Status Ask(const dbw::v1::IterationSummary& summary, Deadline deadline) {
    if (replaced_ || std::chrono::system_clock::now() < next_attempt_) return problem_;
    grpc::Status status = attached_ ? grpc::Status::OK : Attach(deadline);
    dbw::v1::Decision decision;
    if (status.ok() && transport_ == Transport::kStream) {
      auto request = WithArrivals<dbw::v1::CoordinateRequest>();
      *request.mutable_summary() = summary;
      status = stream_->Ask(request, deadline, &decision);
    } else if (status.ok()) {
      auto request = WithArrivals<dbw::v1::EndIterationRequest>();
      *request.mutable_summary() = summary;
      dbw::v1::EndIterationResponse response;
      grpc::ClientContext context;
      context.set_deadline(deadline);
      status = stub_->EndIteration(&context, request, &response);
      decision = response.decision();
    }
    Note(status);
    if (status.ok()) Take(decision);
    return status;
  }

  void Take(const dbw::v1::Decision& decision) { k_ = std::clamp(decision.k(), 1u, workers_); }

  // Late arrivals, as they come. If that fails, they go with the next summary.
  void Report() {
    if (!attached_) return;
    dbw::v1::ReportResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    Note(stub_->Report(&context, WithArrivals<dbw::v1::ReportRequest>(), &response));
    if (attached_) arrivals_.Clear();
  }

  template <typename Request>
  Request WithArrivals() const {
    Request request;
    request.set_job(name_);
    request.set_session(session_);
    *request.mutable_arrivals() = arrivals_;
    return request;
  }

  // How a call ended, and so whether and when there is another. A restarted controller can be attached to at once.
  void Note(const grpc::Status& status) {
    attached_ = status.ok();
    if (status.error_code() == grpc::StatusCode::ABORTED) replaced_ = true;
    if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) {
      problem_ = status;
      next_attempt_ = std::chrono::system_clock::now() + kPause;
    }
  }

  void SetFallback(const grpc::Status& status) {
    if (!status.ok() && !on_fallback_) std::cerr << "on fallback, k = " << k_ << ": " << status.error_message() << "\n";
    if (status.ok() && on_fallback_) std::cerr << "decisions of the controller again, k = " << k_ << "\n";
    on_fallback_ = !status.ok();
  }

  const std::string name_;
  const std::uint32_t workers_;
  const Transport transport_;
  std::unique_ptr<dbw::v1::ControllerService::Stub> stub_;
  std::unique_ptr<DecisionStream> stream_;
  std::string session_;
  bool attached_ = false;
  bool replaced_ = false;  // by another process that has created the same job
  bool on_fallback_ = false;
  Deadline next_attempt_;  // because of
  grpc::Status problem_;
  std::uint32_t k_;
  std::uint64_t iteration_ = 0;
  std::optional<std::uint32_t> previous_k_;
  google::protobuf::RepeatedPtrField<dbw::v1::Arrivals> arrivals_;  // that the controller does not know of
  std::unordered_map<std::uint64_t, std::uint32_t> arrived_;        // how many, in each of the last iterations
};
