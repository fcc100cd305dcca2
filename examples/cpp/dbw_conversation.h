// A parameter server's side of the protocol with a DBW controller: what to send, and which k to use, whatever fails.
//
// This has no socket, thread or clock: dbw_job.h sends what it returns, hands in what it receives, and tells the time, in
// seconds on any monotonic clock. tests/conversations/ shows it at work, in scripts that conversation_test.cc runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dbw/v1/controller.pb.h"

class DbwConversation {
 public:
  enum class Fallback { kLast, kAll };  // k without a controller: the last one that was decided, or all workers
  enum class Link {
    kAttaching,
    kAttached,
    kDown,      // the last attempt to attach has failed, or took too long
    kReplaced,  // another process has created the same job: there are no decisions until that one has gone
    kTaken,     // another identity has a job of this name: there are no decisions until that is gone
  };
  static constexpr std::uint64_t kRememberedIterations = 1024;  // arrivals of those further back are ignored
  // Iterations to report later, while there is no answer: together they must fit into one message, in which a batch of
  // arrivals takes the room of some arrivals.
  static constexpr std::size_t kMaxIterations = 256, kMaxRows = 50000, kBatchRows = 12;
  // How long an iteration waits for its decision, in seconds and as a share of the last one's time.
  static constexpr double kDeadline = 1.0, kMinPatience = 0.001, kPatienceShare = 0.05;
  // Exponential backoff: after n timed-out waits in a row, skip waiting for the next 2^n - 1 requests, at most this
  // many.
  static constexpr int kMaxSkippedWaits = 63;
  // A controller that leaves a request unanswered for longer than both has stopped answering: seconds, and a multiple of
  // what its last answer took.
  static constexpr double kSilentSeconds = 10.0, kSilentFactor = 5.0;
  // Nobody uses a job that has not changed for this many seconds, and this many iterations of either process.
  static constexpr double kSilentJobSeconds = 60.0, kSilentJobIterations = 5.0;

  DbwConversation(std::string job, dbw::v1::JobSpec spec, dbw::v1::Membership workers, std::uint64_t iteration = 0,
                  Fallback fallback = Fallback::kLast)
      : job_(std::move(job)), spec_(std::move(spec)), fallback_(fallback), iteration_(iteration) {
    k_ = std::max(workers.live_workers(), 1u);
    membership_ = std::move(workers);
  }

  std::uint64_t iteration() const { return iteration_; }
  std::uint32_t k() const { return k_; }  // how many gradients to wait for
  // In use, for this iteration or an earlier one; nothing while on fallback.
  const std::optional<dbw::v1::Decision>& decision() const { return decision_; }
  Link link() const { return link_; }
  bool IsOthers() const { return link_ == Link::kReplaced || link_ == Link::kTaken; }  // as far as is known
  const std::string& session() const { return session_; }  // empty before the first one
  const std::string& problem() const { return problem_; }  // with the connection; empty if there is none

  // Whether to wait for a decision, for `patience` seconds at most: nothing says that it will not come in time.
  bool AwaitsDecision() const {
    return awaited_ && (link_ == Link::kAttaching || link_ == Link::kAttached);
  }
  double patience() const { return patience_; }

  // What attaches to the job, for the first time or again.
  dbw::v1::CreateJobRequest CreateRequest() {
    dbw::v1::CreateJobRequest request;
    request.set_job(job_);
    *request.mutable_spec() = spec_;
    *request.mutable_membership() = known_membership_ = membership_;
    if (reset_job_) request.set_iteration(iteration_);
    return request;
  }

  // Takes in a session; returns the request to repeat, or null. It stays valid until the next call.
  const dbw::v1::CoordinateRequest* Created(const dbw::v1::CreateJobResponse& response, double now) {
    session_ = response.session();
    sent_at_ = now;
    link_ = Link::kAttached;
    problem_.clear();
    if (reset_job_) Receive(response.job().decision());
    reset_job_ = false;
    if (!in_flight_) return nullptr;
    in_flight_->set_session(session_);
    AddMembership(&*in_flight_);
    return &*in_flight_;
  }

  // An attempt to attach, or a request, has failed with a status code of gRPC; error.proto says which means what.
  void Failed(double now, int code, const std::string& problem) {
    enum { kInvalidArgument = 3, kPermissionDenied = 7, kResourceExhausted = 8, kFailedPrecondition = 9 };
    enum { kAborted = 10, kInternal = 13 };
    if (code == kPermissionDenied) {
      link_ = Link::kTaken;
      problem_ = problem;
      reset_job_ = true;
      return;
    }
    if (link_ == Link::kReplaced) return LoseSight();  // nobody knows what the other process does meanwhile
    problem_ = problem;
    const bool was_attached = link_ == Link::kAttached;  // otherwise CreateJob is what failed
    if (code == kAborted) {
      link_ = Link::kReplaced;
      replaced_in_ = iteration_;
      reset_job_ = true;
      LoseSight();
    } else if (was_attached) {
      link_ = Link::kAttaching;
      detached_at_ = now;
    } else if (link_ == Link::kAttaching) {
      link_ = Link::kDown;
    }
    const bool stale = code == kFailedPrecondition;  // the job is one of an earlier training
    const bool refused = stale || code == kInvalidArgument || code == kResourceExhausted || code == kInternal;
    if (!was_attached || !in_flight_ || !refused) return;
    Acknowledge(*in_flight_);  // it would be refused again
    in_flight_.reset();
    newest_.reset();
    awaited_ = false;
    reset_job_ |= stale;
  }

