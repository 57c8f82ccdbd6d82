// A few threads that take tasks in turn: the library's only threads.
//
// Owns the threads. `run` may be called by one thread at a time (others wait) and returns when every task is done. The
// caller works too, and takes the tasks of a thread that does not come, so that a thread that is not scheduled on a
// busy machine delays only the task it holds. Idle threads spin briefly, since the next call of a step follows within
// microseconds, and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace plimsoll {

using Task = void (*)(void* context, int index);

class Pool {
public:
    // `num_threads` counts the caller; less than 1 is 1.
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
    void run(int num_tasks, Task task, void* context);

    // run(n, f) for anything that is called with an index.
    template <typename Function>
    void run(int num_tasks, Function& function) {
        run(num_tasks, [](void* context, int index) { (*static_cast<Function*>(context))(index); }, &function);
    }

    static constexpr int MAX_TASKS = 1 << 15;

private:
    void work();
    bool take(uint64_t& ticket);
    uint64_t wait_for_other(uint64_t seen);

    // generation (32 bits) | number of tasks (16) | next task (16): a task is taken by adding 1, which fails once the
    // job it was read from is over.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<Task> task_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int> num_done_{0};
    std::atomic<int> num_asleep_{0};
    std::atomic<bool> closing_{false};
    std::mutex callers_;
    std::mutex sleep_;
    std::condition_variable woken_;
    std::vector<std::thread> threads_;
};

}  // namespace plimsoll
