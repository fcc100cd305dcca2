// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file and dbw_conversation.h. SetWorkers may be called from any thread, the others from one:
//
//   DbwJob job("127.0.0.1:50051", "resnet", 16, DbwJob::Transport::kStream);
//   publish the parameters, and until k gradients are there or the deadline has passed:
//     wait for the next one for job.PauseSeconds(arrived, seconds since then), and for each, late ones as well:
//     job.Arrived(iteration of its parameters, worker, seconds since they were published);
//   job.EndIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing throws, and an iteration waits
// for its decision for 5% of the last one's time, at most. A thread talks to the controller meanwhile. This file has the
// gRPC; what is sent and which k is used is in dbw_conversation.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "dbw/v1/controller.grpc.pb.h"
#include "dbw_conversation.h"

// The job. Without a decision, or without a controller, it is *on fallback*.
class DbwJob {
 public:
  enum class Transport { kStream, kUnary };
  static constexpr std::chrono::seconds kPatience{10};     // how long a call may take
  static constexpr std::chrono::milliseconds kPause{500};  // until it is tried again
  static constexpr std::chrono::seconds kFirstLook{30}, kLongestLook{240};  // between looks at a job that was taken over
  static constexpr double kLongestPause = 1;               // seconds, until it is seen that workers were lost

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  DbwJob(const std::string& target, const std::string& name, std::uint32_t workers, Transport transport)
      : name_(name), transport_(transport), conversation_(name, Spec(), Workers(workers)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
    // Pings detect a connection that nothing comes through any more, although nobody has closed it.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // With TLS: grpc::SslCredentials.
    stub_ = dbw::v1::ControllerService::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    link_ = std::thread([this] { StayAttached(); });
    std::unique_lock<std::mutex> lock(mutex_);
    BeginIteration(&lock);
  }

  ~DbwJob() { Close(std::chrono::seconds(0)); }

