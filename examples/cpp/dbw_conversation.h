// A parameter server's side of the protocol with a DBW controller: what to send, and which k to use, whatever fails.
//
// This has no socket, thread or clock: dbw_job.h sends what it returns, and hands in what it receives.
// tests/conversations/ shows it at work, in scripts that conversation_test.cc runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dbw/v1/controller.pb.h"

class DbwConversation {
 public:
  enum class Fallback { kLast, kAll };  // k without a decision: the last one that was decided, or all workers
  enum class Link {
    kAttaching,
    kAttached,
    kDown,      // the last attempt to attach has failed, or took too long
    kReplaced,  // another process has created the same job: there will be no more decisions
  };
  static constexpr std::uint64_t kRememberedIterations = 1024;  // arrivals of those further back are ignored
  // Arrivals to keep while there is no controller: together they must fit into one message.
  static constexpr std::size_t kMaxBatches = 256, kMaxRows = 50000;

  DbwConversation(std::string job, dbw::v1::JobSpec spec, dbw::v1::Membership workers, std::uint64_t iteration = 0,
                  Fallback fallback = Fallback::kLast)
      : job_(std::move(job)), spec_(std::move(spec)), fallback_(fallback), iteration_(iteration) {
    k_ = std::max(workers.live_workers(), 1u);
    membership_ = std::move(workers);
  }

  std::uint64_t iteration() const { return iteration_; }
  std::uint32_t k() const { return k_; }                                       // how many gradients to wait for
  const std::optional<dbw::v1::Decision>& decision() const { return decision_; }  // nothing while on fallback
  Link link() const { return link_; }
  const std::string& problem() const { return problem_; }  // with the connection; empty if there is none

  // Whether to wait for a decision: it was requested, and nothing says that it will not come.
  bool AwaitsDecision() const {
    return !decision_ && requested_ && !begun_ && (link_ == Link::kAttaching || link_ == Link::kAttached);
  }

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
  const dbw::v1::CoordinateRequest* Created(const dbw::v1::CreateJobResponse& response) {
    session_ = response.session();
    link_ = Link::kAttached;
    problem_.clear();
    if (reset_job_) Take(response.job().decision());
    reset_job_ = false;
    if (!in_flight_) return nullptr;
    in_flight_->set_session(session_);
    AddMembership(&*in_flight_);
    return &*in_flight_;
  }

  // An attempt to attach, or a request, has failed with a status code of gRPC; error.proto says which means what.
  void Failed(int code, const std::string& problem) {
    enum { kInvalidArgument = 3, kResourceExhausted = 8, kFailedPrecondition = 9, kAborted = 10, kInternal = 13 };
    problem_ = problem;
    if (code == kAborted) {
      link_ = Link::kReplaced;
    } else if (link_ == Link::kAttached) {
      link_ = Link::kAttaching;
    } else if (link_ == Link::kAttaching) {
      link_ = Link::kDown;
    }
    const bool stale = code == kFailedPrecondition;  // the job is one of an earlier training
    if (!in_flight_ || !(stale || code == kInvalidArgument || code == kResourceExhausted || code == kInternal)) return;
    ForgetArrivals(*in_flight_);  // it would be refused again
    in_flight_.reset();
    requested_ = false;
    reset_job_ |= stale;
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

  // Ends the current iteration; returns the request to send, or null while there is no connection, or while an earlier
  // one has no answer. It stays valid until the next call. By default all k gradients were averaged, and the k-th
  // arrival ended the iteration.
  const dbw::v1::CoordinateRequest* EndIteration(dbw::v1::IterationSummary summary) {
    const std::vector<double>& times = arrival_times_[iteration_];
    summary.set_iteration(iteration_);
    if (summary.k() == 0) summary.set_k(k_);
    if (summary.duration_seconds() == 0 && !times.empty()) {
      summary.set_duration_seconds(times[std::min<std::size_t>(summary.k(), times.size()) - 1]);
    }
    summary.set_fallback(!decision_);
    if (previous_k_) summary.set_previous_k(*previous_k_);  // the controller may have missed it

    std::move(unsent_.begin(), unsent_.end(), std::back_inserter(unacknowledged_));
    unsent_.clear();
    KeepNewestArrivals();
    previous_k_ = summary.k();
    ++iteration_;
    decision_.reset();
    begun_ = false;
    if (iteration_ >= kRememberedIterations) arrival_times_.erase(iteration_ - kRememberedIterations);
    requested_ = link_ != Link::kAttached || !in_flight_;
    if (!requested_) return nullptr;
    in_flight_.emplace();  // where there is no connection, it is sent as soon as there is one
    in_flight_->set_job(job_);
    in_flight_->set_session(session_);
    for (const dbw::v1::Arrivals& batch : unacknowledged_) *in_flight_->add_arrivals() = batch;
    *in_flight_->mutable_summary() = std::move(summary);
    AddMembership(&*in_flight_);
    return link_ == Link::kAttached ? &*in_flight_ : nullptr;
  }

  // Takes in an answer, which may come too late to be of use.
  void Decided(const dbw::v1::Decision& decision) {
    if (in_flight_ && decision.iteration() == in_flight_->summary().iteration() + 1) {
      ForgetArrivals(*in_flight_);
      if (in_flight_->has_membership()) known_membership_ = in_flight_->membership();
      in_flight_.reset();
    }
    Take(decision);
  }

  // Stops waiting for a decision; returns the k to use in this iteration.
  std::uint32_t BeginIteration() {
    begun_ = true;
    if (decision_) return k_ = std::clamp(decision_->k(), 1u, LiveWorkers());
    if (link_ == Link::kAttaching) link_ = Link::kDown;  // one deadline was enough: the next ones do not wait for it
    if (problem_.empty()) problem_ = "no answer within the deadline";
    return k_ = fallback_ == Fallback::kLast ? std::min(k_, LiveWorkers()) : LiveWorkers();
  }

 private:
  std::uint32_t LiveWorkers() const { return std::max(membership_.live_workers(), 1u); }

  void Take(const dbw::v1::Decision& decision) {
    if (decision.iteration() != iteration_ || begun_) return;
    decision_ = decision;
    problem_.clear();
  }

  void AddMembership(dbw::v1::CoordinateRequest* request) const {
    request->clear_membership();
    if (known_membership_.SerializeAsString() == membership_.SerializeAsString()) return;
    *request->mutable_membership() = membership_;
  }

  // The arrivals of a request need not be sent again.
  void ForgetArrivals(const dbw::v1::CoordinateRequest& request) {
    std::set<std::pair<std::uint64_t, std::uint32_t>> sent;
    for (const dbw::v1::Arrivals& batch : request.arrivals()) sent.emplace(batch.iteration(), batch.preceding());
    const auto was_sent = [&](auto& batch) { return sent.count({batch.iteration(), batch.preceding()}) > 0; };
    unacknowledged_.erase(std::remove_if(unacknowledged_.begin(), unacknowledged_.end(), was_sent),
                          unacknowledged_.end());
  }

  void KeepNewestArrivals() {
    std::size_t kept = 0, rows = 0;
    for (auto batch = unacknowledged_.rbegin(); batch != unacknowledged_.rend(); ++batch, ++kept) {
      rows += batch->seconds_size();
      if (rows > kMaxRows || kept == kMaxBatches) break;
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
  std::vector<dbw::v1::Arrivals> unacknowledged_;        // sent, but perhaps not received
  std::optional<dbw::v1::CoordinateRequest> in_flight_;  // the request that has no answer yet
  bool requested_ = true;  // whether its answer, or that to CreateJob, is the decision for this iteration
  bool begun_ = false;     // whether k is in use already
};
