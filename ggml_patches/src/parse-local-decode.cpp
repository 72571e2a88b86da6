#include "parse-local.h"
#include "parse-local-rows.h"

#include "llama.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

// Only declarations of llama.h are used here: the functions come through parse_local_llama

int32_t parse_local_decode_token(
        const parse_local_llama    * llama,
              struct llama_context * ctx,
              int32_t                token,
              int32_t                pos,
              int32_t                n_vocab,
              int32_t              * argmax) {
    llama_seq_id   seq_id   = 0;
    llama_seq_id * seq_ids  = &seq_id;
    int32_t        n_seq_id = 1;
    int8_t         output   = 1;

    llama_batch batch = {};
    batch.n_tokens = 1;
    batch.token    = &token;
    batch.pos      = &pos;
    batch.n_seq_id = &n_seq_id;
    batch.seq_id   = &seq_ids;
    batch.logits   = &output;

    try {
        const int32_t status = llama->decode(ctx, batch);
        if (status != 0) {
            return status;
        }

        if (argmax) {
            // waits for the computation, so that a later read finds it finished as well
            const float * row = llama->get_logits_ith(ctx, -1);

            *argmax = row ? row_argmax(row, row_find_max(row, n_vocab)) : -1;
        }
    } catch (...) {
        return PARSE_LOCAL_EXCEPTION;
    }

    return 0;
}

// Larger logits first, and of equal ones the lower id
static bool is_before(const llama_token_data & a, const llama_token_data & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The n_keep first tokens of a row (by is_before) whose logit is not -INFINITY; res has room for
// twice as many. As soon as that is full the lesser half goes, and what is not larger than the
// least of the other half need not be looked at any more.
static int32_t row_top(const float * x, int32_t n, int32_t n_keep, llama_token_data * res) {
    float   least = -std::numeric_limits<float>::infinity();
    int32_t count = 0;

    const auto shrink = [&]() {
        std::nth_element(res, res + n_keep - 1, res + count, is_before);
        count = n_keep;
        least = res[n_keep - 1].logit;
    };

    for (int32_t i0 = 0; i0 < n; i0 += 4*N_LANES) {
        const int32_t i1 = std::min(n, i0 + 4*N_LANES);

        int32_t any = 0;
        if (i1 - i0 == 4*N_LANES) {
            for (int32_t k = 0; k < 4*N_LANES; ++k) {
                any |= x[i0 + k] > least;
            }
        } else {
            any = 1;
        }
        if (!any) {
            continue;
        }

        for (int32_t i = i0; i < i1; ++i) {
            if (x[i] > least) {
                res[count++] = { i, x[i], 0.0f };
                if (count == 2*n_keep) {
                    shrink();
                }
            }
        }
    }
    if (count > n_keep) {
        shrink();
    }

    return count;
}

int32_t parse_local_sample_row(
        const parse_local_llama       * llama,
        const float                   * logits,
              int32_t                   n_vocab,
              struct llama_sampler    * smpl,
              int32_t                   n_keep,
        const int32_t                 * history,
              int32_t                   n_history,
              struct llama_token_data * candidates,
              int32_t                   n_candidates,
              int32_t                 * ids,
              double                  * probs) {
    if (!llama || !logits || n_vocab < 1 || !smpl || n_keep < 0 || n_history < 0 ||
            (n_history > 0 && !history) || !candidates || !ids || !probs) {
        return PARSE_LOCAL_INVALID_ARGUMENT;
    }

    for (int32_t i = 0; i < n_history; ++i) {
        if (history[i] < 0 || history[i] >= n_vocab) {
            return PARSE_LOCAL_INVALID_TOKEN;
        }
    }

    // What a penalty lowers makes room for others, at most as many as there are penalised tokens.
    // Twice the number is gathered before the lesser ones are sorted out.
    const int64_t n_top  = (int64_t) n_keep + n_history;
    const bool    all    = n_keep == 0 || 2*n_top >= n_vocab;
    const int64_t n_need = all ? n_vocab : 2*n_top;
    if (n_candidates < n_need) {
        return PARSE_LOCAL_INVALID_ARGUMENT;
    }

    if (!row_find_max(logits, n_vocab).valid) {
        return PARSE_LOCAL_NO_DISTRIBUTION;
    }

    int32_t count = 0;
    if (all) {
        for (; count < n_vocab; ++count) {
            candidates[count] = { count, logits[count], 0.0f };
        }
    } else {
        count = row_top(logits, n_vocab, (int32_t) n_top, candidates);

        // what a penalty raises may be any of them
        for (int32_t i = 0; i < n_history; ++i) {
            const auto same = [&](const llama_token_data & c) { return c.id == history[i]; };
            if (std::none_of(candidates, candidates + count, same)) {
                candidates[count++] = { history[i], logits[history[i]], 0.0f };
            }
        }
        std::sort(candidates, candidates + count, [](const auto & a, const auto & b) { return a.id < b.id; });
    }

    llama_token_data_array left = { candidates, (size_t) count, -1, false };

    try {
        if (history) {
            llama->sampler_reset(smpl);
            for (int32_t i = 0; i < n_history; ++i) {
                llama->sampler_accept(smpl, history[i]);
            }
        }
        llama->sampler_apply(smpl, &left);
    } catch (...) {
        return PARSE_LOCAL_EXCEPTION;
    }

    // left.data is what the chain has made of it, not necessarily our work space
    const int32_t n_left = (int32_t) std::min<size_t>(left.size, n_candidates);

    float max = -std::numeric_limits<float>::infinity();
    for (int32_t i = 0; i < n_left; ++i) {
        max = std::max(max, left.data[i].logit);
    }
    if (!std::isfinite(max)) {
        return PARSE_LOCAL_NO_DISTRIBUTION;
    }

    double sum = 0.0;
    for (int32_t i = 0; i < n_left; ++i) {
        ids[i]   = left.data[i].id;
        probs[i] = std::exp((double) left.data[i].logit - max);
        sum += probs[i];
    }
    for (int32_t i = 0; i < n_left; ++i) {
        probs[i] /= sum;
    }

    return n_left;
}
