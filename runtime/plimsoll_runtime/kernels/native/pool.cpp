#include "pool.h"

#include <chrono>

namespace plimsoll {

namespace {

constexpr auto SPIN = std::chrono::microseconds(60);
constexpr int PAUSES_PER_LOOK = 64;  // between two looks at the clock

constexpr uint64_t TASK_BITS = 16;
constexpr uint64_t TASK_MASK = (1u << TASK_BITS) - 1;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

bool has_task(uint64_t ticket) { return (ticket & TASK_MASK) < ((ticket >> TASK_BITS) & TASK_MASK); }

}  // namespace

Pool::Pool(int num_threads) {
    for (int thread = 1; thread < num_threads; thread++) threads_.emplace_back([this] { work(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(sleep_);
        closing_.store(true);
    }
    woken_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Pool::run(int num_tasks, Task task, void* context) {
    if (num_tasks <= 0) return;
    if (num_tasks == 1 || threads_.empty()) {
        for (int index = 0; index < num_tasks; index++) task(context, index);
        return;
    }
    std::lock_guard<std::mutex> caller(callers_);
    task_.store(task, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> (2 * TASK_BITS)) + 1;
    ticket_.store((generation << (2 * TASK_BITS)) | (static_cast<uint64_t>(num_tasks) << TASK_BITS));
    if (num_asleep_.load() > 0) {
        std::lock_guard<std::mutex> lock(sleep_);
        woken_.notify_all();
    }
    uint64_t ticket = ticket_.load();
    while (take(ticket)) {
    }
    for (int looks = 0; num_done_.load(std::memory_order_acquire) < num_tasks; looks++) {
        pause();
        if (looks % 4096 == 4095) std::this_thread::yield();
    }
}

// Does one task of the job of `ticket`, if it has one left; `ticket` becomes what was seen last.
bool Pool::take(uint64_t& ticket) {
    while (has_task(ticket)) {
        // Read before the ticket is taken: the ticket proves that they belonged to its job.
        const Task task = task_.load(std::memory_order_relaxed);
        void* const context = context_.load(std::memory_order_relaxed);
        if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            task(context, static_cast<int>(ticket & TASK_MASK));
            num_done_.fetch_add(1, std::memory_order_release);
            ticket = ticket_.load(std::memory_order_acquire);
            return true;
        }
    }
    return false;
}

void Pool::work() {
    uint64_t ticket = 0;
    while (!closing_.load(std::memory_order_relaxed)) {
        while (take(ticket)) {
        }
        ticket = wait_for_other(ticket);
    }
}

// Returns the first ticket that has a task, or any when the pool closes.
uint64_t Pool::wait_for_other(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + SPIN;
    do {
        for (int pauses = 0; pauses < PAUSES_PER_LOOK; pauses++) {
            seen = ticket_.load(std::memory_order_acquire);
            if (has_task(seen)) return seen;
            pause();
        }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(sleep_);
    num_asleep_.fetch_add(1);
    woken_.wait(lock, [&] { return has_task(seen = ticket_.load()) || closing_.load(); });
    num_asleep_.fetch_sub(1);
    return seen;
}

}  // namespace plimsoll
