// A synchronous parameter server in C++ that asks a DBW controller, every iteration, how many gradients to wait for.
//
// Eight threads compute gradients of a logistic regression, a quarter of them five times slower than the others.
// dbw_job.h talks to the controller, as dbw_conversation.h says; `Train` below is where a parameter server uses it.
//
// Debian has what it needs in libgrpc++-dev, libprotobuf-dev, protobuf-compiler-grpc, cmake, g++ and pkg-config.
//
//   $ dbw controller
//   $ cmake -S . -B build && cmake --build build
//   $ build/parameter_server --controller 127.0.0.1:50051 --job cpp --workers 8 --iterations 60 --transport stream
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dbw_job.h"

namespace {

using Clock = std::chrono::steady_clock;
using Vector = std::vector<double>;

constexpr int kFeatures = 20;
constexpr int kExamples = 2000;
constexpr int kBatch = 32;
constexpr double kLearningRate = 0.5;

double Dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

struct Example {
  Vector features;
  double label;  // 0 or 1
};

struct Parameters {
  std::uint64_t iteration;
  Clock::time_point published;
  Vector values;
};

struct Gradient {
  std::uint32_t worker;
  std::uint64_t iteration;  // of the parameters that it was computed with
  Vector values;
  double loss;
  double arrived;  // seconds since those parameters were published
};

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::vector<Example> MakeExamples() {
  std::mt19937_64 random(0);
  std::uniform_real_distribution<double> uniform(-2, 2);
  const auto fill = [&](Vector& values) {
    std::generate(values.begin(), values.end(), [&] { return uniform(random); });
  };
  Vector truth(kFeatures);
  fill(truth);
  std::vector<Example> examples(kExamples, {Vector(kFeatures), 0.0});
  for (Example& example : examples) {
    fill(example.features);
    example.label = Dot(truth, example.features) > 0;
  }
  return examples;
}

// Where the parameter server publishes parameters, and workers leave gradients.
class Exchange {
 public:
  void Publish(Parameters parameters) {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(parameters);
    changed_.notify_all();
  }

  // The newest parameters, once they are of iteration `next` or a later one.
  Parameters Pull(std::uint64_t next) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return newest_ && newest_->iteration >= next; });
    return *newest_;
  }

  void Push(Gradient gradient, Clock::time_point published) {
    const std::lock_guard lock(mutex_);
    gradient.arrived = Seconds(Clock::now() - published);
    gradients_.push_back(std::move(gradient));
    changed_.notify_all();
  }

  // The next gradient; nothing if none arrives in this many seconds.
  std::optional<Gradient> Take(double seconds) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> pause(seconds);
    if (!changed_.wait_for(lock, pause, [&] { return !gradients_.empty(); })) return std::nullopt;
    Gradient gradient = std::move(gradients_.front());
    gradients_.pop_front();
    return gradient;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Parameters> newest_;
  std::deque<Gradient> gradients_;
};

// Computes gradients of the newest parameters, and begins again as soon as there are newer ones.
void Work(std::uint32_t worker, bool slow, const std::vector<Example>& examples, Exchange* exchange) {
  std::mt19937_64 random(worker);
  std::uniform_int_distribution<std::size_t> any(0, examples.size() - 1);
  std::exponential_distribution<double> straggling(1 / 0.005);
  std::uint64_t next = 0;
  for (;;) {
    const Parameters parameters = exchange->Pull(next);
    Gradient gradient{worker, parameters.iteration, Vector(kFeatures), 0.0, 0.0};
    for (int i = 0; i < kBatch; ++i) {
      const Example& example = examples[any(random)];
      const double probability = 1 / (1 + std::exp(-Dot(parameters.values, example.features)));
      for (int j = 0; j < kFeatures; ++j) {
        gradient.values[j] += (probability - example.label) * example.features[j] / kBatch;
      }
      gradient.loss -= std::log(example.label > 0 ? probability : 1 - probability) / kBatch;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>((slow ? 5 : 1) * (0.01 + straggling(random))));
    exchange->Push(std::move(gradient), parameters.published);
    next = parameters.iteration + 1;
  }
}