  // Whether to create the job again that another process has taken over: that has gone, and this one trains. `job` is
  // the job as it is now, nothing if there is none.
  bool MayTakeBack(const std::optional<dbw::v1::Job>& job, double now) {
    if (link_ != Link::kReplaced) return false;
    const bool trains = iteration_ > replaced_in_;
    if (!job) return trains;
    const double since = seen_ ? Updated(*job) - Updated(*seen_) : 0;  // by the controller's clock
    if (!seen_ || since != 0) {
      if (seen_) {
        const double iterations = double(job->decision().iteration()) - double(seen_->decision().iteration());
        other_iteration_seconds_ = std::max(other_iteration_seconds_, since / std::max(iterations, 1.0));
      }
      seen_ = job;
      seen_at_ = now;
      return false;
    }
    const double silence = kSilentJobIterations * std::max(iteration_seconds_, other_iteration_seconds_);
    return trains && now - seen_at_ >= std::max(kSilentJobSeconds, silence);
  }

  // A gradient of this or an earlier iteration's parameters arrived, `seconds` after those were published.
  void Arrived(std::uint64_t iteration, std::uint32_t worker, double seconds) {
    std::vector<double>& times = arrival_times_[iteration];
    auto batch = std::find_if(unsent_.begin(), unsent_.end(), [=](auto& b) { return b.iteration() == iteration; });
    if (batch == unsent_.end()) {
      batch = unsent_.emplace(batch);
      batch->set_iteration(iteration);
      batch->set_preceding(times.size());
    }
    times.push_back(seconds);
    batch->add_seconds(seconds);
    batch->add_workers(worker);
  }

  // Workers came or went.
  void SetWorkers(dbw::v1::Membership workers) {
    membership_ = std::move(workers);
    k_ = std::min(k_, LiveWorkers());
  }

  // How long an iteration has taken by its summary: until the k-th arrival, if it does not say anything else.
  double DurationSeconds(const dbw::v1::IterationSummary& summary) {
    const std::vector<double>& times = arrival_times_[iteration_];
    if (summary.duration_seconds() != 0 || times.empty()) return summary.duration_seconds();
    return times[std::min<std::size_t>(summary.k() ? summary.k() : k_, times.size()) - 1];
  }

  // Ends the current iteration; returns the request to send, or null while there is no connection, or while an earlier
  // one has no answer. It stays valid until the next call. By default all k gradients were averaged, and the k-th
  // arrival ended the iteration.
  const dbw::v1::CoordinateRequest* EndIteration(dbw::v1::IterationSummary summary, double now) {
    summary.set_iteration(iteration_);
    if (summary.k() == 0) summary.set_k(k_);
    summary.set_duration_seconds(DurationSeconds(summary));
    summary.set_fallback(!decision_);
    if (decision_ && decision_->iteration() != iteration_) summary.set_decision_iteration(decision_->iteration());
    if (previous_k_) summary.set_previous_k(*previous_k_);  // the controller may have missed it

    dbw::v1::EndedIteration& ended = unacknowledged_.emplace_back();
    for (dbw::v1::Arrivals& batch : unsent_) *ended.add_arrivals() = std::move(batch);
    *ended.mutable_summary() = std::move(summary);
    unsent_.clear();
    previous_k_ = ended.summary().k();
    KeepNewest();  // after which `ended` is another one
    ++iteration_;
    if (iteration_ >= kRememberedIterations) arrival_times_.erase(iteration_ - kRememberedIterations);
    iteration_seconds_ = now - began_at_;
    patience_ = std::min(std::max(kPatienceShare * iteration_seconds_, kMinPatience), kDeadline);
    if (link_ == Link::kAttached && in_flight_) return nullptr;
    in_flight_.emplace();  // where there is no connection, it is sent as soon as there is one
    in_flight_->set_job(job_);
    in_flight_->set_session(session_);
    for (std::size_t i = 0; i + 1 < unacknowledged_.size(); ++i) *in_flight_->add_preceding() = unacknowledged_[i];
    *in_flight_->mutable_arrivals() = unacknowledged_.back().arrivals();
    *in_flight_->mutable_summary() = unacknowledged_.back().summary();
    AddMembership(&*in_flight_);
    sent_at_ = now;
    awaited_ = skipped_waits_ == 0;
    skipped_waits_ = std::max(skipped_waits_ - 1, 0);
    return link_ == Link::kAttached ? &*in_flight_ : nullptr;
  }

