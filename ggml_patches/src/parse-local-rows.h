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

static constexpr int32_t N_ROW_BLOCK = 64*N_LANES; // fits into the L1 cache

struct row_max {
    float   value;
    int32_t block; // first index of the block in which the value is found first
    bool    valid; // the row has a distribution: finite maximum, no NaN
};

static inline row_max row_find_max(const float * x, int32_t n) {
    row_max res = { -std::numeric_limits<float>::infinity(), 0, true };

    // two loops over a block: in one, compilers keep the lanes in memory
    int32_t nan = 0;
    int32_t i0  = 0;
    for (; i0 + N_ROW_BLOCK <= n; i0 += N_ROW_BLOCK) {
        float lanes[N_LANES];
        std::fill(lanes, lanes + N_LANES, -std::numeric_limits<float>::infinity());

        for (int32_t i = i0; i < i0 + N_ROW_BLOCK; i += N_LANES) {
            for (int32_t k = 0; k < N_LANES; ++k) {
                lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
            }
        }

        int32_t block_nan = 0;
        for (int32_t i = i0; i < i0 + N_ROW_BLOCK; ++i) {
            block_nan |= x[i] != x[i];
        }
        nan |= block_nan;

        const float value = *std::max_element(lanes, lanes + N_LANES);
        if (value > res.value) {
            res.value = value;
            res.block = i0;
        }
    }

    for (int32_t i = i0; i < n; ++i) {
        nan |= x[i] != x[i];
        if (x[i] > res.value) {
            res.value = x[i];
            res.block = i0;
        }
    }

    res.valid = std::isfinite(res.value) && nan == 0;

    return res;
}

// The lowest index of the maximum; -1 where the row has no distribution
static inline int32_t row_argmax(const float * x, const row_max & max) {
    if (!max.valid) {
        return -1;
    }

    int32_t i = max.block;
    while (x[i] != max.value) {
        ++i;
    }

    return i;
}
