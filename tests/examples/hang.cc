// Preloaded into the example in C++: threads that sleep for long hang for good, once some have slept.
#include <time.h>
#include <unistd.h>

#include <atomic>

extern "C" int nanosleep(const timespec* duration, timespec* rest) {
  static std::atomic<int> long_sleeps{0};
  while (duration->tv_nsec >= 50'000'000 && ++long_sleeps > 10) pause();
  return clock_nanosleep(CLOCK_MONOTONIC, 0, duration, rest);
}
