// A team of persistent threads: how a kernel's tasks are dealt out, and where its temporary memory comes from.
//
// The caller takes part. A job ends when its tasks are done, not when every thread has looked at it: a thread that is
// still asleep or was preempted between tasks delays nobody. Which thread runs a task is not defined, so a task's
// result must not depend on it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <type_traits>

namespace octavo {

class Team {
public:
  using Call = void (*)(void* context, int64_t task, int thread);

  // Null when a thread cannot be started. cpus: null, or one CPU number a thread (the caller's is not changed).
  static Team* create(int threads, const int32_t* cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // f(task, thread) for every task in 0 .. tasks - 1, each once, in any order; returns when all are done. Not to be
  // called from inside a task. One task, or one thread, runs in place without waking anyone.
  template <class F> void parallel(int64_t tasks, F&& f) {
    if (tasks <= 0) return;
    if (tasks == 1 || threads_ == 1) {
      for (int64_t task = 0; task < tasks; ++task) f(task, 0);
      return;
    }
    using Function = typename std::remove_reference<F>::type;
    const Call call = [](void* context, int64_t task, int thread) { (*static_cast<Function*>(context))(task, thread); };
    run(tasks, call, const_cast<void*>(static_cast<const void*>(&f)));
  }

  // f(share, index, thread) for every index in 0 .. each - 1 of every share in 0 .. shares - 1, at most one a thread. A
  // thread begins with the share of its own number and then helps others: where shares are the same rows again and
  // again, a thread finds near what it wrote.
  template <class F> void parallel_shares(int64_t shares, int64_t each, F&& f) {
    for (int64_t share = 0; share < shares; ++share) taken(share).store(0, std::memory_order_relaxed);
    parallel(shares * each, [&](int64_t, int thread) { // as many tasks as indices: each finds one
      for (int64_t share = thread % shares;; share = (share + 1) % shares) {
        const int64_t index = taken(share).fetch_add(1, std::memory_order_relaxed);
        if (index < each) return f(share, index, thread);
      }
    });
  }

  // f(begin, end, thread) over contiguous, near-equal ranges of 0 .. count - 1, shared out as parallel_shares does; none
  // is shorter than `least` but the last.
  template <class F> void parallel_ranges(int64_t count, int64_t least, F&& f) {
    if (count <= 0) return;
    const int64_t most = least < 1 ? count : (count + least - 1) / least;
    const int64_t parts = most < 4 * threads_ ? most : 4 * threads_;
    const int64_t shares = parts < threads_ ? parts : threads_, each = parts / shares;
    const int64_t length = (count + shares * each - 1) / (shares * each);
    parallel_shares(shares, each, [&](int64_t share, int64_t index, int thread) {
      const int64_t begin = (share * each + index) * length;
      const int64_t end = begin + length < count ? begin + length : count;
      if (begin < end) f(begin, end, thread);
    });
  }

  // f(begin, end, thread) over pieces of 0 .. count - 1, none longer than `longest`. Each thread goes through a run of
  // its own from its first on, so that what a piece is followed by is known and may be fetched ahead; who is done takes
  // pieces from the ends of others' runs, so that a thread that is late delays nobody for long.
  template <class F> void parallel_runs(int64_t count, int64_t longest, F&& f) {
    if (count <= 0) return;
    begin_runs(count);
    parallel(threads_, [&](int64_t, int thread) {
      int64_t begin, end;
      while (next_piece(thread, longest, begin, end)) f(begin, end, thread);
    });
  }
  // Where the run of a thread begins; that of `threads()`: the end of all.
  int64_t run_start(int64_t count, int thread) const { return count * thread / threads_; }

  // Memory of one thread, 64-byte aligned, grown when needed. It is the same memory at every call: a task asks once,
  // for all it needs, and what it holds does not outlive the task.
  float* scratch(int thread, size_t floats);
  // Memory all threads share, likewise. Asked for outside of parallel(); valid until the next call.
  float* shared(size_t floats);
  // Likewise, for what a kernel notes about its step; apart from `shared`.
  char* notes(size_t bytes);

private:
  struct State;
  explicit Team(int threads, State* state) : threads_(threads), state_(state) {}
  void run(int64_t tasks, Call call, void* context);
  void begin_runs(int64_t count);
  bool next_piece(int thread, int64_t longest, int64_t& begin, int64_t& end);
  std::atomic<int64_t>& taken(int64_t share); // indices of it that are taken
  static void* worker(void* argument);

  int threads_;
  State* state_;
};

} // namespace octavo