  // How many gradients to wait for in this iteration, and whether that is not a decision of the controller.
  std::uint32_t k() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return conversation_.k();
  }
  bool on_fallback() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return !conversation_.decision();
  }

  // When to end the iteration with fewer, or else with the first gradient, in seconds since its parameters were
  // published; nothing: wait for k. On fallback it is the last one: workers may hang without a controller, too.
  std::optional<double> deadline_seconds() const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& last = last_decision_;
    if (!last || !last->has_deadline_seconds() || last->k() < conversation_.k()) return std::nullopt;
    return last->deadline_seconds();
  }

  // How long to wait for the next gradient, in seconds, `elapsed` seconds after the parameters were published. Where none
  // comes in time, look at k again, or end the iteration if this was 0: the deadline has passed.
  double PauseSeconds(std::uint32_t arrived, double elapsed) const {
    const auto deadline = arrived > 0 ? deadline_seconds() : std::nullopt;  // the first one is always waited for
    return deadline ? std::clamp(*deadline - elapsed, 0.0, kLongestPause) : kLongestPause;
  }

  // A gradient of this or an earlier iteration's parameters arrived, `seconds` after those were published.
  void Arrived(std::uint64_t iteration, std::uint32_t worker, double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    conversation_.Arrived(iteration, worker, seconds);
  }

  // Workers came or went.
  void SetWorkers(dbw::v1::Membership workers) {
    std::lock_guard<std::mutex> lock(mutex_);
    conversation_.SetWorkers(std::move(workers));
  }

  // The iteration has ended: reports it, and takes the k of the next, if it comes in time.
  void EndIteration(dbw::v1::IterationSummary summary) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (const auto* request = conversation_.EndIteration(std::move(summary), Now())) outbox_ = *request;
    changed_.notify_all();
    BeginIteration(&lock);
  }

  // Training is over: the controller may forget the job.
  void Delete() {
    Close(kPatience);  // CreateJob may finish: it has perhaps begun another session already
    if (conversation_.IsOthers()) return;  // it is the job of another process
    dbw::v1::DeleteJobRequest request;
    request.set_job(name_);
    request.set_allow_missing(true);
    request.set_session(conversation_.session());  // if another process has the job since, it stays
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

  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // Waits for the decision, if there is anything to wait for, and begins the next iteration.
  void BeginIteration(std::unique_lock<std::mutex>* lock) {
    changed_.wait_for(*lock, std::chrono::duration<double>(conversation_.patience()),
                      [this] { return !conversation_.AwaitsDecision(); });
    const std::uint32_t k = conversation_.BeginIteration(Now());
    const bool on_fallback = !conversation_.decision();
    if (!on_fallback) last_decision_ = conversation_.decision();
    if (on_fallback && !was_on_fallback_) {
      std::cerr << "on fallback, k = " << k << ": " << conversation_.problem() << "\n";
    } else if (was_on_fallback_ && !on_fallback) {
      std::cerr << "decisions of the controller again, k = " << k << "\n";
    }
    was_on_fallback_ = on_fallback;
  }

  // Ends the thread, after the CreateJob that is under way, if that takes no longer than this.
  void Close(std::chrono::seconds patience) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      closing_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, patience, [this] { return !attaching_; });
      if (context_) context_->TryCancel();
    }
    if (link_.joinable()) link_.join();
  }

  // What the thread does: attaches, sends requests, and takes in answers; and again, if that fails.
  void StayAttached() {
    for (;;) {
      bool replaced = false;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        replaced = conversation_.link() == DbwConversation::Link::kReplaced;
        if (conversation_.IsOthers()) {
          changed_.wait_for(lock, NextLook(), [this] { return closing_; });
        } else if (!answered_) {  // a connection that has brought an answer is tried again at once
          changed_.wait_for(lock, kPause, [this] { return closing_; });
        }
        answered_ = false;
        if (closing_) return;
      }
      bool may_attach = true;
      grpc::Status status = replaced ? Look(&may_attach) : grpc::Status::OK;
      if (status.ok() && !may_attach) continue;
      if (status.ok()) status = Attach();
      if (status.ok()) status = transport_ == Transport::kStream ? ConverseOnStream() : ConverseInCalls();
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) return;
      conversation_.Failed(Now(), status.error_code(), status.error_message());
      changed_.notify_all();
    }
  }

  // How long to wait for the next look: longer each time, and not as long as others that lost their jobs together.
  std::chrono::duration<double> NextLook() {
    const auto seconds = look_ * std::uniform_real_distribution<>(0.5, 1.0)(random_);
    look_ = std::min<std::chrono::duration<double>>(2 * look_, kLongestLook);
    return seconds;
  }

  // Looks whether the process that has taken the job over has gone.
  grpc::Status Look(bool* may_take_back) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (!Use(&context)) return grpc::Status::CANCELLED;
    dbw::v1::GetJobRequest request;
    request.set_job(name_);
    dbw::v1::GetJobResponse response;
    const grpc::Status status = stub_->GetJob(&context, request, &response);
    Use(nullptr);
    const bool is_gone = status.error_code() == grpc::StatusCode::NOT_FOUND;
    if (!status.ok() && !is_gone) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    *may_take_back = conversation_.MayTakeBack(is_gone ? std::nullopt : std::make_optional(response.job()), Now());
    return grpc::Status::OK;
  }

  grpc::Status Attach() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    dbw::v1::CreateJobRequest request;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) return grpc::Status::CANCELLED;
      request = conversation_.CreateRequest();
      context_ = &context;
      attaching_ = true;
    }
    dbw::v1::CreateJobResponse response;
    const grpc::Status status = stub_->CreateJob(&context, request, &response);
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = nullptr;
    attaching_ = false;
    changed_.notify_all();
    if (!status.ok()) return status;
    look_ = kFirstLook;
    const auto* repeated = conversation_.Created(response, Now());
    outbox_ = repeated ? std::make_optional(*repeated) : std::nullopt;
    return status;
  }

  grpc::Status ConverseOnStream() {
    grpc::ClientContext context;
    if (!Use(&context)) return grpc::Status::CANCELLED;
    const auto stream = stub_->Coordinate(&context);
    dbw::v1::CoordinateResponse response;
    bool is_up = true;
    while (is_up) {
      const auto request = NextRequest();
      if (!request) context.TryCancel();  // the job is closed
      is_up = request && stream->Write(*request) && stream->Read(&response);
      if (is_up) Take(response.decision());
    }
    const grpc::Status status = stream->Finish();
    Use(nullptr);
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the controller has ended the stream") : status;
  }

  grpc::Status ConverseInCalls() {
    while (const auto request = NextRequest()) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kPatience);
      if (!Use(&context)) break;
      dbw::v1::EndIterationRequest same;  // on the wire
      same.ParseFromString(request->SerializeAsString());
      dbw::v1::EndIterationResponse response;
      const grpc::Status status = stub_->EndIteration(&context, same, &response);
      Use(nullptr);
      if (!status.ok()) return status;
      Take(response.decision());
    }
    return grpc::Status::CANCELLED;
  }

  // Lets a call be cancelled when the job is closed; returns whether it is not closed yet.
  bool Use(grpc::ClientContext* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = closing_ ? nullptr : context;
    return !closing_;
  }

  // Waits for a request to send; nothing when the job is closed.
  std::optional<dbw::v1::CoordinateRequest> NextRequest() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return closing_ || outbox_; });
    return closing_ ? std::nullopt : std::exchange(outbox_, std::nullopt);
  }

  void Take(const dbw::v1::Decision& decision) {
    std::lock_guard<std::mutex> lock(mutex_);
    conversation_.Decided(decision, Now());
    answered_ = true;
    changed_.notify_all();
  }

  const std::string name_;
  const Transport transport_;
  std::unique_ptr<dbw::v1::ControllerService::Stub> stub_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  DbwConversation conversation_;
  std::optional<dbw::v1::Decision> last_decision_;    // in use, or before the fallback
  std::optional<dbw::v1::CoordinateRequest> outbox_;  // to be sent next
  grpc::ClientContext* context_ = nullptr;            // of the call under way
  bool attaching_ = false;                            // whether that is CreateJob
  bool answered_ = true;                              // whether there was an answer since the last attempt to attach
  bool closing_ = false;
  bool was_on_fallback_ = false;
  std::chrono::duration<double> look_ = kFirstLook;  // until the next one
  std::mt19937 random_{std::random_device{}()};
  std::thread link_;
};
