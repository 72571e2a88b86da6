// Loops over one row of logits that the sources of libparse_local share; not part of its C ABI

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

// The loops are written for the compiler's vectoriser. A sum of floats has a fixed order in
// C++ and would stay scalar, so that sums and maxima run in this many independent lanes: one vector
// register of 512 bits or several shorter ones.
static constexpr int32_t N_LANES = 16;

struct row_max {
    float value;
    bool  valid; // the row has a distribution: finite maximum, no NaN
};

static inline row_max row_find_max(const float * x, int32_t n) {
    // two loops over a block that stays in the L1 cache: in one, compilers keep the lanes in memory
    static constexpr int32_t n_block = 64*N_LANES;

    float lanes[N_LANES];
    std::fill(lanes, lanes + N_LANES, -std::numeric_limits<float>::infinity());

    int32_t nan = 0;
    int32_t i0  = 0;
    for (; i0 + n_block <= n; i0 += n_block) {
        for (int32_t i = i0; i < i0 + n_block; i += N_LANES) {
            for (int32_t k = 0; k < N_LANES; ++k) {
                lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
            }
        }

        int32_t block_nan = 0;
        for (int32_t i = i0; i < i0 + n_block; ++i) {
            block_nan |= x[i] != x[i];
        }
        nan |= block_nan;
    }

    float value = *std::max_element(lanes, lanes + N_LANES);
    for (int32_t i = i0; i < n; ++i) {
        value = x[i] > value ? x[i] : value;
        nan  |= x[i] != x[i];
    }

    return { value, std::isfinite(value) && nan == 0 };
}

// The lowest index of a value that is in the row
static inline int32_t row_find(const float * x, int32_t n, float value) {
    static constexpr int32_t n_block = 16*N_LANES;

    int32_t i = 0;
    for (; i + n_block <= n; i += n_block) {
        int32_t found = 0;
        for (int32_t k = 0; k < n_block; ++k) {
            found |= x[i + k] == value;
        }
        if (found) {
            break;
        }
    }
    while (x[i] != value) {
        ++i;
    }

    return i;
}

// The token with the largest logit, the lowest id of several; -1 where the row has no distribution
static inline int32_t row_argmax(const float * x, int32_t n) {
    const row_max max = row_find_max(x, n);

    return max.valid ? row_find(x, n, max.value) : -1;
}
