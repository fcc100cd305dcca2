// Runs scripts of tests/conversations, whose README.md describes them, and compares what is sent with what they expect.
//
//   $ build/conversation_test ../../tests/conversations/*.txt
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dbw_conversation.h"

namespace {

using Link = DbwConversation::Link;

constexpr int kMaxRowsShown = 16, kMaxPrecedingShown = 4;
const std::map<Link, std::string> kLinks{{Link::kAttaching, "attaching"},
                                         {Link::kAttached, "attached"},
                                         {Link::kDown, "down"},
                                         {Link::kReplaced, "replaced"},
                                         {Link::kTaken, "taken"}};
// The status codes of gRPC that come with the reasons of error.proto, or alone.
const std::map<std::string, int> kCodes{{"INVALID_VALUE", 3},   {"SESSION_NOT_FOUND", 5}, {"LIMIT_REACHED", 8},
                                        {"STALE_ITERATION", 9}, {"SESSION_REPLACED", 10}, {"BUG", 13},
                                        {"UNAVAILABLE", 14},    {"RESOURCE_EXHAUSTED", 8}, {"NOT_OWNER", 7}};

// The words `key=value` of a command; one without `=` has the key "".
class Fields {
 public:
  explicit Fields(std::istream& words) {
    for (std::string word; words >> word;) {
      const auto sign = word.find('=');
      if (sign == std::string::npos) {
        values_[""] = word;
      } else {
        values_[word.substr(0, sign)] = word.substr(sign + 1);
      }
    }
  }
  bool has(const std::string& key) const { return values_.count(key) > 0; }
  std::string text(const std::string& key) const { return values_.at(key); }
  double real(const std::string& key) const { return std::stod(values_.at(key)); }
  std::uint64_t whole(const std::string& key, std::uint64_t otherwise = 0) const {
    return has(key) ? std::stoull(values_.at(key)) : otherwise;
  }

