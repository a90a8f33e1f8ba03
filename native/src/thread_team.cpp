// How the team hands out tasks and sleeps. See State for the protocol.
#include "thread_team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "octavo/abi.h"
#include "upcoming.h"

namespace octavo {
namespace {

constexpr size_t kLine = 64;
constexpr int kMostThreads = 1024;
constexpr int64_t kSpinNanoseconds =
    50000; // longer than the serial stretches of a step, shorter than the gap between steps
// A ticket's lower half counts down from kNoTask + tasks; each thread may take it below kNoTask once.
constexpr uint64_t kNoTask = 1u << 16;
constexpr int64_t kMostTasks = INT32_MAX;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

thread_local Upcoming own_upcoming; // of this thread

// Spins until done() holds, and fetches what the thread will read; false when that took too long.
template <class F> bool spin(int64_t limit, F&& done) {
  if (done()) return true;
  if (limit == 0) return false;
  Upcoming& upcoming = own_upcoming;
  const int64_t end = nanoseconds() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (upcoming.left > 0)
        upcoming.fetch();
      else
        relax();
      if (done()) return true;
    }
  } while (nanoseconds() < end);
  return false;
}

struct Memory {
  void* data = nullptr;
  size_t bytes = 0;

  float* at_least(size_t floats) {
    const size_t wanted = floats * sizeof(float);
    if (wanted > bytes) {
      free(data);
      bytes = (wanted + wanted / 4 + 4095) / 4096 * 4096;
      data = aligned_alloc(kLine, bytes);
      if (data == nullptr) abort(); // a kernel cannot go on without, and there is nobody to tell
    }
    return static_cast<float*>(data);
  }
  ~Memory() { free(data); }
};

// What is left of a thread's run: its first in the lower half, the one after its last in the upper.
class Run {
public:
  void set(uint64_t begin, uint64_t end) { left_.store(end << 32 | begin, std::memory_order_relaxed); }

  // Takes up to `longest` from the front, or from the back no more than half of what is left.
  bool take(bool front, uint64_t longest, int64_t& begin, int64_t& end) {
    uint64_t seen = left_.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t first = seen & 0xffffffffu, last = seen >> 32;
      if (first >= last) return false;
      const uint64_t most = front ? last - first : (last - first + 1) / 2, count = most < longest ? most : longest;
      const uint64_t rest = front ? last << 32 | (first + count) : (last - count) << 32 | first;
      if (!left_.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) continue;
      begin = static_cast<int64_t>(front ? first : last - count);
      end = begin + static_cast<int64_t>(count);
      return true;
    }
  }

private:
  std::atomic<uint64_t> left_{0};
};

struct Worker {
  Team* team = nullptr;
  int number = 0;
  pthread_t handle = {};
  alignas(kLine) Run run;
  alignas(kLine) Memory memory;
  alignas(kLine) std::atomic<int64_t> taken{0}; // of the share with this number
};

} // namespace

