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
    float   lanes[N_LANES];
    int32_t nan  [N_LANES] = {};
    std::fill(lanes, lanes + N_LANES, -std::numeric_limits<float>::infinity());

    int32_t i = 0;
    for (; i + N_LANES <= n; i += N_LANES) {
        for (int32_t k = 0; k < N_LANES; ++k) {
            lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
            nan[k]  |= x[i + k] != x[i + k];
        }
    }
    for (int32_t k = 0; i < n; ++i, ++k) {
        lanes[k] = x[i] > lanes[k] ? x[i] : lanes[k];
        nan[k]  |= x[i] != x[i];
    }

    const float value = *std::max_element(lanes, lanes + N_LANES);

    return { value, std::isfinite(value) && *std::max_element(nan, nan + N_LANES) == 0 };
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
