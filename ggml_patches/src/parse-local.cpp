#include "parse-local.h"
#include "parse-local-rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

// Elements after which the float lanes are emptied into a double, to bound their rounding error
static constexpr int32_t N_BLOCK = 64*N_LANES;

// Below this many logits a second thread costs more than it saves
static constexpr int64_t N_LOGITS_PER_THREAD = 1 << 17;

// exp(x) for -87 <= x <= 0 with a relative error below 2e-7; unlike std::exp it is inlined and vectorised
static inline float exp_nonpositive(float x) {
    // x = n*ln(2) + r, |r| <= ln(2)/2; adding and removing 1.5*2^23 rounds to the nearest integer
    const float round = 12582912.0f;
    const float shifted = x*1.44269504f + round;
    const float n = shifted - round;

    // ln(2) in two parts, the first of which has trailing zeros so that its product with n is exact
    const float r = (x - n*0.693359375f) + n*2.12194440e-4f;

    // Cephes' polynomial for exp(r)
    float p = 1.9875691500e-4f;
    p = p*r + 1.3981999507e-3f;
    p = p*r + 8.3334519073e-3f;
    p = p*r + 4.1665795894e-2f;
    p = p*r + 1.6666665459e-1f;
    p = p*r + 5.0000001201e-1f;
    p = p*(r*r) + r + 1.0f;

    // multiply by 2^n: the low bits of `shifted` hold n, move them to the exponent
    // (unsigned, because what is shifted out has no place in a signed integer)
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));

    const uint32_t scale_bits = (bits << 23) + 0x3f800000u;

    float scale;
    std::memcpy(&scale, &scale_bits, sizeof(scale));

    return p*scale;
}

struct row_sums {
    double exp;      // sum of exp(x - max)
    double weighted; // sum of exp(x - max)*(x - max), only if asked for
};

template <bool WEIGHTED>
static row_sums row_sum(const float * x, int32_t n, float max) {
    row_sums res = { 0.0, 0.0 };

    for (int32_t i0 = 0; i0 < n; i0 += N_BLOCK) {
        const int32_t i1 = std::min(n, i0 + N_BLOCK);

        float sum[N_LANES]  = {};
        float wsum[N_LANES] = {};

        // exp(-87) is the smallest that is not denormal: a logit of -INFINITY adds 1e-38 instead of
        // 0, and 0*-INFINITY cannot turn up in the weighted sum
        int32_t i = i0;
        for (; i + N_LANES <= i1; i += N_LANES) {
            for (int32_t k = 0; k < N_LANES; ++k) {
                const float d = x[i + k] - max;
                const float c = d > -87.0f ? d : -87.0f;
                const float e = exp_nonpositive(c);

                sum[k] += e;
                if (WEIGHTED) {
                    wsum[k] += e*c;
                }
            }
        }
        for (int32_t k = 0; i < i1; ++i, ++k) {
            const float d = x[i] - max;
            const float c = d > -87.0f ? d : -87.0f;
            const float e = exp_nonpositive(c);

            sum[k] += e;
            if (WEIGHTED) {
                wsum[k] += e*c;
            }
        }

        for (int32_t k = 0; k < N_LANES; ++k) {
            res.exp      += sum[k];
            res.weighted += wsum[k];
        }
    }

    return res;
}

static int32_t row_count_above(const float * x, int32_t n, float threshold) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; ++i) {
        count += x[i] > threshold ? 1 : 0;
    }

    return count;
}

// log-probability of a logit, given the row's maximum and the logarithm of its sum of exp(x - max)
static float logprob_of(float logit, float max, double log_sum) {
    return (float) ((double) logit - (double) max - log_sum);
}

// Call row(i) for all i in [0, n_rows), from several threads if that is worth it
template <typename F>
static void for_each_row(int32_t n_rows, int32_t n_vocab, int32_t n_threads, const F & row) {
    std::atomic<int32_t> next(0);

    const auto work = [&]() {
        for (int32_t i = next.fetch_add(1); i < n_rows; i = next.fetch_add(1)) {
            row(i);
        }
    };

    const int64_t n_useful  = (int64_t) n_rows*n_vocab/N_LOGITS_PER_THREAD;
    const int64_t n_workers = std::min<int64_t>({ n_threads, n_rows, n_useful }) - 1;

    std::vector<std::thread> workers;
    try {
        for (int64_t i = 0; i < n_workers; ++i) {
            workers.emplace_back(work);
        }
    } catch (const std::exception &) {
        // no more threads to be had: those that did start and this one share the rows
    }

    work();

    for (auto & worker : workers) {
        worker.join();
    }
}

