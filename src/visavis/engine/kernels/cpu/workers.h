// Threads, and the phases of a job that they share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Who takes the chunks of a phase: any thread the next one, or each thread those of its own stretch, so that it reads
// memory in one go, and then what others have not begun.
enum class Share : uint64_t { ANY, STRETCHES };

// Phases of a step, done one after the other by whichever threads come. A phase is a number of chunks; a thread claims
// the next one, and the phase is over when all are done, not when all threads have come by. Tickets and numbers of
// chunks carry the step they belong to, so a thread that wakes late finds that its step is over and touches nothing.
class Phases {
  public:
    Phases(int most, int threads) : threads_(threads), phases_(most), tickets_(size_t(most) * threads) {}
    void set(uint32_t step, int phase, int chunks, Share share) {
        phases_[phase].chunks.store(uint64_t(step) << 32 | uint64_t(share) << 31 | uint32_t(chunks), std::memory_order_relaxed);
    }
    void open(uint32_t step, int count) {
        count_.store(count, std::memory_order_relaxed);
        for (int i = 0; i < count; i++) phases_[i].done.store(uint64_t(step) << 32, std::memory_order_release);
    }
    template <class F>
    void work(uint32_t step, int thread, F&& f) {  // f(phase, chunk)
        for (int i = 0; i < count_.load(std::memory_order_relaxed); i++) {
            Phase& p = phases_[i];
            const int stretches = stretches_of(p.chunks.load(std::memory_order_acquire));
            for (int n = 0; n < stretches; n++)
                for (int chunk; (chunk = claim(step, i, (thread + n) % stretches)) != NONE;) {
                    if (chunk == OVER) return;
                    f(i, chunk);
                    p.done.fetch_add(1, std::memory_order_release);
                }
            for (int spins = 0;; spins++) {
                uint64_t done = p.done.load(std::memory_order_acquire);
                if (uint32_t(done >> 32) != step) return;
                if (uint32_t(done) >= number(p.chunks.load(std::memory_order_relaxed))) break;
                if (spins < 500) relax();
                else std::this_thread::yield();
            }
        }
    }

  private:
    enum { NONE = -1, OVER = -2 };
    struct Phase {
        alignas(64) std::atomic<uint64_t> done{0};  // step << 32 | chunks done
        std::atomic<uint64_t> chunks{0};            // step << 32 | share << 31 | chunks
    };
    // One last taken exactly 2^32 - 1 jobs ago would pass for the job's own, and its chunks for done: hours of jobs of
    // fewer phases, and then that very one.
    struct Ticket {
        alignas(64) std::atomic<uint64_t> next{0};  // step << 32 | chunks given out; of another step: none yet
    };

    static uint32_t number(uint64_t chunks) { return uint32_t(chunks) & 0x7fffffffu; }
    int stretches_of(uint64_t chunks) const { return Share(chunks >> 31 & 1) == Share::ANY ? 1 : threads_; }

    int claim(uint32_t step, int phase, int stretch) {  // the next chunk of a stretch
        std::atomic<uint64_t>& next = tickets_[size_t(phase) * threads_ + stretch].next;
        for (uint64_t ticket = next.load(std::memory_order_acquire);;) {
            // Read after the ticket: a ticket of a later step comes with that step's number of chunks.
            const uint64_t chunks = phases_[phase].chunks.load(std::memory_order_acquire);
            if (uint32_t(chunks >> 32) != step) return OVER;
            const int64_t count = number(chunks), stretches = stretches_of(chunks);
            const int begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
            const int given = uint32_t(ticket >> 32) == step ? int(uint32_t(ticket)) : 0;
            if (begin + given >= end) return NONE;
            const uint64_t taken = uint64_t(step) << 32 | uint32_t(given + 1);
            if (next.compare_exchange_weak(ticket, taken, std::memory_order_acq_rel, std::memory_order_acquire)) return begin + given;
        }
    }

    const int threads_;
    std::vector<Phase> phases_;
    std::vector<Ticket> tickets_;  // (phases, threads)
    std::atomic<int> count_{0};
};

// Cache-line aligned memory: a 64-byte load that crosses a line costs two.
class Buffer {
  public:
    void resize(size_t n) {
        if (n <= size_) return;
        std::free(data_);
        size_ = 0;
        data_ = static_cast<float*>(std::aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64));
        if (!data_) throw std::bad_alloc();
        size_ = n;
        std::memset(data_, 0, n * sizeof(float));
    }
    Buffer() = default;
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    ~Buffer() { std::free(data_); }
    float* data() { return data_; }
    size_t bytes() const { return size_ * sizeof(float); }

  private:
    float* data_ = nullptr;
    size_t size_ = 0;
};

// The caller's thread and others that help it, for one job after the other.
class Workers {
  public:
    Workers(int threads, int most_phases) : threads_(threads), phases_(most_phases, threads) {
        try {
            for (int t = 1; t < threads; t++) helpers_.emplace_back([this, t] { help(t); });
        } catch (...) {  // the process may have no more threads: end the ones there are
            stop();
            throw;
        }
    }
    ~Workers() { stop(); }
    Workers(const Workers&) = delete;
    int threads() const { return threads_; }
    Buffer prepared;  // of the product at hand

    // Does every chunk of `count` phases, whose numbers of chunks `chunks(phase)` says: call(thread, phase, chunk).
    template <class Chunks, class F>
    void run(int count, Chunks chunks, F& call, Share share = Share::ANY) {
        uint32_t step = step_.load(std::memory_order_relaxed) + 1;
        if (step == 0) step = 1;
        for (int i = 0; i < count; i++) phases_.set(step, i, chunks(i), share);
        call_ = [](void* self, int t, int phase, int chunk) { (*static_cast<F*>(self))(t, phase, chunk); };
        job_ = &call;
        phases_.open(step, count);
        { std::lock_guard<std::mutex> lock(mutex_); step_.store(step, std::memory_order_release); }
        wake_.notify_all();
        work(0, step);
    }

  private:
    void work(int t, uint32_t step) {
        phases_.work(step, t, [&](int phase, int chunk) { call_(job_, t, phase, chunk); });
    }
    void stop() {
        { std::lock_guard<std::mutex> lock(mutex_); stop_ = true; }
        wake_.notify_all();
        for (auto& h : helpers_) h.join();
    }
    void help(int t) {
        uint32_t seen = 0;
        for (;;) {
            for (int spins = 0; step_.load(std::memory_order_acquire) == seen && !stop_ && spins < 4000; spins++) relax();
            if (step_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return stop_ || step_.load() != seen; });
            }
            if (stop_) return;
            seen = step_.load(std::memory_order_acquire);
            work(t, seen);
        }
    }
    int threads_;
    Phases phases_;
    void (*call_)(void*, int, int, int) = nullptr;  // read by whoever holds a chunk, so never while it changes
    void* job_ = nullptr;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint32_t> step_{0};  // of the job at hand; 0: none yet
    std::atomic<bool> stop_{false};
};