  // Takes in an answer. One that comes when its iteration has begun serves the next one.
  void Decided(const dbw::v1::Decision& decision, double now) {
    if (!in_flight_ || decision.iteration() != in_flight_->summary().iteration() + 1) return;
    answer_seconds_ = now - sent_at_;
    Acknowledge(*in_flight_);
    if (in_flight_->has_membership()) known_membership_ = in_flight_->membership();
    in_flight_.reset();
    Receive(decision);
  }

  // Stops waiting for a decision; returns the k to use in this iteration.
  std::uint32_t BeginIteration(double now) {
    if (AwaitsDecision()) {  // the wait has timed out
      ++timed_out_waits_;
      skipped_waits_ = timed_out_waits_ < 6 ? (1 << timed_out_waits_) - 1 : kMaxSkippedWaits;
    }
    awaited_ = false;
    began_at_ = now;
    if (link_ == Link::kAttaching && now - detached_at_ >= kDeadline) link_ = Link::kDown;
    const double patience = std::max(kSilentSeconds, kSilentFactor * answer_seconds_);
    const bool silent = link_ == Link::kAttached && in_flight_ && now - sent_at_ > patience;
    if (silent || link_ == Link::kDown || IsOthers()) newest_.reset();
    decision_ = newest_;
    if (decision_) return k_ = std::clamp(decision_->k(), 1u, LiveWorkers());
    if (problem_.empty()) problem_ = "the controller does not answer";
    return k_ = fallback_ == Fallback::kLast ? std::min(k_, LiveWorkers()) : LiveWorkers();
  }

 private:
  std::uint32_t LiveWorkers() const { return std::max(membership_.live_workers(), 1u); }

  void Receive(const dbw::v1::Decision& decision) {
    newest_ = decision;
    problem_.clear();
    if (decision.iteration() != iteration_ || !awaited_) return;
    awaited_ = false;
    timed_out_waits_ = 0;
  }

  static double Updated(const dbw::v1::Job& job) {
    return job.update_time().seconds() + job.update_time().nanos() / 1e9;
  }

  void LoseSight() {
    seen_.reset();
    other_iteration_seconds_ = 0;
  }

  void AddMembership(dbw::v1::CoordinateRequest* request) const {
    request->clear_membership();
    if (known_membership_.SerializeAsString() == membership_.SerializeAsString()) return;
    *request->mutable_membership() = membership_;
  }

  // What a request has reported need not be reported again.
  void Acknowledge(const dbw::v1::CoordinateRequest& request) {
    const auto is_known = [&](auto& ended) { return ended.summary().iteration() <= request.summary().iteration(); };
    unacknowledged_.erase(std::remove_if(unacknowledged_.begin(), unacknowledged_.end(), is_known),
                          unacknowledged_.end());
  }

  // Those that fit into one message together, and at least one.
  void KeepNewest() {
    std::size_t kept = 0, rows = 0;
    for (auto ended = unacknowledged_.rbegin(); ended != unacknowledged_.rend(); ++ended, ++kept) {
      for (const dbw::v1::Arrivals& batch : ended->arrivals()) rows += kBatchRows + batch.seconds_size();
      if (kept > 0 && (rows > kMaxRows || kept == kMaxIterations)) break;
    }
    unacknowledged_.erase(unacknowledged_.begin(), unacknowledged_.end() - kept);
  }

  const std::string job_;
  const dbw::v1::JobSpec spec_;
  const Fallback fallback_;
  std::uint64_t iteration_;
  std::uint32_t k_;
  std::optional<dbw::v1::Decision> decision_;
  Link link_ = Link::kAttaching;
  std::string problem_;
  std::string session_;
  dbw::v1::Membership membership_;
  dbw::v1::Membership known_membership_;  // which the controller was sent last
  bool reset_job_ = true;                 // whether the next CreateJob moves the job to `iteration_`
  std::optional<std::uint32_t> previous_k_;
  std::map<std::uint64_t, std::vector<double>> arrival_times_;  // of each of the last iterations
  std::vector<dbw::v1::Arrivals> unsent_;
  std::vector<dbw::v1::EndedIteration> unacknowledged_;  // which the controller has perhaps not been told of
  std::optional<dbw::v1::CoordinateRequest> in_flight_;  // the request that has no answer yet
  std::optional<dbw::v1::Decision> newest_;  // the newest that was received; nothing once the controller is lost
  bool awaited_ = true;                      // whether the decision for this iteration was requested, and it has not begun
  double patience_ = kDeadline;
  double began_at_ = 0;        // when this iteration began
  double sent_at_ = 0;         // when the request in flight was sent
  double answer_seconds_ = 0;  // how long the last answer took
  double detached_at_ = -std::numeric_limits<double>::infinity();  // when the connection ended
  int timed_out_waits_ = 0;                                        // in a row
  int skipped_waits_ = 0;         // how many of the next requests are not waited for
  double iteration_seconds_ = 0;  // that the last iteration took
  // While the job is another process's:
  std::uint64_t replaced_in_ = 0;      // the iteration that was under way when it became that
  std::optional<dbw::v1::Job> seen_;   // when it was last found changed
  double seen_at_ = 0;
  double other_iteration_seconds_ = 0;  // that iterations of that process take
};