void Train(DbwJob* job, Exchange* exchange, std::uint64_t iterations) {
  const auto begin = Clock::now();
  Vector parameters(kFeatures);
  int late = 0, fallbacks = 0;
  for (std::uint64_t iteration = 0; iteration < iterations; ++iteration) {
    const auto published = Clock::now();
    exchange->Publish({iteration, published, parameters});
    dbw::v1::IterationSummary summary;
    Vector sum(kFeatures);
    double squares = 0, losses = 0;
    while (summary.k() < job->k()) {
      const double pause = job->PauseSeconds(summary.k(), Seconds(Clock::now() - published));
      const auto gradient = exchange->Take(pause);
      if (!gradient && pause > 0) continue;
      if (!gradient) {
        summary.set_end_cause(dbw::v1::END_CAUSE_DEADLINE);
        summary.set_duration_seconds(Seconds(Clock::now() - published));
        break;
      }
      job->Arrived(gradient->iteration, gradient->worker, gradient->arrived);
      if (gradient->iteration < iteration) {  // late: it tells how long it took, and is of no other use
        ++late;
        continue;
      }
      for (int j = 0; j < kFeatures; ++j) sum[j] += gradient->values[j];
      squares += Dot(gradient->values, gradient->values);
      losses += gradient->loss;
      summary.set_k(summary.k() + 1);
      summary.set_duration_seconds(gradient->arrived);
    }
    const double k = summary.k();
    for (int j = 0; j < kFeatures; ++j) parameters[j] -= kLearningRate * sum[j] / k;

    summary.set_published_seconds(Seconds(published - begin));
    summary.set_loss(losses / k);
    summary.set_learning_rate(kLearningRate);
    summary.mutable_moments()->set_mean_squared_norm(Dot(sum, sum) / (k * k));
    summary.mutable_moments()->set_sum_squared_norms(squares);
    fallbacks += job->on_fallback();
    if (iteration % 10 == 0 || iteration + 1 == iterations) {
      std::cout << "iteration " << iteration << ": k = " << k << ", loss " << summary.loss() << std::endl;
    }
    job->EndIteration(summary);
  }
  std::cout << iterations << " iterations in " << Seconds(Clock::now() - begin) << " s, " << late << " late gradients, "
            << fallbacks << " iterations without a decision" << std::endl;
}

int AtLeastOne(const std::string& option, const std::string& text) {
  std::istringstream words(text);
  int number = 0;
  if (!(words >> number && words.eof() && number >= 1)) {
    throw std::invalid_argument(option + " must be a whole number, at least 1");
  }
  return number;
}

}  // namespace

int main(int count, char** words) {
  std::map<std::string, std::string> options{{"--controller", "127.0.0.1:50051"},
                                             {"--job", "cpp"},
                                             {"--workers", "8"},
                                             {"--iterations", "60"},
                                             {"--transport", "stream"}};
  int workers = 0, iterations = 0;
  try {
    for (int i = 1; i < count; i += 2) {
      const auto option = options.find(words[i]);
      if (option == options.end()) throw std::invalid_argument(std::string("there is no option ") + words[i]);
      if (i + 1 == count) throw std::invalid_argument(std::string(words[i]) + " has no value");
      option->second = words[i + 1];
    }
    workers = AtLeastOne("--workers", options["--workers"]);
    iterations = AtLeastOne("--iterations", options["--iterations"]);
    if (options["--transport"] != "stream" && options["--transport"] != "unary") {
      throw std::invalid_argument("--transport must be stream or unary");
    }
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\nusage: parameter_server [--controller HOST:PORT] [--job NAME] [--workers N]"
              << " [--iterations T] [--transport stream|unary]\n";
    return 2;
  }

  const std::vector<Example> examples = MakeExamples();
  const auto transport = options["--transport"] == "stream" ? DbwJob::Transport::kStream : DbwJob::Transport::kUnary;
  DbwJob job(options["--controller"], options["--job"], workers, transport);
  Exchange exchange;
  for (int worker = 0; worker < workers; ++worker) {
    std::thread(Work, worker, worker < workers / 4, std::cref(examples), &exchange).detach();
  }
  Train(&job, &exchange, iterations);
  job.Delete();
  std::quick_exit(0);  // while workers may hang, or use what is in this function
}