// A job: call, context and tasks are written, then `ticket` (upper half: the job's number, lower half: tasks left),
// then `epoch`, which workers watch. Every task is taken by decrementing the ticket. Whoever got one knows that the job
// cannot end before it adds to `done`, so what it reads of the job is this job's. Fields are atomic because late
// workers may read them at any time; a worker that got no task uses none of what it read.
struct Team::State {
  alignas(kLine) std::atomic<uint32_t> epoch{0};
  std::atomic<Call> call{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<uint32_t> tasks{0};
  std::atomic<bool> stop{false};
  alignas(kLine) std::atomic<uint64_t> ticket{kNoTask};
  alignas(kLine) std::atomic<uint32_t> done{0};
  std::atomic<bool> caller_sleeps{false};
  alignas(kLine) std::atomic<int> sleepers{0};
  int64_t spin_nanoseconds = kSpinNanoseconds;
  int started = 0;
  Memory shared, notes;
  Worker* workers = nullptr;

  // Runs tasks until none is left; the number of the job that had none left.
  uint32_t work(int thread) {
    uint32_t finished = 0;
    for (;;) {
      const uint64_t mine = ticket.fetch_sub(1, std::memory_order_acq_rel);
      const uint64_t left = mine & 0xffffffffu;
      if (left <= kNoTask) {
        if (finished > 0) finish(finished);
        return static_cast<uint32_t>(mine >> 32);
      }
      const uint32_t count = tasks.load(std::memory_order_relaxed);
      const Call function = call.load(std::memory_order_relaxed);
      function(context.load(std::memory_order_relaxed), static_cast<int64_t>(count - (left - kNoTask)), thread);
      ++finished;
    }
  }

  void finish(uint32_t finished) {
    const uint32_t before = done.fetch_add(finished, std::memory_order_seq_cst);
    // Read after the addition: were the job over and another begun, then its `tasks` is compared with an old count, and
    // a needless wake is all that comes of it.
    if (caller_sleeps.load(std::memory_order_seq_cst) && before + finished == tasks.load(std::memory_order_relaxed)) {
      futex_wake(done, 1);
    }
  }

  void wait_for_done(uint32_t count) {
    const auto all_done = [&] { return done.load(std::memory_order_acquire) == count; };
    if (spin(spin_nanoseconds, all_done)) return;
    caller_sleeps.store(true, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t seen = done.load(std::memory_order_seq_cst);
      if (seen == count) break;
      futex_wait(done, seen);
    }
    caller_sleeps.store(false, std::memory_order_relaxed);
  }

  void wait_for_job(uint32_t last) {
    // A difference, because a late worker may have taken part in a job whose epoch is still to be published.
    const auto is_new = [last](uint32_t seen) { return static_cast<int32_t>(seen - last) > 0; };
    if (spin(spin_nanoseconds, [&] { return is_new(epoch.load(std::memory_order_acquire)); })) return;
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t seen = epoch.load(std::memory_order_seq_cst);
      if (is_new(seen)) break;
      futex_wait(epoch, seen);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  void publish(int helpers) {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(epoch, helpers);
  }
};

void* Team::worker(void* argument) {
  Worker* self = static_cast<Worker*>(argument);
  State& state = *self->team->state_;
  uint32_t last = 0;
  for (;;) {
    state.wait_for_job(last);
    if (state.stop.load(std::memory_order_acquire)) return nullptr;
    last = state.work(self->number);
  }
}

void Team::run(int64_t tasks, Call call, void* context) {
  State& state = *state_;
  if (tasks > kMostTasks) abort(); // no kernel has two thousand million tasks
  const uint32_t job = state.epoch.load(std::memory_order_relaxed) + 1;
  state.call.store(call, std::memory_order_relaxed);
  state.context.store(context, std::memory_order_relaxed);
  state.tasks.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
  state.done.store(0, std::memory_order_relaxed);
  state.ticket.store((static_cast<uint64_t>(job) << 32) + kNoTask + static_cast<uint64_t>(tasks),
                     std::memory_order_release);
  state.publish(static_cast<int>(tasks - 1));
  state.work(0);
  state.wait_for_done(static_cast<uint32_t>(tasks));
}

void Team::begin_runs(int64_t count) {
  if (count > kMostTasks) abort(); // likewise
  for (int thread = 0; thread < threads_; ++thread)
    state_->workers[thread].run.set(static_cast<uint64_t>(run_start(count, thread)),
                                    static_cast<uint64_t>(run_start(count, thread + 1)));
}

bool Team::next_piece(int thread, int64_t longest, int64_t& begin, int64_t& end) {
  Worker* workers = state_->workers;
  if (workers[thread].run.take(true, static_cast<uint64_t>(longest), begin, end)) return true;
  for (int turn = 1; turn < threads_; ++turn)
    if (workers[(thread + turn) % threads_].run.take(false, static_cast<uint64_t>(longest), begin, end)) return true;
  return false;
}

Team* Team::create(int threads, const int32_t* cpus) {
  if (threads < 1) threads = 1;
  if (threads > kMostThreads) threads = kMostThreads;
  State* state = new (std::nothrow) State;
  if (state == nullptr) return nullptr;
  Team* team = new (std::nothrow) Team(threads, state);
  state->workers = new (std::nothrow) Worker[static_cast<size_t>(threads)];
  if (team == nullptr || state->workers == nullptr) {
    delete[] state->workers;
    delete state;
    delete team;
    return nullptr;
  }
  if (threads > usable_cpus()) state->spin_nanoseconds = 0; // who spins keeps another from working
  for (int number = 1; number < threads; ++number) {
    Worker& worker = state->workers[number];
    worker.team = team;
    worker.number = number;
    if (pthread_create(&worker.handle, nullptr, &Team::worker, &worker) != 0) {
      delete team;
      return nullptr;
    }
    state->started = number;
    pthread_setname_np(worker.handle, "octavo");
    if (cpus == nullptr || cpus[number] < 0 || cpus[number] >= CPU_SETSIZE) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpus[number]), &set);
    pthread_setaffinity_np(worker.handle, sizeof set, &set); // best effort
  }
  return team;
}

Team::~Team() {
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->publish(INT_MAX);
  for (int number = 1; number <= state_->started; ++number) pthread_join(state_->workers[number].handle, nullptr);
  delete[] state_->workers;
  delete state_;
}

void fetch_while_waiting(const Upcoming& upcoming) { own_upcoming = upcoming; }

std::atomic<int64_t>& Team::taken(int64_t share) { return state_->workers[share].taken; }

float* Team::scratch(int thread, size_t floats) { return state_->workers[thread].memory.at_least(floats); }

float* Team::shared(size_t floats) { return state_->shared.at_least(floats); }

char* Team::notes(size_t bytes) { return reinterpret_cast<char*>(state_->notes.at_least((bytes + 3) / 4)); }

} // namespace octavo

extern "C" {

void* octavo_team_create(int32_t threads, const int32_t* cpus) { return octavo::Team::create(threads, cpus); }

void octavo_team_destroy(void* team) { delete static_cast<octavo::Team*>(team); }

int32_t octavo_team_threads(const void* team) { return static_cast<const octavo::Team*>(team)->threads(); }

} // extern "C"