 private:
  std::map<std::string, std::string> values_;
};

dbw::v1::Membership WorkersFrom(const std::string& text) {
  dbw::v1::Membership workers;
  if (text.front() == '(') {
    std::istringstream numbers(text.substr(1, text.size() - 2));
    for (std::string number; std::getline(numbers, number, ',');) workers.add_workers(std::stoul(number));
    workers.set_live_workers(workers.workers_size());
  } else {
    workers.set_live_workers(std::stoul(text));
  }
  return workers;
}

dbw::v1::Decision DecisionFrom(const Fields& fields) {
  dbw::v1::Decision decision;
  decision.set_iteration(fields.whole("iteration"));
  decision.set_k(fields.whole("k"));
  if (fields.has("deadline")) decision.set_deadline_seconds(fields.real("deadline"));
  return decision;
}

template <typename Numbers>
std::string Column(const Numbers& numbers) {
  std::ostringstream text;
  for (int i = 0; i < numbers.size(); ++i) text << (i ? "," : "(") << numbers[i];
  return text.str() + ")";
}

std::string Text(const dbw::v1::Membership& membership) {
  return membership.workers().empty() ? std::to_string(membership.live_workers()) : Column(membership.workers());
}

// A parameter server that does as a script says.
class Player {
 public:
  // Runs the commands of a step; returns the requests that are sent, and how the job is then.
  std::string Play(const std::string& commands) {
    sent_.str("");
    std::istringstream lines(commands);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line.front() != '#') Run(line);
    }
    const DbwConversation& now = *conversation_;
    sent_ << "iteration=" << now.iteration() << " k=" << now.k();
    if (now.decision() && now.decision()->has_deadline_seconds()) {
      sent_ << " deadline=" << now.decision()->deadline_seconds();
    }
    if (now.AwaitsDecision()) {
      sent_ << " waiting(" << now.patience() << ") ";
    } else if (now.decision()) {
      sent_ << " decided(" << now.decision()->iteration() << ") ";
    } else {
      sent_ << " fallback ";
    }
    sent_ << kLinks.at(now.link()) << "\n";
    return sent_.str();
  }

 private:
  void Run(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    const Fields fields(words);
    if (command == "new") {
      const auto fallback = fields.has("fallback") ? DbwConversation::Fallback::kAll : DbwConversation::Fallback::kLast;
      conversation_.emplace("resnet", dbw::v1::JobSpec(), WorkersFrom(fields.text("workers")),
                            fields.whole("iteration"), fallback);
      now_ = 0;
    } else if (command == "attach") {
      Show(conversation_->CreateRequest());
    } else if (command == "created") {
      dbw::v1::CreateJobResponse response;
      response.set_session(fields.text("session"));
      *response.mutable_job()->mutable_decision() = DecisionFrom(fields);
      Show(conversation_->Created(response, now_));
    } else if (command == "arrived") {
      const std::uint64_t iteration = fields.whole("iteration", conversation_->iteration());
      conversation_->Arrived(iteration, fields.whole("worker"), fields.real("seconds"));
    } else if (command == "set_workers") {
      conversation_->SetWorkers(WorkersFrom(fields.text("")));
    } else if (command == "end") {
      dbw::v1::IterationSummary summary;
      summary.set_k(fields.whole("k"));
      if (fields.has("duration")) summary.set_duration_seconds(fields.real("duration"));
      if (fields.has("loss")) summary.set_loss(fields.real("loss"));
      if (fields.has("cause")) {
        dbw::v1::EndCause cause{};
        dbw::v1::EndCause_Parse("END_CAUSE_" + fields.text("cause"), &cause);
        summary.set_end_cause(cause);
      }
      End(summary);
    } else if (command == "decided") {
      conversation_->Decided(DecisionFrom(fields), now_);
    } else if (command == "begin") {
      Begin();
    } else if (command == "looked") {
      std::optional<dbw::v1::Job> job;
      if (fields.has("updated")) {
        job.emplace().mutable_update_time()->set_seconds(fields.whole("updated"));
        *job->mutable_decision() = DecisionFrom(fields);
      }
      if (conversation_->MayTakeBack(job, now_)) Show(conversation_->CreateRequest());
    } else if (command == "wait") {
      now_ += std::stod(fields.text(""));
    } else if (command == "failed") {
      conversation_->Failed(now_, kCodes.at(fields.text("")), "refused");
    } else if (command == "iterations") {
      for (std::uint64_t i = 0; i < fields.whole("count"); ++i) {
        for (std::uint64_t worker = 0; worker < fields.whole("arrivals"); ++worker) {
          conversation_->Arrived(conversation_->iteration(), worker, 1.0);
        }
        End({});
        Begin();
      }
    } else {
      sent_ << "there is no command " << command << "\n";
    }
  }

  // The iteration takes as long as its summary says.
  void End(dbw::v1::IterationSummary summary) {
    now_ += conversation_->DurationSeconds(summary);
    Show(conversation_->EndIteration(std::move(summary), now_));
  }

  // A wait in vain takes as long as it may.
  void Begin() {
    if (conversation_->AwaitsDecision()) now_ += conversation_->patience();
    conversation_->BeginIteration(now_);
  }

  void Show(const dbw::v1::CreateJobRequest& request) {
    sent_ << "CreateJob job=" << request.job() << " workers=" << Text(request.membership());
    if (request.has_iteration()) sent_ << " iteration=" << request.iteration();
    sent_ << "\n";
  }

  void Show(const dbw::v1::CoordinateRequest* request) {
    if (!request) return;
    sent_ << "EndIteration job=" << request->job() << " session=" << request->session() << "\n";
    int rows = 0;
    for (const auto& ended : request->preceding()) rows += Rows(ended.arrivals());
    if (request->preceding_size() > kMaxPrecedingShown) {
      sent_ << "  preceding iterations=" << request->preceding().begin()->summary().iteration() << ".."
            << request->preceding().rbegin()->summary().iteration() << " rows=" << rows << "\n";
    } else {
      for (const auto& ended : request->preceding()) {
        sent_ << "  preceding\n";
        Show(ended.arrivals());
        Show(ended.summary());
      }
      if (request->preceding_size() > 0) sent_ << "  and\n";
    }
    if (const int own = Rows(request->arrivals()); own > kMaxRowsShown) {
      sent_ << "  arrivals iterations=" << request->arrivals().begin()->iteration() << ".."
            << request->arrivals().rbegin()->iteration() << " rows=" << own << "\n";
    } else {
      Show(request->arrivals());
    }
    Show(request->summary());
    if (request->has_membership()) sent_ << "  membership workers=" << Text(request->membership()) << "\n";
  }

  using Batches = google::protobuf::RepeatedPtrField<dbw::v1::Arrivals>;

  static int Rows(const Batches& batches) {
    int rows = 0;
    for (const auto& batch : batches) rows += batch.seconds_size();
    return rows;
  }

  void Show(const Batches& batches) {
    for (const auto& batch : batches) {
      sent_ << "  arrivals iteration=" << batch.iteration() << " preceding=" << batch.preceding()
            << " workers=" << Column(batch.workers()) << " seconds=" << Column(batch.seconds()) << "\n";
    }
  }

  void Show(const dbw::v1::IterationSummary& summary) {
    sent_ << "  summary iteration=" << summary.iteration() << " k=" << summary.k()
          << " duration=" << summary.duration_seconds();
    if (summary.has_previous_k()) sent_ << " previous_k=" << summary.previous_k();
    if (summary.has_loss()) sent_ << " loss=" << summary.loss();
    if (summary.end_cause() > dbw::v1::END_CAUSE_K_REACHED) {
      sent_ << " cause=" << dbw::v1::EndCause_Name(summary.end_cause()).substr(std::string("END_CAUSE_").size());
    }
    if (summary.has_decision_iteration()) sent_ << " decision=" << summary.decision_iteration();
    sent_ << (summary.fallback() ? " fallback\n" : "\n");
  }

  std::optional<DbwConversation> conversation_;
  double now_ = 0;
  std::ostringstream sent_;
};

// Whether all steps of a script have the output that it expects.
bool Passes(const std::string& path) {
  std::ifstream script(path);
  Player player;
  std::string commands, expected;
  bool passes = script.is_open(), in_output = false;
  for (std::string line; script;) {
    const bool is_line = static_cast<bool>(std::getline(script, line));
    if (is_line && !line.empty()) {
      if (line == "----") {
        in_output = true;
      } else {
        (in_output ? expected : commands) += line + "\n";
      }
    } else if (in_output) {
      const std::string output = player.Play(commands);
      if (output != expected) {
        std::cerr << path << "\n" << commands << "---- expected\n" << expected << "---- but was\n" << output << "\n";
        passes = false;
      }
      commands = expected = "";
      in_output = false;
    }
  }
  return passes;
}

}  // namespace

int main(int count, char** paths) {
  int failures = 0;
  for (int i = 1; i < count; ++i) failures += !Passes(paths[i]);
  std::cout << count - 1 << " scripts, " << failures << " of them failed" << std::endl;
  return failures == 0 && count > 1 ? 0 : 1;
}