const char * parse_local_shim_version(void) {
    return "2";
}

int32_t parse_local_score_rows(
        const float   * logits,
              int32_t   n_rows,
              int32_t   n_vocab,
        const int32_t * tokens,
              int32_t   n_threads,
              int32_t * argmax,
              float   * logprob,
              int32_t * rank,
              float   * entropy,
              float   * max_logprob) {
    if (n_rows < 0 || n_vocab < 1 || (n_rows > 0 && !logits) || (!tokens && (logprob || rank))) {
        return PARSE_LOCAL_INVALID_ARGUMENT;
    }

    const bool need_token = logprob || rank;

    if (need_token) {
        for (int32_t i = 0; i < n_rows; ++i) {
            if (tokens[i] < -1 || tokens[i] >= n_vocab) {
                return PARSE_LOCAL_INVALID_TOKEN;
            }
        }
    }

    const bool need_sum = logprob || entropy || max_logprob;
    const float nan = std::numeric_limits<float>::quiet_NaN();

    for_each_row(n_rows, n_vocab, n_threads, [&](int32_t i) {
        const float * x = logits + (int64_t) i*n_vocab;

        const row_max max = row_find_max(x, n_vocab);

        if (argmax) {
            argmax[i] = row_argmax(x, max);
        }

        if (rank) {
            rank[i] = max.valid && tokens[i] >= 0 ? row_count_above(x, n_vocab, x[tokens[i]]) : -1;
        }

        if (!need_sum) {
            return;
        }

        row_sums sums = { 1.0, 0.0 };
        if (max.valid) {
            sums = entropy ? row_sum<true>(x, n_vocab, max.value) : row_sum<false>(x, n_vocab, max.value);
        }

        const double log_sum = std::log(sums.exp);

        if (logprob) {
            logprob[i] = max.valid && tokens[i] >= 0 ? logprob_of(x[tokens[i]], max.value, log_sum) : nan;
        }

        if (entropy) {
            entropy[i] = max.valid ? (float) (log_sum - sums.weighted/sums.exp) : nan;
        }

        if (max_logprob) {
            max_logprob[i] = max.valid ? (float) -log_sum : nan;
        }
    });

    return PARSE_LOCAL_OK;
}

int32_t parse_local_label_logprobs(
        const float   * logits,
              int32_t   n_rows,
              int32_t   n_vocab,
        const int32_t * labels,
              int32_t   n_labels,
              int32_t   n_threads,
              float   * out) {
    if (n_rows < 0 || n_vocab < 1 || n_labels < 0) {
        return PARSE_LOCAL_INVALID_ARGUMENT;
    }

    if (n_rows == 0 || n_labels == 0) {
        return PARSE_LOCAL_OK;
    }

    if (!logits || !labels || !out) {
        return PARSE_LOCAL_INVALID_ARGUMENT;
    }

    for (int32_t j = 0; j < n_labels; ++j) {
        if (labels[j] < 0 || labels[j] >= n_vocab) {
            return PARSE_LOCAL_INVALID_TOKEN;
        }
    }

    const float nan = std::numeric_limits<float>::quiet_NaN();

    for_each_row(n_rows, n_vocab, n_threads, [&](int32_t i) {
        const float * x = logits + (int64_t) i*n_vocab;

        const row_max max     = row_find_max(x, n_vocab);
        const double  log_sum = max.valid ? std::log(row_sum<false>(x, n_vocab, max.value).exp) : 0.0;

        for (int32_t j = 0; j < n_labels; ++j) {
            out[(int64_t) i*n_labels + j] = max.valid ? logprob_of(x[labels[j]], max.value, log_sum) : nan;
        }
    });

    return PARSE_LOCAL_OK;
}

bool parse_local_abort_requested(void * flag) {
    // the flag is an int32_t of the caller's (a ctypes one), which std::atomic_ref would fit in C++20
    static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t), "the flag is read in place");

    return flag && static_cast<const std::atomic<int32_t> *>(flag)->load(std::memory_order_relaxed) != 0;
}
